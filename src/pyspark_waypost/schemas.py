"""The columns of each table, as Spark says them. They are those of the broker's Arrow streams; a test holds them together."""

from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .errors import SourceError

_TYPES: dict[str, DataType] = {
    "bigint": LongType(),
    "int": IntegerType(),
    "text": StringType(),
    "moment": TimestampType(),
    "texts": ArrayType(StringType()),
}


def _schema(columns: str) -> StructType:
    pairs = (column.split(":") for column in columns.split())
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])


EVENTS = _schema(
    """
    offset:bigint at:moment message_id:text sequence:bigint queue:text channel:text slot:int from_state:text to_state:text
    attempt:int consumer:text reason:text duration_ms:bigint
    topics:texts object:text key:text mime_type:text producer:text hash:text size:bigint timestamp:moment sent:moment
    same_as:text from_code:int to_code:int destination_code:int consumer_code:int
    """
)
MESSAGES = _schema(
    """
    sequence:bigint message_id:text state:text at:moment topics:texts object:text key:text mime_type:text producer:text
    hash:text size:bigint timestamp:moment sent:moment same_as:text priority:int expires_at:moment
    """
)
DELIVERIES = _schema(
    """
    sequence:bigint message_id:text queue:text channel:text slot:int state:text attempt:int consumer:text reason:text
    at:moment changed_at:moment due_at:moment named:text destination_code:int
    """
)
#: of a stream alone: each batch is one row, the offsets it would have had
RANGES = _schema("from:bigint until:bigint")

SCHEMAS = {"message_events": EVENTS, "messages": MESSAGES, "deliveries": DELIVERIES, "ranges": RANGES}


def check_columns(table: str, asked: StructType) -> list[str]:
    """The names of the columns that are asked for, which must be the table's."""
    known = {field.name: field.dataType for field in SCHEMAS[table]}
    for field in asked:
        if field.name not in known:
            raise SourceError(f"{table} has no column {field.name!r}; it has: {', '.join(known)}")
        if field.dataType != known[field.name]:
            is_, was = known[field.name].simpleString(), field.dataType.simpleString()
            raise SourceError(f"column {field.name} of {table} is {is_}, not {was}")
        if not field.nullable:
            raise SourceError(f"column {field.name} may be null: leave NOT NULL out of .schema(…)")
    if not asked.fields:
        raise SourceError(f".schema(…) names no column; {table} has: {', '.join(known)}")
    return asked.fieldNames()
