"""Webhooks out: what waits in a queue or channel is posted to the URL that its consumer registered.

    broker ── fetch ──▶ endpoint ── POST, signed ──▶ receiver
       ▲                  │  breaker, pace, leases      │
       '── confirm ◀── judge(answer) ◀── 2xx, Waypost-Confirm, Retry-After, silence …

    addresses  which IP addresses may be called          pure
    signing    Standard Webhooks                         pure
    answers    what an answer means for the delivery     pure
    breaker    whether the endpoint is up                pure
    crew       who tries next what failed at one of several
    sending    one request: resolve, check, post, read   the only file that knows aiohttp
    endpoint   one consumer: fetch, send, settle
    pusher     all of them

DESIGN.md, beside this file, says why.
"""

from .pusher import Pusher

__all__ = ["Pusher"]
