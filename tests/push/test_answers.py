"""What an answer means; when the breaker opens; how a rate is kept. Pure, with time in the test's hand."""

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waypost.delivery import Outcome
from waypost.push.answers import (
    LONGEST_WAIT_SECONDS,
    Answer,
    Health,
    Silence,
    harmless,
    judge,
    retry_after_us,
)
from waypost.push.breaker import Breaker, Position, Tripping
from waypost.push.pace import Pace

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("answer", "health", "outcome"),
    [
        (Answer(status=200), Health.UP, Outcome.SUCCESS),
        (Answer(status=204), Health.UP, Outcome.SUCCESS),
        (Answer(status=299), Health.UP, Outcome.SUCCESS),
        (Answer(status=200, confirm="invalid"), Health.UP, Outcome.INVALID),
        (Answer(status=422, confirm="Invalid "), Health.UP, Outcome.INVALID),
        (Answer(status=500, confirm="invalid"), Health.UP, Outcome.INVALID),
        (Answer(status=200, confirm="not-interested"), Health.UP, Outcome.NOT_INTERESTED),
        (Answer(status=200, confirm="retry"), Health.UP, Outcome.RETRY),
        (Answer(status=200, confirm="success"), Health.UP, Outcome.SUCCESS),
        (Answer(status=202, confirm=" Success"), Health.UP, Outcome.SUCCESS),
        (Answer(status=500, confirm="success"), Health.OUTAGE, Outcome.RETRY),
        (Answer(status=404, confirm="success"), Health.UP, Outcome.RETRY),
        (Answer(status=200, confirm="maybe"), Health.UP, Outcome.SUCCESS),
        (Answer(status=200, confirm=""), Health.UP, Outcome.SUCCESS),
        (Answer(status=400, confirm="maybe"), Health.UP, Outcome.RETRY),
        (Answer(status=500, confirm="maybe"), Health.OUTAGE, Outcome.RETRY),
        (Answer(status=410, confirm="maybe"), Health.GONE, Outcome.RETRY),
        (Answer(status=429, confirm="maybe", retry_after="3"), Health.THROTTLED, Outcome.RETRY),
        (Answer(status=302), Health.UP, Outcome.RETRY),
        (Answer(status=404), Health.UP, Outcome.RETRY),
        (Answer(status=429), Health.UP, Outcome.RETRY),
        (Answer(status=429, retry_after="soon"), Health.UP, Outcome.RETRY),
        (Answer(status=429, retry_after="3"), Health.THROTTLED, Outcome.RETRY),
        (Answer(status=503, retry_after="3"), Health.THROTTLED, Outcome.RETRY),
        (Answer(status=503), Health.OUTAGE, Outcome.RETRY),
        (Answer(status=500, retry_after="3"), Health.OUTAGE, Outcome.RETRY),
        (Answer(status=410), Health.GONE, Outcome.RETRY),
        (Silence("no answer", sent=True), Health.OUTAGE, Outcome.RETRY),
        (Silence("no connection", sent=False), Health.OUTAGE, Outcome.RETRY),
    ],
)
def test_each_answer_has_its_meaning(answer: Answer | Silence, health: Health, outcome: Outcome) -> None:
    verdict = judge(answer, NOW)
    assert (verdict.health, verdict.outcome) == (health, outcome)


def test_a_retry_may_say_when() -> None:
    assert judge(Answer(status=200, confirm="retry", retry_after="7"), NOW).delay_us == 7_000_000
    assert judge(Answer(status=200, confirm="retry"), NOW).delay_us is None
    assert judge(Answer(status=200, confirm="invalid", retry_after="7"), NOW).delay_us is None


def test_an_unknown_word_stands_in_the_reason() -> None:
    assert judge(Answer(status=200, confirm="maybe"), NOW).reason == "200: unknown Waypost-Confirm: maybe"
    assert judge(Answer(status=400, confirm="maybe"), NOW).reason == "400: unknown Waypost-Confirm: maybe"
    assert judge(Answer(status=200, confirm="success"), NOW).reason is None


def test_the_reason_has_status_and_text_and_is_short() -> None:
    assert judge(Answer(status=500, text="no such table"), NOW).reason == "500: no such table"
    assert len(judge(Answer(status=500, text="x" * 10_000), NOW).reason or "") == 200


def test_what_a_receiver_says_is_made_harmless() -> None:
    assert harmless("no such table") == "no such table"
    assert harmless(" a\r\n\tb\x1b[2J\x00\u202ec\u2028 ") == "a b [2J c"
    assert harmless(b"caf\xe9 \xff".decode(errors="surrogateescape")) == "caf\ufffd \ufffd"
    assert harmless("größer 😀") == "größer 😀"
    assert harmless("x" * 10_000) == "x" * 200
    for text in map(chr, range(0xD7F0, 0xE010)):
        harmless(text).encode()


