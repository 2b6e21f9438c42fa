"""Consumers that are registered: who works for a queue or listens to a channel, and how it is reached.

One with a `url` gets its messages pushed; one without pulls them, and is registered to be counted (`complete: all` makes a
slot for each) and to be seen by the routing function. PUT replaces: what is left out takes its default.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any
from urllib.parse import urlsplit

import msgspec

from .destinations import Kind
from .errors import RequestInvalid
from .instants import SECOND, parse_span, span_text
from .names import check_name
from .topics import any_topic_matches, check_patterns

MOST_CONCURRENCY = 1_000
LONGEST_TIMEOUT = 600 * SECOND
LONGEST_URL = 2_000
#: of a secret, in bytes
SECRET_BYTES = (24, 64)
SECRET_PREFIX = "whsec_"


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    #: where messages are pushed to; None: it pulls
    url: str | None = None
    #: what it consumes: a queue or a channel
    queue: str | None = None
    channel: str | None = None
    #: patterns; none: everything
    topics: tuple[str, ...] = ()
    #: for signing, the newest first; two while one replaces the other
    secrets: tuple[str, ...] = ()
    #: requests at a time
    concurrency: int = 1
    #: requests a second; None: as many as it answers
    rate: float | None = None
    #: how long it may take to answer
    timeout_us: int = 10 * SECOND
    #: at most once: sent and not waited for
    kick: bool = False
    #: nothing is sent while true
    paused: bool = False

    @property
    def kind(self) -> Kind:
        return Kind.QUEUE if self.queue is not None else Kind.CHANNEL

    @property
    def destination(self) -> str:
        """The name of its queue or channel."""
        name = self.queue if self.queue is not None else self.channel
        assert name is not None
        return name

    def wants(self, topics: tuple[str, ...]) -> bool:
        """Whether it is interested in a message of these topics."""
        return not self.topics or any(any_topic_matches(pattern, topics) for pattern in self.topics)


def parse_consumer(given: object, before: Consumer | None = None) -> Consumer:
    """From decoded JSON. A `secret` that is left out stays as it was; a new one stands beside the last one until
    `secret` is given again."""
    if not isinstance(given, dict):
        raise _wrong("a consumer is a JSON object")
    unknown = set(given) - set(_FIELDS)
    if unknown:
        raise _wrong(f"unknown field {str(min(map(str, unknown)))[:60]!r}", f"known: {', '.join(_FIELDS)}")
    fields: dict[str, Any] = {}
    for name, value in given.items():
        fields.update(_FIELDS[name](name, value))
    consumer = Consumer(**fields)
    if (consumer.queue is None) is (consumer.channel is None):
        raise _wrong("a consumer has a queue or a channel, one of them")
    if before is not None and before.secrets:
        if not consumer.secrets:
            consumer = msgspec.structs.replace(consumer, secrets=before.secrets)
        elif len(consumer.secrets) == 1:
            both = dict.fromkeys([*consumer.secrets, before.secrets[0]])
            consumer = msgspec.structs.replace(consumer, secrets=tuple(both))
    return consumer


def consumer_json(consumer: Consumer) -> dict[str, Any]:
    """Every field as PUT would take it, but the secrets: of those only how many there are."""
    return {
        "url": consumer.url,
        "queue": consumer.queue,
        "channel": consumer.channel,
        "topics": list(consumer.topics),
        "secrets": len(consumer.secrets),
        "concurrency": consumer.concurrency,
        "rate": consumer.rate,
        "timeout": span_text(consumer.timeout_us),
        "kick": consumer.kick,
        "paused": consumer.paused,
    }


def _wrong(detail: str, hint: str | None = None) -> RequestInvalid:
    return RequestInvalid(
        detail, hint or '{"queue": "orders", "url": "https://example.com/hook"}', "CONSUMER_INVALID"
    )


def _url(name: str, value: object) -> dict[str, Any]:
    if value is None:
        return {"url": None}
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_URL or not value.isprintable():
        raise _wrong(f"url is text of at most {LONGEST_URL} printable characters")
    try:
        parts = urlsplit(value)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or " " in value:
        raise _wrong(f"not an http or https URL: {value[:80]!r}")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise _wrong("a url here has no user, password or fragment", "sign with `secret` instead")
    return {"url": value}


def _destination(name: str, value: object) -> dict[str, Any]:
    if value is None:
        return {name: None}
    if not isinstance(value, str):
        raise _wrong(f"{name} is the name of a {name}")
    return {name: check_name(value, name)}


def _topics(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, list) or not all(isinstance(topic, str) for topic in value):
        raise _wrong("topics is a list of topics", '{"topics": ["fruit.*"]}')
    return {"topics": check_patterns(value)}


def _secret(name: str, value: object) -> dict[str, Any]:
    """One, or a list of two: the new one first."""
    given = value if isinstance(value, list) else [value]
    if not 1 <= len(given) <= 2:
        raise _wrong("secret is one secret, or a list of two while one replaces the other", _SECRET_HINT)
    return {"secrets": tuple(check_secret(secret) for secret in given)}


def check_secret(secret: object) -> str:
    """In the form of Standard Webhooks."""
    shortest, longest = SECRET_BYTES
    if isinstance(secret, str):
        try:
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if secret.startswith(SECRET_PREFIX) and shortest <= len(key) <= longest:
            return secret
    raise _wrong(
        f"a secret is {SECRET_PREFIX} and then {shortest} to {longest} bytes in base64", _SECRET_HINT
    )


_SECRET_HINT = "python -c \"import base64, os; print('whsec_' + base64.b64encode(os.urandom(32)).decode())\""


def _concurrency(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_CONCURRENCY:
        raise _wrong(f"concurrency is a whole number from 1 to {MOST_CONCURRENCY}", '{"concurrency": 4}')
    return {"concurrency": value}


def _rate(name: str, value: object) -> dict[str, Any]:
    return {"rate": None if value is None else check_rate(value)}


def check_rate(value: object) -> float:
    """So many a second."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.001 <= value <= 1_000_000:
        raise RequestInvalid(
            "rate is a number a second, from 0.001 to 1000000", '{"rate": 50}', "RATE_INVALID"
        )
    return float(value)


def _timeout(name: str, value: object) -> dict[str, Any]:
    timeout_us = parse_span(value, name)
    if not SECOND // 10 <= timeout_us <= LONGEST_TIMEOUT:
        raise _wrong("timeout is between 0.1 and 600 seconds", '{"timeout": 10}')
    return {"timeout_us": timeout_us}


def _flag(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise _wrong(f"{name} is true or false")
    return {name: value}


#: how each field of the JSON is read
_FIELDS: dict[str, Any] = {
    "url": _url,
    "queue": _destination,
    "channel": _destination,
    "topics": _topics,
    "secret": _secret,
    "concurrency": _concurrency,
    "rate": _rate,
    "timeout": _timeout,
    "kick": _flag,
    "paused": _flag,
}
