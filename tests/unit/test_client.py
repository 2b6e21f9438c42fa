"""The client's and the command line's decisions, without a broker."""

import time
from datetime import date, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from waypost.cli.asking import as_instant, as_meant, is_offset
from waypost.cli.messages import guess_type
from waypost.cli.output import size, span
from waypost.cli.selections import filter_of
from waypost.client import Client, Invalid, NewMessage, NotInterested, Retry, Unreachable
from waypost.client.forms import encode_body, instant, line_of
from waypost.client.forms import span as wire_span
from waypost.client.transport import path, refusal, wait_before_repeat
from waypost.client.worker import LONGEST_REASON, verdict_on
from waypost.delivery import Outcome
from waypost.errors import Busy, QueueFull, QueueNotFound, Refused, RequestInvalid, StoreUnusable
from waypost.stores.opening import described, open_store, parse_store_url


def problem(code: str, status: int, retry_after: str | None = None) -> Refused:
    body = {"status": status, "code": code, "title": "T", "detail": "what", "hint": "how"}
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return refusal(status, headers, msgspec.json.encode(body))


# ── repeats ─────────────────────────────────────────────────────────────────────────────────────


def test_what_was_never_sent_is_always_sent_again() -> None:
    assert wait_before_repeat(Unreachable("u", "refused", perhaps_done=False), False, 1) is not None


def test_what_was_perhaps_done_is_sent_again_only_if_a_repeat_changes_nothing() -> None:
    lost = Unreachable("u", "closed", perhaps_done=True)
    assert wait_before_repeat(lost, True, 1) is not None
    assert wait_before_repeat(lost, False, 1) is None


def test_a_refusal_is_repeated_only_when_it_says_when() -> None:
    assert wait_before_repeat(problem("BUSY", 503, "2"), False, 1) is not None
    assert wait_before_repeat(problem("QUEUE_NOT_FOUND", 404), True, 1) is None


def test_waits_have_full_jitter_grow_and_are_bounded_and_never_shorter_than_asked() -> None:
    lost = Unreachable("u", "closed", perhaps_done=False)
    first = [wait_before_repeat(lost, True, 1) or 0.0 for _ in range(200)]
    late = [wait_before_repeat(lost, True, 30) or 0.0 for _ in range(200)]
    assert min(first) < 0.02 < 0.08 < max(first) <= 0.1
    assert min(late) < 1.0 < 4.0 < max(late) <= 5.0
    assert all((wait_before_repeat(problem("BUSY", 503, "3"), True, 1) or 0.0) >= 3 for _ in range(50))


# ── refusals ────────────────────────────────────────────────────────────────────────────────────


def test_a_problem_becomes_the_error_it_stands_for() -> None:
    full = problem("QUEUE_FULL", 429, "10")
    assert type(full) is QueueFull
    assert (full.status, full.detail, full.hint, full.retry_after) == (429, "what", "how", 10)
    assert type(problem("QUEUE_NOT_FOUND", 404)) is QueueNotFound
    assert type(problem("BUSY", 503)) is Busy


def test_a_problem_of_an_unknown_word_is_still_a_refusal_with_that_word() -> None:
    refused = problem("TEAPOT", 418)
    assert type(refused) is Refused
    assert (refused.status, refused.code) == (418, "TEAPOT")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"code":1}'])
def test_an_answer_that_is_no_problem_is_called_what_it_is(body: bytes) -> None:
    refused = refusal(502, {}, body)
    assert (refused.status, refused.code) == (502, "ANSWER_INVALID")


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "http://", "http://x/?a=1", "sqlite:///x", "x:y", "x:0", "x:65536", "http://[x"]
)
def test_an_address_that_cannot_be_a_brokers_is_refused_at_once(url: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        Client(url)
    assert refused.value.code == "URL_INVALID"


def test_an_address_may_leave_out_the_scheme_and_have_a_path() -> None:
    assert Client("localhost:8080").url == "http://localhost:8080"
    assert Client("https://example.org/waypost/").url == "https://example.org/waypost"


# ── verdicts ────────────────────────────────────────────────────────────────────────────────────


def test_what_a_handler_raises_decides_what_is_confirmed() -> None:
    verdict = verdict_on(Retry("later", delay="5m"))
    assert (verdict.outcome, verdict.reason, verdict.delay) == (Outcome.RETRY, "later", "5m")
    assert verdict_on(Invalid("no number")).outcome is Outcome.INVALID
    assert verdict_on(NotInterested()).outcome is Outcome.NOT_INTERESTED


def test_any_other_exception_is_a_retry_with_its_type_and_text_shortened() -> None:
    verdict = verdict_on(KeyError("price"))
    assert (verdict.outcome, verdict.reason) == (Outcome.RETRY, "KeyError: 'price'")
    assert verdict_on(TimeoutError()).reason == "TimeoutError"
    long = verdict_on(ValueError("x" * 10_000)).reason
    assert long is not None
    assert len(long) == LONGEST_REASON


# ── forms ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "sent", "kind"),
    [
        (b"\xff", b"\xff", "application/octet-stream"),
        ("Grüße", "Grüße".encode(), "text/plain; charset=utf-8"),
        ({"a": 1}, b'{"a":1}', "application/json"),
        (None, b"null", "application/json"),
    ],
)
def test_a_body_is_bytes_text_or_json(body: Any, sent: bytes, kind: str) -> None:
    assert encode_body(body) == (sent, kind)