def test_retry_after_is_seconds_or_a_date_and_has_a_cap() -> None:
    assert retry_after_us("120", NOW) == 120_000_000
    assert retry_after_us(formatdate(NOW + 60, usegmt=True), NOW) == 60_000_000
    assert retry_after_us(formatdate(NOW - 60, usegmt=True), NOW) == 0
    assert retry_after_us("9" * 50, NOW) == LONGEST_WAIT_SECONDS * 1_000_000
    assert retry_after_us("Fri, 31 Dec 9999 23:59:59 GMT", NOW) == LONGEST_WAIT_SECONDS * 1_000_000
    for nonsense in ("", "-1", "1.5", "soon", "٣", "Fri, 99 Foo 2026"):
        assert retry_after_us(nonsense, NOW) is None


#: dates that Python's parser of them gives up on, each in its own way
ODD_DATES = [
    "Wed, 21 Oct 99999999999999999999 07:28:00 GMT",
    "Wed, 21 Oct 2026 99999999999999999999:28:00 GMT",
    "Wed, 21 Oct 2026 07:28:00 +99999999999999999999",
    "Wed, 21 Oct 0 07:28:00 GMT",
    "Fri, 31 Dec 9999 23:59:59 -2359",
    "1 Jan 1 00:00 +2359",
    ", , , ,",
    ",",
    "9" * 5_000 + " Oct 2026 07:28:00 GMT",
]


@pytest.mark.parametrize("text", ODD_DATES)
def test_a_date_that_cannot_be_read_is_no_wait_and_no_error(text: str) -> None:
    for status in (200, 400, 410, 429, 500, 503):
        judge(Answer(status=status, retry_after=text), NOW)
    assert retry_after_us(text, NOW) in (None, 0, LONGEST_WAIT_SECONDS * 1_000_000)


@given(
    st.text(max_size=60) | st.from_regex(r"(Mon, )?\d+ Oct \d+ \d+:\d+(:\d+)? ([+-]\d+|GMT)", fullmatch=True)
)
def test_whatever_stands_in_retry_after_it_is_a_wait_within_the_cap_or_none(text: str) -> None:
    wait_us = retry_after_us(text, NOW)
    assert wait_us is None or 0 <= wait_us <= LONGEST_WAIT_SECONDS * 1_000_000


def breaker(failures: int = 5) -> Breaker:
    return Breaker(Tripping(failures=failures, first_seconds=1, longest_seconds=10))


def test_failures_in_a_row_of_several_messages_open_the_breaker() -> None:
    b = breaker()
    for n in range(5):
        assert b.position(0) is Position.CLOSED
        assert b.outage(f"m{n}", 0, sent=True), "those before count"
    assert b.position(0) is Position.OPEN
    assert not b.outage("m9", 0.1, sent=True), "what was under way does not"
    assert b.position(0.7) is Position.OPEN
    assert b.position(1.0) is Position.HALF_OPEN


def test_an_answer_to_the_probe_closes_it_and_a_failure_doubles_the_pause_up_to_its_cap() -> None:
    b = breaker(1)
    b.outage("a", 0, sent=False)
    at = 0.0
    for pause in (1, 2, 4, 8, 10, 10):
        assert at + 0.75 * pause <= b.until <= at + pause
        at = b.until
        assert b.position(at) is Position.HALF_OPEN
        assert not b.outage("a", at, sent=True), "a probe that fails is not counted"
    b.answered("b", b.until)
    assert b.position(b.until) is Position.CLOSED


def test_a_message_that_fails_alone_does_not_open_it() -> None:
    b = breaker()
    assert all(b.outage("poison", n, sent=True) for n in range(20))
    assert b.position(20) is Position.CLOSED


def test_messages_that_failed_while_others_were_answered_do_not_open_it_later() -> None:
    b = breaker()
    poison = [f"p{n}" for n in range(20)]
    for id in poison:
        b.outage(id, 0, sent=True)
        b.answered("fine-" + id, 0)
    for _ in range(3):
        assert all(b.outage(id, 1, sent=True) for id in poison)
    assert b.position(1) is Position.CLOSED
    for n in range(5):
        b.outage(f"new{n}", 1, sent=True)
    assert b.position(1) is Position.OPEN, "an outage is still seen"


def test_a_message_that_never_left_is_never_counted_and_opens_it_alone() -> None:
    b = breaker()
    assert not any(b.outage("a", 0, sent=False) for _ in range(5))
    assert b.position(0) is Position.OPEN


def test_one_that_is_throttled_while_others_are_not_is_counted() -> None:
    b = breaker()
    assert not b.throttled("a")
    assert not b.throttled("a")
    b.answered("b", 0)
    assert b.throttled("a")
    b.answered("a", 0)
    assert not b.throttled("a")


def test_a_rate_is_kept_and_a_pause_does_not_save_up() -> None:
    pace = Pace(50.0, 0.0)
    sent, now = 0, 0.0
    while now < 10.0:
        n = pace.ready(now)
        pace.take(n, now)
        sent += n
        now += 0.013
    assert 499 <= sent <= 506
    assert pace.ready(1_000.0) == 5
    slow = Pace(0.5, 0.0)
    slow.take(1, 0.0)
    assert slow.ready(1.9) == 0
    assert slow.seconds() == pytest.approx(0.1, abs=0.01)
