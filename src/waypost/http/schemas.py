"""What bodies look like, in JSON Schema, for /v1/openapi.json."""

from __future__ import annotations

from typing import Any

from waypost.acts import MOST_CHOSEN
from waypost.consumers import MOST_CONCURRENCY
from waypost.delivery import Outcome
from waypost.policy import DEFAULT, policy_json
from waypost.topics import MOST_PATTERNS
from waypost.wire import RESTING, RESTING_IN_CHANNELS

Schema = dict[str, Any]

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"

TEXT: Schema = {"type": "string"}
MAYBE_TEXT: Schema = {"type": ["string", "null"]}
COUNT: Schema = {"type": "integer", "minimum": 0}
MAYBE_COUNT: Schema = {"type": ["integer", "null"], "minimum": 0}
FLAG: Schema = {"type": "boolean"}
INSTANT: Schema = {"type": "string", "format": "date-time"}
MAYBE_INSTANT: Schema = {"type": ["string", "null"], "format": "date-time"}
#: seconds, or text such as 5m
SPAN: Schema = {
    "anyOf": [
        {"type": "number", "minimum": 0, "maximum": 3_000_000_000},
        {"type": "string", "pattern": "^[0-9]{1,9}(\\.[0-9]{1,6})?(ms|s|m)?$"},
    ]
}
LEASE: Schema = {
    "anyOf": [
        {"type": "number", "minimum": 0.001, "maximum": 43_200},
        {"type": "string", "pattern": "^[1-9][0-9]{0,2}(ms|s|m)?$"},
    ]
}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9][a-z0-9_.-]{0,199}$"}
LETTER: Schema = {"type": "string", "pattern": "^[LUQFSKREINOTCX]$"}
#: limits are in bytes, which JSON Schema cannot say: so many characters fit in any script
TOPIC: Schema = {
    "type": "string",
    "pattern": r"^[a-z0-9][a-z0-9_-]*(\.[^,*#\x00-\x1f\x7f-\xa0]*)?$",
    "maxLength": 60,
}
TOPICS: Schema = {"type": "array", "items": TEXT}
ID: Schema = {"type": "string", "pattern": "^[a-z0-9-]{1,50}$"}
PRIORITY: Schema = {"type": "integer", "minimum": 0, "maximum": 9}
KEY: Schema = {"type": "string", "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$", "minLength": 1, "maxLength": 250}
PRODUCER: Schema = KEY | {"maxLength": 50}
PRINTABLE: Schema = {"type": "string", "pattern": "^[ -~]+$", "minLength": 1, "maxLength": 255}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def record(properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": properties,
        "additionalProperties": False,
    }


def given(properties: dict[str, Schema], required: tuple[str, ...] = ()) -> Schema:
    """An object that a client sends: most of it may be left out."""
    return record(properties, tuple(name for name in properties if name not in required))


def lines(item: str) -> Schema:
    """Newline JSON: modelled as the array of its lines."""
    return {"type": "array", "items": ref(item)}


def results(item: str) -> Schema:
    return record({"results": {"type": "array", "items": ref(item)}})


_LIMIT: Schema = {"type": ["integer", "null"], "minimum": 1, "maximum": 2**62 - 1}
_POLICY: dict[str, Schema] = {
    "lease": LEASE,
    "retries": {"type": "integer", "minimum": 1, "maximum": 9},
    "complete": {
        "anyOf": [{"enum": ["any", "all", "per_topic"]}, {"type": "integer", "minimum": 0, "maximum": 100}]
    },
    "order": {"enum": ["fifo", "key"]},
    "latestOnly": FLAG,
    "kick": FLAG,
    "ttl": {"anyOf": [{"type": "null"}, SPAN]},
    "backoff": given({"base": SPAN, "cap": SPAN}),
    "maxMessages": _LIMIT,
    "maxBytes": _LIMIT,
    "keep": SPAN,
    "dead": {"anyOf": [{"type": "null"}, NAME]},
    "paused": FLAG,
}
#: spans as they are given back: days, hours and minutes where they are whole
_SPAN_OUT: Schema = {"type": ["number", "string"]}
_POLICY_OUT = _POLICY | {
    "lease": _SPAN_OUT,
    "keep": _SPAN_OUT,
    "ttl": {"type": ["number", "string", "null"]},
    "backoff": record({"base": _SPAN_OUT, "cap": _SPAN_OUT}),
}
_PATTERN = TOPIC | {
    "pattern": r"^(\*|[a-z0-9][a-z0-9_-]*(\.[^,*#\x00-\x1f\x7f-\xa0]*)?(\.\*)?)$",
}
_PATTERNS: Schema = {"type": "array", "items": _PATTERN, "maxItems": MOST_PATTERNS}
_PATH: Schema = {"type": "string", "pattern": r"^\$(\.[A-Za-z0-9_]+|\[\*\]|\[[0-9]{1,9}\])+$"}
_RATE: Schema = {"type": ["number", "null"], "minimum": 0.001, "maximum": 1_000_000}
SECRET: Schema = {"type": "string", "pattern": "^whsec_[A-Za-z0-9+/]{32,86}={0,2}$"}


