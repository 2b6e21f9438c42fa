"""Stores: the homes of messages, each behind the `Store` protocol and chosen by URL."""

from __future__ import annotations

#: how long an idempotency key keeps its answer
IDEMPOTENCY_KEPT_US = 24 * 3_600 * 1_000_000
#: what one fetch brings at most, though always one message
FETCH_BYTES = 16 << 20
#: how many rows a fetch filtered by topic looks at
TOPIC_SCAN = 1_000
#: how long named spectators keep the log from being trimmed
SPECTATORS_HOLD_US = 30 * 86_400 * 1_000_000
#: of a routing function's failure, the end is kept
LONGEST_FAILURE = 4_000
#: how long an upload waits for its batch
UPLOAD_KEPT_US = 3_600 * 1_000_000
#: how long a batch that has entered is known
BATCH_KEPT_US = 30 * 86_400 * 1_000_000
