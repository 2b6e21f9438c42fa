"""Whose turn a failed message is."""

from waypost.commands import Fetched
from waypost.message import Envelope
from waypost.push.crew import MOST_MESSAGES, Crew


class Named:
    def __init__(self, name: str, crew: Crew, wants: bool = True) -> None:
        self.name, self._wants = name, wants
        crew.members.append(self)

    def wants(self, message: Fetched) -> bool:
        return self._wants


def message(id: str = "m") -> Fetched:
    return Fetched(id, "receipt", 1, Envelope(), 0, b"", 0)


def test_a_message_that_did_not_fail_is_for_whoever_fetched_it() -> None:
    crew = Crew()
    a, b = Named("a", crew), Named("b", crew)
    assert crew.turn(message(), a) is a
    crew.failed("m", b)
    assert crew.turn(message(), a) is a


def test_a_failed_message_goes_round() -> None:
    crew = Crew()
    a, b, c = (Named(name, crew) for name in "abc")
    crew.failed("m", a)
    assert crew.turn(message(), a) is b
    assert crew.turn(message(), b) is b, "to whom it was offered"
    crew.failed("m", b)
    assert crew.turn(message(), b) is c
    assert crew.turn(message(), c) is c
    crew.failed("m", c)
    assert crew.turn(message(), c) is a
    crew.forget("m")
    assert crew.turn(message(), c) is c


def test_one_that_is_fetched_again_by_who_offered_it_is_not_passed_on_for_ever() -> None:
    crew = Crew()
    a, b, c = (Named(name, crew) for name in "abc")
    crew.failed("m", a)
    assert [crew.turn(message(), a) for _ in range(3)] == [b, c, a]


def test_who_has_no_room_or_has_left_is_passed_over() -> None:
    crew = Crew()
    a, b = Named("a", crew), Named("b", crew, wants=False)
    c = Named("c", crew)
    crew.failed("m", c)
    crew.failed("m", a)
    crew.members.remove(c)
    assert crew.turn(message(), a) is a
    assert b in crew.members


def test_what_is_remembered_is_bounded() -> None:
    crew = Crew()
    a, b = Named("a", crew), Named("b", crew)
    for n in range(MOST_MESSAGES + 1):
        crew.failed(f"m{n}", a)
    assert crew.turn(message("m0"), a) is a
    assert crew.turn(message("m1"), a) is b