def _figures(letters: tuple[str, ...]) -> Schema:
    return record(
        {
            "depth": COUNT,
            "states": record({letter: COUNT for letter in letters}),
            "ready": COUNT,
            "bytes": COUNT,
        }
    )


_BODY: dict[str, Schema] = {"body": MAYBE_TEXT, "bodyBase64": TEXT}
_META: Schema = {"type": "object", "additionalProperties": TEXT}
_ABOUT: dict[str, Schema] = {
    "topics": TOPICS,
    "object": MAYBE_TEXT,
    "key": MAYBE_TEXT,
    "mimeType": MAYBE_TEXT,
}
_EVENT_OF_L: dict[str, Schema] = {
    **_ABOUT,
    "producer": MAYBE_TEXT,
    "hash": MAYBE_TEXT,
    "size": COUNT,
    "timestamp": MAYBE_INSTANT,
    "sent": MAYBE_INSTANT,
    "sameAs": TEXT,
    **_BODY,
}
_RECEIPTS: dict[str, Schema] = {
    "receipts": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 10_000},
    "receipt": TEXT,
}
_ONE_OR_MANY: Schema = {"oneOf": [{"required": ["receipts"]}, {"required": ["receipt"]}]}

_MAYBE_NAME: Schema = {"anyOf": [{"type": "null"}, NAME]}
_COUNTS: Schema = {"type": "object", "propertyNames": LETTER, "additionalProperties": COUNT}
#: deliveries chosen one by one
_CHOSEN: dict[str, Schema] = {
    "deliveries": {"type": "array", "items": ref("Chosen"), "minItems": 1, "maxItems": MOST_CHOSEN},
    "dryRun": FLAG,
    "states": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[LUQFSKREINOTCX]+$"}]},
    "asOf": MAYBE_INSTANT,
}

