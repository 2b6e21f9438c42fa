"""What an answer means: for the delivery, and for the endpoint.

    answer                                   the delivery                              the endpoint
    Waypost-Confirm: invalid                 I                                         is up
    Waypost-Confirm: not-interested          left to others                            is up
    Waypost-Confirm: retry                   R, after Retry-After or the back-off      is up
    2xx                                      S                                         is up
    410                                      back to the queue, not counted            is paused, durably
    429, 503 with Retry-After                back to the queue, not counted            is left alone until then
    any other 5xx                            R, after the back-off                     outage
    3xx, 4xx                                 R, after the back-off                     is up
    none in time, or it broke off            R, after the back-off                     outage
    no connection, or a refused address      back to the queue, not counted            outage

The header decides, whatever the status, where it names a failure. `Waypost-Confirm: success`, and a word that is not
known, leave it to the status: what was answered with 2xx has been handled, and must not come again because of a word;
what was answered with 500 has not. An unknown word stands in the reason. What an outage does to the delivery is the
breaker's to say: while it is open, nothing is counted. This file knows no network.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum, auto

import msgspec

from ..delivery import Outcome
from ..instants import SECOND

#: the longest that a Retry-After is taken at its word
LONGEST_WAIT_SECONDS = 3_600.0
LONGEST_REASON = 200
#: what a byte that is no UTF-8 becomes
_NO_SIGN = "\ufffd"

#: the words that decide alone
_FAILURES = {outcome.value: outcome for outcome in (Outcome.INVALID, Outcome.NOT_INTERESTED, Outcome.RETRY)}


class Answer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What came back."""

    status: int
    confirm: str | None = None
    retry_after: str | None = None
    #: how its body begins
    text: str = ""


class Silence(msgspec.Struct, frozen=True, gc=False):
    """What did not come back."""

    reason: str
    #: whether the receiver may have seen the request
    sent: bool


class Health(Enum):
    """What an attempt says of the endpoint."""

    UP = auto()
    OUTAGE = auto()
    #: it wants to be left alone for a while
    THROTTLED = auto()
    #: it wants nothing any more
    GONE = auto()


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    health: Health
    #: of the delivery, if it is counted at all
    outcome: Outcome = Outcome.RETRY
    #: of a failure; with a success, what was odd about it
    reason: str | None = None
    #: before the next attempt; None: the policy's back-off
    delay_us: int | None = None
    #: whether the receiver may have seen it
    sent: bool = True


def judge(got: Answer | Silence, now: float) -> Verdict:
    """`now` is the wall's, in seconds: a Retry-After may name a moment."""
    if isinstance(got, Silence):
        return Verdict(health=Health.OUTAGE, reason=got.reason, sent=got.sent)
    word = None if got.confirm is None else got.confirm.strip().lower()
    unknown = None
    if word is not None and word != Outcome.SUCCESS:
        outcome = _FAILURES.get(word)
        if outcome is not None:
            delay_us = _wait_us(got, now) if outcome is Outcome.RETRY else None
            return Verdict(health=Health.UP, outcome=outcome, reason=_reason(got), delay_us=delay_us)
        unknown = f"{got.status}: unknown Waypost-Confirm: {word[:40]}"
    if 200 <= got.status < 300:
        return Verdict(health=Health.UP, outcome=Outcome.SUCCESS, reason=unknown)
    reason = unknown or _reason(got)
    if got.status == 410:
        return Verdict(health=Health.GONE, reason=reason)
    if got.status in (429, 503) and (wait_us := _wait_us(got, now)) is not None:
        return Verdict(health=Health.THROTTLED, reason=reason, delay_us=wait_us)
    return Verdict(health=Health.OUTAGE if got.status >= 500 else Health.UP, reason=reason)


def harmless(text: str, most: int = LONGEST_REASON) -> str:
    """What an outsider said, fit to be stored, logged and shown: no surrogates (aiohttp's form of bytes that are no UTF-8),
    nothing that moves a cursor, one line, short."""
    # It may be very long; what stands behind so much is not looked for.
    shown = (
        _NO_SIGN if "\ud800" <= sign <= "\udfff" else sign if sign.isprintable() else " "
        for sign in text[: 4 * most]
    )
    return " ".join("".join(shown).split())[:most]


def retry_after_us(text: str, now: float) -> int | None:
    """Seconds, or an HTTP date; capped. None: neither."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        seconds = float(text[:12])
    else:
        try:
            moment = parsedate_to_datetime(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            seconds = (moment - datetime.fromtimestamp(now, UTC)).total_seconds()
        except (ValueError, OverflowError, TypeError, IndexError):  # the parser of dates raises them all
            return None
    return round(max(0.0, min(LONGEST_WAIT_SECONDS, seconds)) * SECOND)


def _wait_us(got: Answer, now: float) -> int | None:
    return None if got.retry_after is None else retry_after_us(got.retry_after, now)


def _reason(got: Answer) -> str:
    if 300 <= got.status < 400:
        return f"{got.status}: redirects are not followed"
    return f"{got.status}: {got.text}"[:LONGEST_REASON] if got.text else str(got.status)
