"""What is said of a message in the headers of its request: the same words as in the answer to a fetch."""

from __future__ import annotations

from ..commands import Fetched
from ..wire import header_text


def headers_of(message: Fetched, consumer: str) -> dict[str, str]:
    """All but those that sign it."""
    envelope = message.envelope
    headers = {
        "webhook-id": message.id,
        "X-Message-Id": message.id,
        "Waypost-Attempt": str(message.attempt),
        "Waypost-Consumer": consumer,
    }
    if envelope.mime_type is not None:
        headers["Content-Type"] = envelope.mime_type
    if envelope.encoding is not None:
        headers["Content-Encoding"] = envelope.encoding
    if envelope.topics:
        headers["Waypost-Topics"] = header_text(",".join(envelope.topics))
    if envelope.object is not None:
        headers["Waypost-Object"] = envelope.object
    if envelope.key is not None:
        headers["Waypost-Key"] = header_text(envelope.key)
    for name, value in envelope.meta:
        headers[f"Waypost-Meta-{name}"] = header_text(value)
    if envelope.traceparent is not None:
        headers["traceparent"] = envelope.traceparent
    return headers
