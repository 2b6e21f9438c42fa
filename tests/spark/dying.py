"""A pipeline that brings all tables up to date and dies on its way: python -m tests.spark.dying URL LAKE POINT"""

import os
import sys
from pathlib import Path

from waypost.lake.owner import Lake
from waypost.spark.pipeline import once
from waypost.spark.session import UNCOMPILED, session

CODE = 41


def main(url: str, lake: str, point: str) -> None:
    def reached(where: str) -> None:
        if where == point:
            os._exit(CODE)

    spark = session("dying", "local[2]", brief=True, **UNCOMPILED)
    once(spark, url, Lake(Path(lake)), slice=2_000, reached=reached)


if __name__ == "__main__":
    main(*sys.argv[1:])
