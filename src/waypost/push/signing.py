"""Standard Webhooks: how a receiver knows that a request is ours, whole, and not an old one sent again.

    webhook-id: 0190e4b2-…                     the message's id, the same at every attempt
    webhook-timestamp: 1800000000              seconds; of this attempt
    webhook-signature: v1,<base64> v1,<base64> HMAC-SHA256 of "id.timestamp.body", one for each secret

While a consumer has two secrets, each request carries two signatures, so its receiver can change from one to the other
at any moment.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence

from ..consumers import SECRET_PREFIX, check_secret


def key_of(secret: str) -> bytes:
    """The bytes to sign with. Raises RequestInvalid, which never repeats the secret."""
    return base64.b64decode(check_secret(secret).removeprefix(SECRET_PREFIX))


def signature(keys: Sequence[bytes], id: str, timestamp: int, body: bytes) -> str:
    signed = b"%s.%d.%s" % (id.encode(), timestamp, body)
    return " ".join("v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys)
