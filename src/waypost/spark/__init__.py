"""Waypost's log in Spark: a session, the events, the tables; and acts on the deliveries that a DataFrame names.

    from waypost.spark import events, session, table

    spark = session()
    events(spark).groupBy("to_state").count().show()
    table(spark, "messages").where("state = 'E'").show()
    print(redrive(table(spark, "dead_letters")))

Needs the extra `waypost[spark]`. The data source itself, `format("waypost")`, is the package pyspark_waypost beside this
one, and works in any Spark session.
"""

from typing import TYPE_CHECKING, Any

from .java import JavaMissing
from .launching import SparkUnusable
from .session import session

if TYPE_CHECKING:
    from .acts import ActImpossible, cancel, redrive, replay
    from .reading import ReadingImpossible, events, table

__all__ = [
    "ActImpossible",
    "JavaMissing",
    "ReadingImpossible",
    "SparkUnusable",
    "cancel",
    "events",
    "redrive",
    "replay",
    "session",
    "table",
]
_ACTS = ("ActImpossible", "cancel", "redrive", "replay")


def __getattr__(name: str) -> Any:
    # Later: the daemon that is forked into Spark's workers starts from this package and must not load pyarrow.
    if name in _ACTS:
        from . import acts

        return getattr(acts, name)
    if name in __all__:
        from . import reading

        return getattr(reading, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
