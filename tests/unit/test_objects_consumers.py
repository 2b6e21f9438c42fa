"""Objects and consumers: JSON there and back, and refusals that name the field."""

import base64
from typing import Any

import pytest

from waypost.consumers import Consumer, consumer_json, parse_consumer
from waypost.destinations import Kind
from waypost.errors import RequestInvalid
from waypost.instants import SECOND
from waypost.objects import ObjectPolicy, Unchanged, object_json, parse_object

OLD, NEW = ("whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))


def test_an_objects_policy_comes_back_as_it_was_given() -> None:
    given = {"unchanged": {"ignore": ["$.exportedAt"], "window": "2d"}, "route": "spark"}
    policy = parse_object(given)
    assert policy == ObjectPolicy(
        unchanged=Unchanged(ignore=("$.exportedAt",), window_us=2 * 86_400 * SECOND), route="spark"
    )
    assert object_json(policy) == given
    assert parse_object(object_json(ObjectPolicy())) == ObjectPolicy()
    assert parse_object({"unchanged": {}}).unchanged == Unchanged()


@pytest.mark.parametrize(
    "given",
    [
        [],
        {"unchanged": True},
        {"unchanged": {"ignore": "$.a"}},
        {"unchanged": {"ignore": ["a"]}},
        {"unchanged": {"ignore": [1]}},
        {"unchanged": {"window": "soon"}},
        {"unchanged": {"widow": "1d"}},
        {"route": "flink"},
        {"rout": "inline"},
    ],
)
def test_what_is_no_policy_of_an_object_is_refused(given: object) -> None:
    with pytest.raises(RequestInvalid):
        parse_object(given)


def test_a_consumer_comes_back_as_it_was_given_but_for_its_secrets() -> None:
    given: dict[str, Any] = {
        "url": "https://example.com/hook?x=1",
        "queue": None,
        "channel": "c",
        "topics": ["fruit.*"],
        "concurrency": 4,
        "rate": 2.5,
        "timeout": "1m",
        "kick": True,
        "paused": True,
    }
    consumer = parse_consumer({**given, "secret": NEW})
    assert (consumer.kind, consumer.destination, consumer.secrets) == (Kind.CHANNEL, "c", (NEW,))
    assert consumer_json(consumer) == {**given, "secrets": 1}
    assert NEW not in str(consumer_json(consumer))
    assert parse_consumer({"queue": "q"}) == Consumer(queue="q")


def test_a_new_secret_stands_beside_the_last_one_until_it_is_given_again() -> None:
    first = parse_consumer({"queue": "q", "secret": OLD})
    kept = parse_consumer({"queue": "q"}, first)
    assert kept.secrets == (OLD,)
    both = parse_consumer({"queue": "q", "secret": NEW}, kept)
    assert both.secrets == (NEW, OLD)
    assert parse_consumer({"queue": "q", "secret": NEW}, both).secrets == (NEW,)
    assert parse_consumer({"queue": "q", "secret": [OLD, NEW]}, both).secrets == (OLD, NEW)


def test_a_consumer_wants_what_its_topics_choose() -> None:
    assert Consumer(queue="q").wants(("a.x",))
    assert Consumer(queue="q").wants(())
    assert Consumer(queue="q", topics=("b", "a.*")).wants(("c", "a.x"))
    assert not Consumer(queue="q", topics=("b", "a.*")).wants(("a",))


@pytest.mark.parametrize(
    "given",
    [
        [],
        {},
        {"queue": "q", "channel": "c"},
        {"queue": "No"},
        {"queue": 1},
        {"queue": "q", "url": "ftp://example.com"},
        {"queue": "q", "url": "http://"},
        {"queue": "q", "url": "http://a b"},
        {"queue": "q", "url": "http://me:secret@example.com"},
        {"queue": "q", "url": "http://example.com:99999"},
        {"queue": "q", "topics": "a.*"},
        {"queue": "q", "topics": ["a*"]},
        {"queue": "q", "secret": "short"},
        {"queue": "q", "secret": []},
        {"queue": "q", "secret": "whsec_AAAA"},
        {"queue": "q", "concurrency": 0},
        {"queue": "q", "rate": 0},
        {"queue": "q", "rate": "fast"},
        {"queue": "q", "timeout": 0},
        {"queue": "q", "paused": 1},
        {"queue": "q", "colour": "red"},
    ],
)
def test_what_is_no_consumer_is_refused(given: object) -> None:
    with pytest.raises(RequestInvalid):
        parse_consumer(given)
