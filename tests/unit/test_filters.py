"""The grammar of filters, and routing's few rules."""

from datetime import timedelta, timezone

import pytest

from waypost.delivery import E, I, S
from waypost.errors import RequestInvalid
from waypost.filters import Filter, parse_filter
from waypost.instants import SECOND
from waypost.message import Envelope
from waypost.routing import queues_of, with_object

NOW = 1_769_860_800 * SECOND  # 2026-01-31T12:00:00Z


def test_a_filter_is_terms_that_must_all_hold() -> None:
    text = 'queue=orders state=E since=10:00 until="2026-01-31 11:30" id=order-1'
    assert parse_filter(text, NOW) == Filter(
        id="order-1",
        queue="orders",
        states=frozenset({E}),
        since_at=NOW - 7_200 * SECOND,
        until_at=NOW - 1_800 * SECOND,
    )


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_no_terms_select_everything(text: str) -> None:
    assert parse_filter(text, NOW) == Filter()


@pytest.mark.parametrize("text", ["state=EIS", "state=e,i,s", "state=SIE", 'state="EIS"', "  state=EIS  "])
def test_states_are_letters_in_any_order_and_case(text: str) -> None:
    assert parse_filter(text, NOW).states == frozenset({E, I, S})


def test_a_bare_time_is_read_in_the_zone_given() -> None:
    zone = timezone(timedelta(hours=2))
    assert parse_filter("since=12:00", NOW, zone).since_at == NOW - 7_200 * SECOND


@pytest.mark.parametrize(
    "text",
    [
        "orders",
        "queue=",
        "queue",
        "=orders",
        "colour=red",
        "queue=a queue=b",
        "queue=A",
        'queue="a b"',
        'queue="a"b',
        'queue="a',
        "state=",
        'state=""',
        "state=Z",
        "state=,",
        "since=soon",
        "id=A",
        "id=a;state=E",
        "queue=a & state=E",
    ],
)
def test_what_is_no_filter_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        parse_filter(text, NOW)
    assert refused.value.status == 400
    assert refused.value.hint


def routed(*topics: str, object: str | None = None, infer: bool = True) -> tuple[str, ...]:
    return queues_of(Envelope(topics=topics, object=object), infer)


def test_a_message_goes_to_its_object_or_first_root_and_to_every_root_once() -> None:
    assert routed() == ("default",)
    assert routed(object="a") == ("a",)
    assert routed("b.x", "c.y", "b.z") == ("b", "c")
    assert routed("b.x", "a.y", object="a") == ("a", "b")


def test_without_inferring_only_an_object_names_queues() -> None:
    assert routed("b.x", infer=False) == ("default",)
    assert routed("b.x", object="a", infer=False) == ("a", "b")


def test_the_object_is_inferred_from_the_first_topic() -> None:
    assert with_object(Envelope(topics=("b.x", "c.y"))).object == "b"
    assert with_object(Envelope(topics=("b.x",), object="a")).object == "a"
    assert with_object(Envelope(topics=("b.x",)), infer_types=False).object is None
    assert with_object(Envelope()).object is None