SCHEMAS: dict[str, Schema] = {
    "Published": record({"id": TEXT, "state": LETTER, "sameAs": TEXT}, ("sameAs",)),
    "PublishedMany": results("Published"),
    "NewMessage": given(
        {
            "topics": {"type": "array", "items": TOPIC, "maxItems": 100},
            "object": NAME,
            "queue": NAME,
            "key": KEY,
            "mimeType": PRINTABLE,
            "timestamp": INSTANT,
            "sent": INSTANT,
            "delay": SPAN,
            "ttl": SPAN,
            "priority": PRIORITY,
            "body": TEXT,
            "bodyBase64": {"type": "string", "pattern": "^([A-Za-z0-9+/]{4})*$", "contentEncoding": "base64"},
            "id": ID,
            "producer": PRODUCER,
            "force": FLAG,
            "idempotencyKey": PRINTABLE,
            "meta": {
                "type": "object",
                "propertyNames": {"pattern": "^[a-z0-9][a-z0-9_.-]{0,99}$"},
                "additionalProperties": TEXT,
            },
            "encoding": PRINTABLE,
            "traceparent": TEXT,
        }
    )
    | {"oneOf": [{"required": ["body"]}, {"required": ["bodyBase64"]}]},
    "FetchedMany": record(
        {
            "messages": {
                "type": "array",
                "items": record(
                    {
                        "id": TEXT,
                        "receipt": TEXT,
                        "attempt": COUNT,
                        **_ABOUT,
                        "created": INSTANT,
                        **_BODY,
                        "encoding": TEXT,
                        "meta": _META,
                        "traceparent": TEXT,
                    },
                    ("body", "bodyBase64", "encoding", "meta", "traceparent"),
                ),
            }
        }
    ),
    "Confirm": given(
        {
            **_RECEIPTS,
            "outcome": {"enum": [outcome.value for outcome in Outcome]},
            "reason": MAYBE_TEXT,
            "delay": {"anyOf": [{"type": "null"}, SPAN]},
        }
    )
    | _ONE_OR_MANY,
    "Settled": record(
        {"receipt": TEXT, "id": TEXT, "state": LETTER, "stale": FLAG}, ("id", "state", "stale")
    ),
    "SettledMany": results("Settled"),
    "Extend": given({**_RECEIPTS, "lease": {"anyOf": [{"type": "null"}, LEASE]}}) | _ONE_OR_MANY,
    "Extended": record({"receipt": TEXT, "until": INSTANT, "stale": FLAG}, ("until", "stale")),
    "ExtendedMany": results("Extended"),
    "Event": record(
        {
            "offset": COUNT,
            "at": INSTANT,
            "messageId": TEXT,
            "sequence": COUNT,
            "queue": MAYBE_TEXT,
            "channel": MAYBE_TEXT,
            "slot": MAYBE_COUNT,
            "fromState": {"anyOf": [{"type": "null"}, LETTER]},
            "toState": LETTER,
            "attempt": MAYBE_COUNT,
            "consumer": MAYBE_TEXT,
            "reason": MAYBE_TEXT,
            "durationMs": MAYBE_COUNT,
            **_EVENT_OF_L,
        },
        tuple(_EVENT_OF_L),
    ),
    "Policy": given(_POLICY) | {"examples": [policy_json(DEFAULT)]},
    "Queue": record({"name": NAME, **_POLICY_OUT, "created": INSTANT, "figures": _figures(RESTING)}),
    "Queues": record({"queues": {"type": "array", "items": ref("Queue")}}),
    "NewChannel": given(
        {
            "topics": _PATTERNS | {"minItems": 1},
            "from": {"anyOf": [{"const": "now"}, COUNT, INSTANT]},
            **_POLICY,
        },
        ("topics",),
    ),
    "Channel": record(
        {
            "name": NAME,
            "topics": TOPICS,
            **_POLICY_OUT,
            "created": INSTANT,
            "figures": _figures(RESTING_IN_CHANNELS),
            "job": MAYBE_TEXT,
        },
        ("job",),
    ),
    "Channels": record({"channels": {"type": "array", "items": ref("Channel")}}),
    "Depths": record(
        {
            "name": NAME,
            "at": INSTANT,
            "offset": COUNT,
            "figures": record(
                {
                    "depth": COUNT,
                    "states": record({letter: COUNT for letter in RESTING_IN_CHANNELS}, ("N",)),
                }
            ),
        }
    ),
    "ObjectPolicy": given(
        {
            "unchanged": {
                "anyOf": [
                    {"type": "null"},
                    given({"ignore": {"type": "array", "items": _PATH}, "window": SPAN}),
                ]
            },
            "route": {"enum": ["inline", "spark"]},
        }
    ),
    "Object": record(
        {
            "name": NAME,
            "unchanged": {
                "anyOf": [
                    {"type": "null"},
                    record({"ignore": {"type": "array", "items": TEXT}, "window": _SPAN_OUT}),
                ]
            },
            "route": {"enum": ["inline", "spark"]},
            "figures": record(
                {"unchanged": {"type": "object", "additionalProperties": COUNT}, "waiting": COUNT}
            ),
        }
    ),
    "Objects": record({"objects": {"type": "array", "items": ref("Object")}}),
    "NewConsumer": given(
        {
            "url": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^https?://"}]},
            "queue": NAME,
            "channel": NAME,
            "topics": _PATTERNS,
            "secret": {"anyOf": [SECRET, {"type": "array", "items": SECRET, "minItems": 1, "maxItems": 2}]},
            "concurrency": {"type": "integer", "minimum": 1, "maximum": MOST_CONCURRENCY},
            "rate": _RATE,
            "timeout": {"type": "number", "minimum": 0.1, "maximum": 600},
            "kick": FLAG,
            "paused": FLAG,
        }
    )
    | {"oneOf": [{"required": ["queue"]}, {"required": ["channel"]}]},
    "Consumer": record(
        {
            "name": NAME,
            "url": MAYBE_TEXT,
            "queue": MAYBE_TEXT,
            "channel": MAYBE_TEXT,
            "topics": TOPICS,
            "secrets": COUNT,
            "secret": SECRET,
            "concurrency": COUNT,
            "rate": {"type": ["number", "null"]},
            "timeout": _SPAN_OUT,
            "kick": FLAG,
            "paused": FLAG,
            "created": INSTANT,
            "figures": {"anyOf": [{"type": "null"}, ref("PushFigures")]},
        },
        ("secret",),
    ),
    "Consumers": record({"consumers": {"type": "array", "items": ref("Consumer")}}),
    "PushFigures": record(
        {
            "sent": COUNT,
            "succeeded": COUNT,
            "failed": COUNT,
            "inFlight": COUNT,
            "breaker": {"enum": ["closed", "open", "half-open"]},
            "lastError": MAYBE_TEXT,
            "lastErrorAt": MAYBE_INSTANT,
            "lastSuccess": MAYBE_INSTANT,
        }
    ),
    "Position": record({"offset": COUNT | {"maximum": 2**62 - 1}}),
    "Spectator": record({"name": NAME, "offset": COUNT, "lag": COUNT, "at": INSTANT}),
    "Spectators": record({"spectators": {"type": "array", "items": ref("Spectator")}}),
    "Accepted": record({"job": TEXT, "matched": COUNT}),
    "Matched": record({"matched": COUNT, "states": _COUNTS}),
    "Job": record(
        {
            "id": TEXT,
            "kind": {"enum": ["redrive", "replay", "cancel", "purge", "delete", "backfill"]},
            "matched": COUNT,
            "done": COUNT,
            "consumer": MAYBE_TEXT,
            "rate": {"type": ["number", "null"]},
            "started": INSTANT,
            "ended": MAYBE_INSTANT,
        }
    ),
    "Redrive": {
        "anyOf": [
            given({"filter": TEXT, "dryRun": FLAG, "rate": _RATE, "consumer": _MAYBE_NAME}, ("filter",)),
            given({**_CHOSEN, "consumer": _MAYBE_NAME}, ("deliveries",)),
        ]
    },
    "Cancel": {
        "anyOf": [
            given({"filter": TEXT, "dryRun": FLAG, "rate": _RATE}, ("filter",)),
            given(_CHOSEN, ("deliveries",)),
        ]
    },
    "Chosen": given({"id": ID, "queue": _MAYBE_NAME, "channel": _MAYBE_NAME}, ("id",)),
    "Acted": record(
        {
            "at": INSTANT,
            "matched": COUNT,
            "states": _COUNTS,
            "left": _COUNTS,
            "changed": COUNT,
            "unable": COUNT,
            "unknown": {"type": "array", "items": ref("Chosen")},
            "sequences": {"type": "array", "items": MAYBE_COUNT},
        }
    ),
    "Upload": record({"upload": TEXT, "rows": COUNT, "hash": TEXT}),
    "NewBatch": given(
        {
            "uploads": {"type": "array", "items": TEXT, "maxItems": 10_000},
            "rows": COUNT | {"maximum": 10**18 - 1},
            "hash": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
        },
        ("uploads", "rows", "hash"),
    ),
    "Batch": record(
        {
            "query": TEXT,
            "batch": COUNT,
            "rows": COUNT,
            "hash": TEXT,
            "entered": COUNT,
            "accepted": INSTANT,
            "ended": MAYBE_INSTANT,
        }
    ),
    "Delivery": record(
        {
            "messageId": TEXT,
            "sequence": COUNT,
            "queue": MAYBE_TEXT,
            "channel": MAYBE_TEXT,
            "slot": COUNT,
            "state": LETTER,
            "attempt": COUNT,
            "consumer": MAYBE_TEXT,
            "named": MAYBE_TEXT,
            "reason": MAYBE_TEXT,
            "created": INSTANT,
            "changed": INSTANT,
            "due": MAYBE_INSTANT,
        }
    ),
    "Deliveries": record({"deliveries": {"type": "array", "items": ref("Delivery")}, "next": MAYBE_COUNT}),
    "Message": record(
        {
            "id": TEXT,
            "sequence": COUNT,
            **_ABOUT,
            "encoding": MAYBE_TEXT,
            "meta": _META,
            "producer": MAYBE_TEXT,
            "traceparent": MAYBE_TEXT,
            "priority": COUNT,
            "hash": TEXT,
            "size": COUNT,
            "state": LETTER,
            "sameAs": MAYBE_TEXT,
            "queued": FLAG,
            "archived": FLAG,
            "delivered": FLAG,
            "confirmed": FLAG,
            "success": FLAG,
            "timestamp": MAYBE_INSTANT,
            "sent": MAYBE_INSTANT,
            "created": INSTANT,
            "modified": INSTANT,
            "firstFetched": MAYBE_INSTANT,
            "processed": MAYBE_INSTANT,
            "completed": MAYBE_INSTANT,
            "failed": MAYBE_INSTANT,
            "expires": MAYBE_INSTANT,
            "wait": {"type": ["number", "null"]},
            "processing": {"type": ["number", "null"]},
            "topicCount": COUNT,
            "confirmedCount": COUNT,
            "consumed": {
                "type": "array",
                "items": record(
                    {
                        "consumerId": MAYBE_TEXT,
                        "fetchedTS": INSTANT,
                        "confirmedTS": MAYBE_INSTANT,
                        "durationMS": MAYBE_COUNT,
                    }
                ),
            },
            "missing": {
                "type": "array",
                "items": record({"queue": TEXT, "slot": COUNT, "consumer": MAYBE_TEXT}),
            },
            "deliveries": {"type": "array", "items": ref("Delivery")},
            "journey": {"type": "array", "items": ref("Event")},
            **_BODY,
        },
        ("body", "bodyBase64"),
    ),
    "PayloadErased": record({"id": TEXT, "erased": FLAG}),
    "Lake": record(
        {
            "lake": MAYBE_TEXT,
            "store": TEXT,
            "oldest": COUNT,
            "sealed": MAYBE_COUNT,
            "head": COUNT,
            "at": MAYBE_INSTANT,
            "lag": COUNT,
            "sealing": {
                "anyOf": [
                    {"type": "null"},
                    record(
                        {
                            "here": FLAG,
                            "running": FLAG,
                            "process": MAYBE_COUNT,
                            "events": COUNT,
                            "seconds": {"type": "number"},
                            "last": MAYBE_INSTANT,
                            "failures": COUNT,
                            "erasures": COUNT,
                        }
                    ),
                ]
            },
            "failure": MAYBE_TEXT,
        }
    ),
    "Undecided": record(
        {
            "sequence": COUNT,
            "id": TEXT,
            "created": INSTANT,
            "topics": TOPICS,
            "object": TEXT,
            "key": MAYBE_TEXT,
            "mimeType": MAYBE_TEXT,
            "producer": MAYBE_TEXT,
            "size": COUNT,
            "timestamp": MAYBE_INSTANT,
            "sent": MAYBE_INSTANT,
            "encoding": MAYBE_TEXT,
            "meta": {"type": "object", "additionalProperties": TEXT},
            "ignore": {"anyOf": [{"type": "null"}, {"type": "array", "items": TEXT}]},
            "body": MAYBE_TEXT,
            "bodyBase64": TEXT,
            "failure": TEXT,
        },
        ("body", "bodyBase64", "failure"),
    ),
    "Decision": given(
        {
            "id": ID,
            "content": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "route": given(
                {
                    "option": {"enum": ["once", "onceOnly", "oncePerTopic"]},
                    "consumers": {"type": "array", "items": NAME},
                    "queues": {"type": "array", "items": NAME},
                }
            ),
            "failure": TEXT,
        },
        ("id",),
    ),
    "Decided": record(
        {
            "results": {
                "type": "array",
                "items": {
                    "anyOf": [
                        record({"id": TEXT, "state": LETTER, "applied": FLAG, "sameAs": TEXT}, ("sameAs",)),
                        record(
                            {
                                "id": TEXT,
                                "error": record({"code": TEXT, "detail": TEXT, "hint": MAYBE_TEXT}),
                            }
                        ),
                    ]
                },
            }
        }
    ),
    "LakeSealed": record({"sealed": COUNT}),
    "Stats": {
        "type": "object",
        "required": [
            "version",
            "uptimeSeconds",
            "log",
            "diskBytes",
            "undecided",
            "queues",
            "commits",
            "http",
        ],
    },
    "Health": {"type": "object", "required": ["status"], "properties": {"status": TEXT}},
}
