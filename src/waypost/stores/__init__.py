"""Stores: the homes of messages, each behind the `Store` protocol and chosen by URL."""

from __future__ import annotations

#: how long an idempotency key keeps its answer
IDEMPOTENCY_KEPT_US = 24 * 3_600 * 1_000_000
#: what one fetch brings at most, though always one message
FETCH_BYTES = 16 << 20
#: how many rows a fetch filtered by topic looks at
TOPIC_SCAN = 1_000
