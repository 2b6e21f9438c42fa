"""A stream that writes numbered rows into a broker, for ever: python -m prove.sinking URL CHECKPOINT

Row n has the value n; which rows a batch has hangs on its number alone, and rows of one key come from one task.
"""

import sys

from waypost.spark.session import UNCOMPILED, session

ROWS_A_BATCH = 2_000
TASKS = 2
KEYS = 50
TOPIC = "sunk.row"


def main(url: str, checkpoint: str) -> None:
    spark = session("sinking", "local[2]", brief=True, **UNCOMPILED)
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=ROWS_A_BATCH, numPartitions=TASKS, startTimestamp=0)
        .load()
    )
    rows = numbers.selectExpr(
        "cast(value as string) as value", f"'{TOPIC}' as topics", f"concat('k', value % {KEYS}) as key"
    )
    query = rows.writeStream.format("waypost").options(url=url, checkpointLocation=checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
