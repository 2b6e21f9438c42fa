"""From what a message says of itself to its slots; topics, patterns and routes."""

import random

import pytest

from waypost.consumers import Consumer
from waypost.errors import RequestInvalid
from waypost.message import Envelope
from waypost.policy import Policy
from waypost.routing import (
    Option,
    Part,
    Route,
    check_route,
    parts_of,
    slots_of,
    topics_in_channel,
    topics_in_queue,
)
from waypost.topics import TopicIndex, check_patterns, topic_matches


@pytest.mark.parametrize(
    ("complete", "slots"), [("any", 1), ("all", 1), (0, 0), (1, 1), (7, 7), ("per_topic", 2)]
)
def test_the_policy_says_how_many_slots_a_message_gets(complete: str | int, slots: int) -> None:
    topics = topics_in_queue(("a.x", "b.x", "a.y", "ab"), "a")
    assert slots_of(Policy(complete=complete), topics) == (None,) * slots


def test_per_topic_never_makes_fewer_than_one_slot() -> None:
    assert slots_of(Policy(complete="per_topic"), 0) == (None,)


def test_all_names_a_slot_for_each_registered_consumer() -> None:
    assert slots_of(Policy(complete="all"), 1, ["ann", "bob"]) == ("ann", "bob")
    assert slots_of(Policy(complete="any"), 1, ["ann", "bob"]) == (None,)


def test_a_channel_counts_the_topics_it_subscribed_to() -> None:
    assert topics_in_channel(("a.x", "b.x", "a.y"), ("a.*", "a.x")) == 2


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("fruit.*", "fruit.apple", True),
        ("fruit.*", "fruit.apple.red", True),
        ("fruit.*", "fruit", False),
        ("fruit.*", "fruits.x", False),
        ("fruit", "fruit", True),
        ("fruit", "fruit.apple", False),
        ("*", "anything.at.all", True),
        ("a.x,fruit.*", "fruit.apple", True),
        ("a.x,fruit.*", "a.y", False),
    ],
)
def test_a_star_at_the_end_is_a_prefix_and_all_else_exact(pattern: str, topic: str, matches: bool) -> None:
    assert topic_matches(pattern, topic) is matches


def test_the_index_finds_just_those_whose_pattern_matches() -> None:
    chance = random.Random(5)
    words = ["a", "b", "c"]

    def some_topic() -> str:
        return ".".join(chance.choice(words) for _ in range(chance.randint(1, 4)))

    index: TopicIndex[int] = TopicIndex()
    subscribed: dict[int, tuple[str, ...]] = {}
    for number in range(300):
        patterns = tuple(
            dict.fromkeys(
                chance.choice(["*", some_topic(), some_topic() + ".*"]) for _ in range(chance.randint(0, 3))
            )
        )
        subscribed[number] = patterns
        index.add(patterns, number)
    for number in range(0, 300, 3):
        index.remove(subscribed.pop(number), number)
    for _ in range(300):
        topics = [some_topic() for _ in range(chance.randint(0, 3))]
        expected = {
            number
            for number, patterns in subscribed.items()
            if any(topic_matches(pattern, topic) for pattern in patterns for topic in topics)
        }
        found = index.find(topics)
        assert len(found) == len(set(found))
        assert set(found) == expected


def test_an_index_that_lost_its_last_subscriber_is_empty() -> None:
    index: TopicIndex[str] = TopicIndex()
    index.add(("a.*", "a.x"), "s")
    index.remove(("a.*", "a.x"), "s")
    assert index.find(["a.x"]) == []
    assert vars(index) == vars(TopicIndex())


@pytest.mark.parametrize("pattern", ["", "a.*.b", "a*", ".*", "A.*", "a,b", "a.#", "**"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(RequestInvalid):
        check_patterns([pattern])


def test_patterns_are_kept_in_order_each_once() -> None:
    assert check_patterns(["b.*", "*", "b.*", "a.süß"]) == ("b.*", "*", "a.süß")


# ── routes ──────────────────────────────────────────────────────────────────────────────────────

MESSAGE = Envelope(topics=("a.x", "a.y", "b.z"))
REGISTERED = {"bob": Consumer(queue="b"), "sub": Consumer(channel="c")}


def parts(route: Route | None) -> list[Part]:
    return parts_of(route, MESSAGE, REGISTERED, True)


def test_without_a_route_the_policies_decide() -> None:
    assert parts(None) == [Part("a", None), Part("b", None)]


def test_once_makes_one_slot_in_each_of_its_queues() -> None:
    assert parts(Route()) == [Part("a", (None,)), Part("b", (None,))]
    assert parts(Route(queues=("c",))) == [Part("c", (None,))]


def test_once_only_is_not_waited_for() -> None:
    assert parts(Route(option=Option.ONCE_ONLY, queues=("c",))) == [Part("c", (None,), True)]


def test_once_per_topic_makes_a_slot_for_each_topic_of_the_queue() -> None:
    route = Route(option=Option.ONCE_PER_TOPIC)
    assert parts(route) == [Part("a", (None, None)), Part("b", (None,))]


def test_a_named_consumer_gets_its_slot_where_it_is_registered_or_in_the_first_queue() -> None:
    assert parts(Route(consumers=("bob", "ann", "sub"))) == [Part("b", ("bob",)), Part("a", ("ann", "sub"))]
    assert parts(Route(consumers=("bob",), queues=("c",))) == [Part("b", ("bob",)), Part("c", (None,))]


def test_a_route_is_taken_in_the_form_that_people_write() -> None:
    given = Route(option="onceOnly", consumers=["ann", "ann"], queues=["q"])  # type: ignore[arg-type]
    assert check_route(given) == Route(option=Option.ONCE_ONLY, consumers=("ann",), queues=("q",))


@pytest.mark.parametrize(
    "given",
    [
        None,
        "once",
        {"option": "once"},
        Route(option="twice"),  # type: ignore[arg-type]
        Route(consumers="ann"),  # type: ignore[arg-type]
        Route(queues=(1,)),  # type: ignore[arg-type]
        Route(queues=("Not A Name",)),
    ],
)
def test_nonsense_is_no_route(given: object) -> None:
    with pytest.raises(RequestInvalid):
        check_route(given)
