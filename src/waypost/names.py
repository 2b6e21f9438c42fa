"""Names: what queues, channels, objects, consumers, topics and ids may be called.

A name is `[a-z0-9][a-z0-9_.-]*`, at most 200 bytes. A topic is a name up to its first dot (its root) and then
any printable text but comma, `*` and `#`, at most 250 bytes in all.
"""

from __future__ import annotations

import re

from .errors import RequestInvalid

#: queues that MQ-Core's short paths cannot name, because a longer path starts with the word
RESERVED = frozenset({"in", "log", "queue", "channel", "rpc", "v1", "console", "health", "metrics"})
#: the consumer of those who give no name
ANONYMOUS = "anonymous"
#: the queue of messages that name none
DEFAULT_QUEUE = "default"

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
_ID = re.compile(r"[a-z0-9-]{1,50}")


def check_name(name: str, what: str = "queue") -> str:
    if not _NAME.fullmatch(name):
        raise RequestInvalid(
            f"not a name for a {what}: {name[:80]!r}",
            "names are lower-case letters, digits, '_', '.', '-', start with a letter or digit, and have at most 200 bytes",
            "NAME_INVALID",
        )
    return name


def check_short_queue(name: str) -> str:
    """A queue in one of MQ-Core's paths."""
    if name in RESERVED:
        raise RequestInvalid(
            f"{name!r} is a reserved word",
            "use another name, or /v1/queues and /in for this one",
            "NAME_RESERVED",
        )
    return check_name(name)


def check_own_id(id: str) -> str:
    if not _ID.fullmatch(id):
        raise RequestInvalid(
            f"not a message id: {id[:80]!r}", "ids are 1 to 50 of a-z, 0-9 and '-'", "ID_INVALID"
        )
    return id


def root_of(topic: str) -> str:
    return topic.partition(".")[0]


def check_topic(topic: str) -> str:
    reason = None
    if not topic or len(topic.encode("utf-8", "surrogatepass")) > 250:
        reason = "a topic has 1 to 250 bytes"
    elif not _NAME.fullmatch(root_of(topic)):
        reason = "what stands before the first dot is a name: lower-case letters, digits, '_', '-'"
    elif not topic.isprintable() or any(sign in topic for sign in ",*#"):
        reason = "after the first dot any printable text but comma, '*' and '#'"
    if reason is not None:
        raise RequestInvalid(f"not a topic: {topic[:80]!r}", reason, "TOPIC_INVALID")
    return topic
