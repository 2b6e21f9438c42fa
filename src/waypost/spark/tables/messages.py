"""messages: one row a message, as it is now.

A message's state is a function of its queue slots, so a row keeps how many of them are in each state: every event moves one
slot from `from_state` to `to_state`. That adds up, whatever is folded first, without a look at `deliveries`. Channels never count:
their events are not even looked at. (RULINGS 2 and 22.)

The numbers stand in two columns, fifteen bits each, which is a sum instead of eight:

    _open    Q | R | F | dead: E, I          _ended   done: S, K | C | T | O
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ...arrow import MESSAGES, MOMENT
from ...delivery import C, E, I, K, L, N, O, Q, R, S, State, T, U, X
from ...delivery import F as FETCHED
from . import shape

#: a message has at most 101 queues with 100 slots each
BITS = 15
OPEN: tuple[tuple[State, ...], ...] = ((Q,), (R,), (FETCHED,), (E, I))
ENDED: tuple[tuple[State, ...], ...] = ((S, K), (C,), (T,), (O,))

#: what L says of it
_LOGGED = tuple(
    name for name in MESSAGES.names if name not in ("sequence", "state", "same_as", "priority", "expires_at")
)
SCHEMA = pa.schema(
    [
        *(field for field in MESSAGES if field.name not in ("priority", "expires_at")),
        ("changed_at", MOMENT),
        ("attempt", pa.int32()),
        ("slots", pa.int32()),
        ("consumer", pa.string()),
        ("reason", pa.string()),
        ("wait_ms", pa.int64()),
        ("processing_ms", pa.int64()),
        ("first_fetched_at", MOMENT),
        ("confirmed_at", MOMENT),
        ("completed_at", MOMENT),
        ("last_offset", pa.int64()),
        ("_open", pa.int64()),
        ("_ended", pa.int64()),
        ("_completed_at", MOMENT),
        ("bucket", pa.int64()),
    ]
)


def state_sql(opened: str, ended: str, same_as: str, completed_at: str) -> str:
    """The message's state as SQL, that Spark and delta-rs both understand; the arguments are SQL too."""

    def there(packed: str, place: int) -> str:
        return f"(({packed}) >> {BITS * place}) & {(1 << BITS) - 1} > 0"

    cases = [
        (f"({same_as}) is not null", U),
        (there(opened, 3), E),
        (there(opened, 2), FETCHED),
        (there(opened, 1), R),
        (there(opened, 0), Q),
        (there(ended, 1), C),
        (there(ended, 2), T),
        (there(ended, 3), O),
        (there(ended, 0), X),
        # No queue slot: it is completed without one, or not routed yet.
        (f"({completed_at}) is not null", X),
    ]
    whens = " ".join(f"when {condition} then '{state.name}'" for condition, state in cases)
    return f"case {whens} else 'L' end"


def numbers(events: DataFrame) -> DataFrame:
    of_slot = F.col("slot").isNotNull()
    changes = (
        events.where(F.col("channel").isNull())
        .groupBy("sequence")
        .agg(
            F.max("offset").alias("last_offset"),
            F.max("at").alias("changed_at"),
            F.coalesce(F.max("attempt"), F.lit(0)).alias("attempt"),
            F.sum((of_slot & shape.leaves(L)).cast("int") - (of_slot & shape.enters(L)).cast("int"))
            .cast("int")
            .alias("slots"),
            shape.last_consumer().alias("consumer_code"),
            F.max(shape.when(_gives_reason(), "offset")).alias("_reason_at"),
            F.max(shape.when(shape.enters(U), "offset")).alias("_same_as_at"),
            F.sum(shape.when(shape.leaves(Q), "duration_ms")).alias("wait_ms"),
            F.sum(shape.when(shape.leaves(FETCHED) & shape.enters(S, I, N), "duration_ms")).alias(
                "processing_ms"
            ),
            F.min(shape.when(shape.enters(FETCHED), "at")).alias("first_fetched_at"),
            F.max(shape.when(shape.enters(S), "at")).alias("confirmed_at"),
            F.sum(_weight("to_code", OPEN) - _weight("from_code", OPEN)).alias("_open"),
            F.sum(_weight("to_code", ENDED) - _weight("from_code", ENDED)).alias("_ended"),
            F.max(shape.when(shape.enters(X), "at")).alias("_completed_at"),
        )
    )
    return (
        changes.withColumn("state", F.expr(state_sql("_open", "_ended", "_same_as_at", "_completed_at")))
        .withColumn("completed_at", F.when(F.col("state") == X.name, F.col("_completed_at")))
        .withColumn("bucket", shape.bucket())
    )


def _gives_reason() -> Column:
    """Not those of routing: why it went to the dead letters' queue, and not that it did."""
    return F.col("reason").isNotNull() & F.col("channel").isNull() & ~(shape.leaves(L) & shape.enters(Q))


def _weight(column: str, places: tuple[tuple[State, ...], ...]) -> Column:
    """One slot in its state, as a number to be added up."""
    whens = " ".join(
        f"when {int(state)} then {1 << (BITS * place)}L"
        for place, states in enumerate(places)
        for state in states
    )
    return F.expr(f"case {column} {whens} else 0L end")


_STATE = state_sql(
    "t._open + s._open", "t._ended + s._ended", shape.newest("same_as"), shape.newest("_completed_at")
)

MESSAGES_TABLE = shape.Folded(
    name="messages",
    schema=SCHEMA,
    key=("sequence",),
    numbers=numbers,
    texts=(
        shape.Text(("reason",), "_reason_at", _gives_reason),
        shape.Text(("same_as",), "_same_as_at", lambda: shape.enters(U), sole=True),
        shape.Text(_LOGGED, "sequence", shape.logged, sole=True),
    ),
    names=(shape.CONSUMER,),
    update={
        "state": _STATE,
        "same_as": shape.newest("same_as"),
        "changed_at": "s.changed_at",
        "attempt": "greatest(t.attempt, s.attempt)",
        "slots": "t.slots + s.slots",
        "consumer": shape.newest("consumer"),
        "reason": shape.newest("reason"),
        "wait_ms": shape.added("wait_ms"),
        "processing_ms": shape.added("processing_ms"),
        "first_fetched_at": shape.first("first_fetched_at"),
        "confirmed_at": shape.newest("confirmed_at"),
        "completed_at": f"case when {_STATE} = 'X' then {shape.newest('_completed_at')} end",
        "last_offset": "s.last_offset",
        "_open": "t._open + s._open",
        "_ended": "t._ended + s._ended",
        "_completed_at": shape.newest("_completed_at"),
    },
)
