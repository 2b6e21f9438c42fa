"""Waypost's log in Spark: a session, the events, the tables.

    from waypost.spark import events, session, table

    spark = session()
    events(spark).groupBy("to_state").count().show()
    table(spark, "messages").where("state = 'E'").show()

Needs the extra `waypost[spark]`. The data source itself, `format("waypost")`, is the package pyspark_waypost beside this
one, and works in any Spark session.
"""

from .java import JavaMissing
from .launching import SparkUnusable
from .session import session

__all__ = ["JavaMissing", "SparkUnusable", "session"]
