"""Names, topics, own ids: what is taken and what is refused."""

import pytest

from waypost.errors import RequestInvalid
from waypost.names import RESERVED, check_name, check_own_id, check_short_queue, check_topic, root_of


@pytest.mark.parametrize("name", ["a", "0", "orders", "a.b-c_d", "postings.p", "log", "a" * 200, "9-"])
def test_a_name_is_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "A", "-a", ".a", "_a", "a b", "a/b", "ä", "a\n", "a" * 201, "../x", "٣"]
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        check_name(name, "consumer")
    assert refused.value.code == "NAME_INVALID"
    assert "consumer" in refused.value.detail


def test_reserved_words_limit_only_the_short_paths() -> None:
    assert (
        frozenset(["in", "log", "queue", "channel", "rpc", "v1", "console", "health", "metrics"]) == RESERVED
    )
    for word in RESERVED:
        assert check_name(word) == word
        with pytest.raises(RequestInvalid) as refused:
            check_short_queue(word)
        assert refused.value.code == "NAME_RESERVED"
    assert check_short_queue("logs") == "logs"
    with pytest.raises(RequestInvalid):
        check_short_queue("No")


@pytest.mark.parametrize("id", ["a", "0", "-", "order-17", "a" * 50])
def test_an_own_id_is_taken(id: str) -> None:
    assert check_own_id(id) == id


@pytest.mark.parametrize("id", ["", "A", "a_b", "a.b", "a" * 51, "a\n", "ü"])
def test_what_is_no_own_id_is_refused(id: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        check_own_id(id)
    assert refused.value.code == "ID_INVALID"


@pytest.mark.parametrize(
    "topic", ["a", "fruit.apple", "fruit.Äpfel & Birnen!", "a..", "a-b_c.x", "fruit." + "x" * 244, "a.日本"]
)
def test_a_topic_is_taken(topic: str) -> None:
    assert check_topic(topic) == topic


@pytest.mark.parametrize(
    "topic",
    [
        "",
        ".",
        ".a",
        "Fruit.x",
        "fruit.a,b",
        "fruit.*",
        "fruit.#",
        "fruit.\n",
        "fruit.\x00",
        "f" * 251,
        "fruit." + "ä" * 123,
        "fruit.\ud800",
        "ä.x",
    ],
)
def test_what_is_no_topic_is_refused(topic: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        check_topic(topic)
    assert refused.value.code == "TOPIC_INVALID"


def test_a_topics_root_stands_before_the_first_dot() -> None:
    assert [root_of(topic) for topic in ("a", "a.b", "a.b.c", "a..")] == ["a"] * 4