def test_a_body_that_json_cannot_say_is_refused() -> None:
    with pytest.raises(RequestInvalid):
        encode_body(object())


def test_a_line_carries_what_was_said_and_nothing_else() -> None:
    line = line_of(NewMessage(body=b"\xff\x00", topics=["a.b"], delay=timedelta(minutes=5), priority=0))
    assert line == {
        "topics": ["a.b"],
        "mimeType": "application/octet-stream",
        "delay": 300,
        "priority": 0,
        "bodyBase64": "/wA=",
    }


def test_spans_and_instants_are_written_as_the_wire_reads_them() -> None:
    assert [wire_span(given) for given in (1.0, 1.5, "5m", timedelta(hours=1), None)] == [
        1,
        1.5,
        "5m",
        3600,
        None,
    ]
    noon = datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))
    assert instant(noon) == "2026-01-31T10:00:00.000000Z"


def test_a_path_is_quoted_segment_by_segment() -> None:
    assert path("in", "fruit.apple/pie ü?") == "/in/fruit.apple%2Fpie%20%C3%BC%3F"


# ── the command line ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
def test_bare_times_in_a_filter_are_the_persons_own() -> None:
    meant = as_meant("queue=orders state=E since=10:00 until=11:30:15", date(2026, 1, 31))
    assert meant == (
        "queue=orders state=E since=2026-01-31T01:00:00.000000Z until=2026-01-31T02:30:15.000000Z"
    )


@pytest.mark.usefixtures("in_tokyo")
def test_moments_without_a_zone_are_the_persons_own_and_those_with_one_stay() -> None:
    assert as_meant("since=2026-01-31") == "since=2026-01-30T15:00:00.000000Z"
    assert as_meant('since="2026-01-31 09:00"') == "since=2026-01-31T00:00:00.000000Z"
    assert as_meant("until=2026-01-31T10:00:00Z") == "until=2026-01-31T10:00:00.000000Z"


@pytest.mark.usefixtures("in_tokyo")
def test_terms_of_a_filter_are_the_persons_own_however_they_are_given() -> None:
    since = "since=2026-01-30T15:00:00.000000Z"
    assert filter_of(["orders", "state=E", "since=2026-01-31"], None) == f"queue=orders state=E {since}"
    assert filter_of(["state=E"], "since=2026-01-31") == f"state=E {since}"
    assert filter_of(None, None) == ""
    assert as_instant("2026-01-31 09:00") == "2026-01-31T00:00:00.000000Z"


def test_digits_are_an_offset_unless_they_are_a_moment() -> None:
    assert [is_offset(text) for text in ("0", "123456", "20260131100000", "10:00", "²")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("filter", ["", "id=x", "since=20260131100000", "since=soon", 'queue="since=10:00"'])
def test_what_is_no_local_time_is_left_to_the_broker(filter: str) -> None:
    assert as_meant(filter, date(2026, 1, 31)) == filter


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b'{"a":1}', "application/json"),
        (b"17", "application/json"),
        (b"hello", "text/plain; charset=utf-8"),
        (b"\xff", "application/octet-stream"),
    ],
)
def test_the_type_of_a_body_is_guessed(payload: bytes, kind: str) -> None:
    assert guess_type(payload) == kind


def test_figures_are_short() -> None:
    assert [size(count) for count in (0, 1023, 1024, 5 << 20)] == ["0 B", "1023 B", "1.0 KiB", "5.0 MiB"]
    assert [span(ms) for ms in (0, 999, 1_500, 90_000, None)] == ["0 ms", "999 ms", "1.5 s", "1.5 m", ""]


# ── stores by their URL ─────────────────────────────────────────────────────────────────────────


def test_three_slashes_are_relative_four_absolute() -> None:
    assert parse_store_url("sqlite:///waypost-data/waypost.db") == ("sqlite", "waypost-data/waypost.db")
    assert parse_store_url("sqlite:////var/lib/waypost.db") == ("sqlite", "/var/lib/waypost.db")
    assert parse_store_url("memory:///") == ("memory", "")


def test_the_tilde_is_read_as_the_shell_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/srv/ada")
    assert parse_store_url("sqlite:///~/w.db").path == "/srv/ada/w.db"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis:///x", "no store is called 'redis'; there are sqlite:///"),
        ("waypost.db", "not a store URL: 'waypost.db'"),
        ("sqlite://x.db", "lacks a slash: sqlite:///x.db is relative"),
        ("sqlite:///", "names no file"),
        ("sqlite:///data/", "names no file"),
        ("memory:///x", "has no path"),
    ],
)
def test_an_url_that_names_no_store_is_refused_in_one_line(url: str, says: str) -> None:
    with pytest.raises(StoreUnusable) as refused:
        open_store(url)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_store_is_described_with_what_its_answers_are_worth() -> None:
    assert described("memory:///") == "store memory; nothing survives this process"
    assert (
        described("sqlite:////srv/w.db")
        == "store sqlite /srv/w.db; an answer means: committed and synced to disk"
    )


def test_the_memory_store_opens_and_is_empty() -> None:
    store = open_store("memory:///")
    assert store.bounds() == (1, 0)
    store.close()
