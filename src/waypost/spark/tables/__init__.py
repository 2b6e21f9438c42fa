"""The tables: what the log says, in rows that people ask about. One file each, one registry.

    events ──fold──▶ messages, deliveries, receipts           kept: newer folds are merged onto older rows
           ──fold──▶ queue_minutes, consumer_minutes          kept: closed minutes
                     messages, deliveries ──▶ object_history, dead_letters, unchanged     asked when read

`of_events` gives any of them from events alone; the pipeline keeps FOLDED and COUNTED as Delta tables with the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from .consumer_minutes import CONSUMER_MINUTES_TABLE
from .dead_letters import DEAD_LETTERS_TABLE
from .deliveries import DELIVERIES_TABLE
from .messages import MESSAGES_TABLE
from .object_history import OBJECT_HISTORY_TABLE
from .queue_minutes import QUEUE_MINUTES_TABLE
from .receipts import RECEIPTS_TABLE
from .shape import Computed, Counted, Folded, Table
from .unchanged import UNCHANGED_TABLE

__all__ = [
    "COUNTED",
    "FOLDED",
    "KEPT",
    "TABLES",
    "Computed",
    "Counted",
    "Folded",
    "Table",
    "of_events",
    "of_kept",
]

#: in the order in which the pipeline brings them up to date
FOLDED = (MESSAGES_TABLE, DELIVERIES_TABLE, RECEIPTS_TABLE)
COUNTED = (QUEUE_MINUTES_TABLE, CONSUMER_MINUTES_TABLE)
COMPUTED = (OBJECT_HISTORY_TABLE, DEAD_LETTERS_TABLE, UNCHANGED_TABLE)
TABLES: dict[str, Table] = {table.name: table for table in (*FOLDED, *COUNTED, *COMPUTED)}
#: those that lie in the lake
KEPT = tuple(table.name for table in (*FOLDED, *COUNTED))


def of_kept(name: str, kept: Callable[[str], DataFrame]) -> DataFrame:
    """A table as people read it; `kept` gives the rows of a kept one."""
    table = TABLES[name]
    if isinstance(table, Computed):
        return table.compute(*(kept(source) for source in table.sources))
    return shown(table, kept(name))


def of_events(name: str, events: DataFrame, until: datetime | None = None) -> DataFrame:
    """The same from events alone, which must go back to the log's beginning.

    `until`: the moment they were asked for; minutes that had not ended by then are left out, since more could come.
    """
    table = TABLES[name]
    if isinstance(table, Computed):
        return table.compute(*(of_events(source, events) for source in table.sources))
    if isinstance(table, Folded):
        return shown(table, table.fold(events))
    if until is not None:
        events = events.where(F.col("at") < F.date_trunc("minute", F.lit(until)))
    return shown(table, table.fold(events))


def shown(table: Folded | Counted, rows: DataFrame) -> DataFrame:
    """What people read of rows as they are kept or folded."""
    if isinstance(table, Folded) and table.gone is not None:
        rows = rows.where(f"not ({table.gone})")
    return rows.select(
        *(name for name in table.schema.names if not name.startswith("_") and name != "bucket")
    )
