"""The log and the store's rows as Arrow: which columns, of which types.

An event has the names of its JSON form in snake_case. Small integers travel beside the names, for those who compute: state
codes, the number of a queue's or channel's incarnation, the number of a consumer. People never need them.

Every column is nullable and none is ever removed or changed: readers of old files find new columns null.
Needs the `lake` extra; nothing that a broker alone runs imports this file.
"""

from __future__ import annotations

import pyarrow as pa

MOMENT = pa.timestamp("us", tz="UTC")
TOPICS = pa.list_(pa.field("element", pa.string()))

#: one row a transition; `offset` is dense
EVENTS = pa.schema(
    [
        ("offset", pa.int64()),
        ("at", MOMENT),
        ("message_id", pa.string()),
        ("sequence", pa.int64()),
        ("queue", pa.string()),
        ("channel", pa.string()),
        ("slot", pa.int32()),
        ("from_state", pa.string()),
        ("to_state", pa.string()),
        ("attempt", pa.int32()),
        ("consumer", pa.string()),
        ("reason", pa.string()),
        ("duration_ms", pa.int64()),
        # on L only
        ("topics", TOPICS),
        ("object", pa.string()),
        ("key", pa.string()),
        ("mime_type", pa.string()),
        ("producer", pa.string()),
        ("hash", pa.string()),
        ("size", pa.int64()),
        ("timestamp", MOMENT),
        ("sent", MOMENT),
        # on U only
        ("same_as", pa.string()),
        # the same as integers
        ("from_code", pa.int32()),
        ("to_code", pa.int32()),
        ("destination_code", pa.int32()),
        ("consumer_code", pa.int32()),
    ]
)

#: one row a message, under the offset of its L; a row without a body was erased or reaped before it was sealed
PAYLOADS = pa.schema(
    [
        ("sequence", pa.int64()),
        ("at", MOMENT),
        ("message_id", pa.string()),
        ("mime_type", pa.string()),
        ("encoding", pa.string()),
        ("meta", pa.string()),  # JSON
        ("traceparent", pa.string()),
        ("priority", pa.int32()),
        ("hash", pa.string()),
        ("size", pa.int64()),
        ("body", pa.binary()),
    ]
)

#: a message as the store has it at this moment
MESSAGES = pa.schema(
    [
        ("sequence", pa.int64()),
        ("message_id", pa.string()),
        ("state", pa.string()),
        ("at", MOMENT),
        ("topics", TOPICS),
        ("object", pa.string()),
        ("key", pa.string()),
        ("mime_type", pa.string()),
        ("producer", pa.string()),
        ("hash", pa.string()),
        ("size", pa.int64()),
        ("timestamp", MOMENT),
        ("sent", MOMENT),
        ("same_as", pa.string()),
        ("priority", pa.int32()),
        ("expires_at", MOMENT),
    ]
)

#: a delivery likewise
DELIVERIES = pa.schema(
    [
        ("sequence", pa.int64()),
        ("message_id", pa.string()),
        ("queue", pa.string()),
        ("channel", pa.string()),
        ("slot", pa.int32()),
        ("state", pa.string()),
        ("attempt", pa.int32()),
        ("consumer", pa.string()),
        ("reason", pa.string()),
        ("at", MOMENT),  # when its message was logged
        ("changed_at", MOMENT),
        ("due_at", MOMENT),
        ("named", pa.string()),
        ("destination_code", pa.int32()),
    ]
)

#: a message in L, with all that deciding where it goes needs
UNDECIDED = pa.schema(
    [
        ("sequence", pa.int64()),
        ("message_id", pa.string()),
        ("at", MOMENT),
        ("topics", TOPICS),
        ("object", pa.string()),
        ("key", pa.string()),
        ("mime_type", pa.string()),
        ("producer", pa.string()),
        ("size", pa.int64()),
        ("timestamp", MOMENT),
        ("sent", MOMENT),
        ("encoding", pa.string()),
        ("meta", pa.string()),  # JSON
        ("ignore", TOPICS),  # paths; null where its content is not compared
        ("body", pa.binary()),  # null where it cannot be read, and then `failure` says why
        ("failure", pa.string()),
    ]
)

#: what GET /v1/tables/{name} gives
LIVE = {"messages": MESSAGES, "deliveries": DELIVERIES}
