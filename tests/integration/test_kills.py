"""A few kills of the proof that `make prove` runs at length; and that its judge finds what it looks for."""

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from prove.careless import open_careless
from prove.kills import round_of_kills
from prove.messages import make_message, number_of
from prove.record import Confirmed, Delivered, Record, Sent
from prove.verdict import FAULTY, Event, Verdict, judge
from waypost.commands import DeclareQueue

RUN = "test"
Depths = dict[str, dict[str, int]]


@pytest.mark.timeout(110)
def test_nothing_acknowledged_is_lost_however_often_the_broker_is_killed() -> None:
    struck = round_of_kills(seed=20, kills=4)

    verdict = struck.verdict
    assert verdict.findings == []
    assert verdict.faultless
    assert struck.faults == 4
    assert verdict.acknowledged > 100
    assert verdict.confirmed > 100
    assert verdict.events >= 4 * verdict.acknowledged


# ── the judge ───────────────────────────────────────────────────────────────────────────────────


class Case:
    """One message that was published, fetched and confirmed, as the load and the log saw it."""

    def __init__(self) -> None:
        message = replace(make_message(RUN, 1), queues=("bills",))
        self.record = Record(RUN, heads=[0])
        self.record.sent[1] = Sent(message, life=1, id="one", acknowledged_life=1)
        self.record.delivered.append(Delivered("one", "bills", 1, 1, 1, self.record.tick(), "receipt"))
        self.record.confirmed.append(Confirmed("one", "bills", 1, "S", 1, self.record.tick()))
        self.log = [
            Event(1, "t1", "one", 1, "L", hash=message.hash),
            Event(2, "t1", "one", 1, "Q", "bills", 0, "L", 0),
            Event(3, "t2", "one", 1, "F", "bills", 0, "Q", 1),
            Event(4, "t3", "one", 1, "S", "bills", 0, "F", 1),
            Event(5, "t3", "one", 1, "X", from_state="L"),
        ]
        self.depths: Depths = {"bills": {"S": 1, "Q": 0}}

    def verdict(self) -> Verdict:
        return judge(self.record, self.log, self.depths)

    def found(self) -> dict[str, int]:
        verdict = self.verdict()
        return {name: count for name in FAULTY if (count := getattr(verdict, name))}

    def change(self, line: int, /, **changes: object) -> None:
        self.log[line - 1] = msgspec.structs.replace(self.log[line - 1], **changes)


@pytest.fixture
def case() -> Case:
    return Case()


def test_a_whole_life_has_nothing_wrong_with_it(case: Case) -> None:
    assert case.found() == {}
    assert case.verdict().acknowledged == case.verdict().confirmed == 1


def test_an_acknowledged_message_that_is_not_there_is_lost_and_forgotten(case: Case) -> None:
    case.record.delivered, case.record.confirmed, case.log, case.depths = [], [], [], {}
    assert case.found() == {"lost": 1, "forgotten": 1}


def test_an_acknowledged_message_that_was_never_delivered_is_lost(case: Case) -> None:
    case.record.delivered, case.record.confirmed = [], []
    assert case.found() == {"lost": 1}


def test_a_message_that_its_channel_never_delivered_is_lost(case: Case) -> None:
    message = replace(case.record.sent[1].message, queues=("orders",))
    case.record.sent[1].message = message
    case.record.delivered[0] = replace(case.record.delivered[0], queue="orders")
    case.record.confirmed[0] = replace(case.record.confirmed[0], queue="orders")
    for line in (2, 3, 4):
        case.change(line, queue="orders")
    case.log.insert(2, Event(3, "t1", "one", 1, "Q", None, 0, "L", 0, channel="copies"))
    for line in (4, 5, 6):
        case.change(line, offset=line)
    case.depths = {"orders": {"S": 1}, "channel/copies": {"Q": 1}}
    assert case.found() == {"lost": 1}
    case.record.delivered.append(
        Delivered("one", "channel/copies", 1, 1, 1, case.record.tick(), "another receipt")
    )
    case.log.append(Event(7, "t4", "one", 1, "F", None, 0, "Q", 1, channel="copies"))
    case.depths["channel/copies"] = {"F": 1}
    assert case.found() == {}


def test_a_dead_letter_is_not_lost(case: Case) -> None:
    case.record.delivered, case.record.confirmed = [], []
    case.change(4, to_state="E")
    del case.log[4]
    case.depths = {"bills": {"E": 1}}
    assert case.found() == {}
    assert case.verdict().dead == 1


def test_a_delivery_after_its_confirm_is_again(case: Case) -> None:
    case.record.delivered.append(Delivered("one", "bills", 1, 1, 2, case.record.tick(), "receipt"))
    assert case.found() == {"again": 1}


def test_a_confirm_without_its_line_is_forgotten(case: Case) -> None:
    del case.log[3:]
    case.depths = {"bills": {"F": 1}}
    assert case.found() == {"forgotten": 1}


def test_a_body_that_nobody_sent_is_unexpected(case: Case) -> None:
    case.record.delivered[0] = replace(case.record.delivered[0], number=None)
    assert case.found() == {"lost": 1, "unexpected": 1}


def test_a_refused_publish_that_is_there_is_unexpected(case: Case) -> None:
    case.record.sent[1].refused = True
    assert case.found() == {"unexpected": 1}


def test_a_publish_that_is_two_messages_is_duplicated(case: Case) -> None:
    case.log.append(Event(6, "t4", "two", 6, "L", hash=case.record.sent[1].hash))
    assert case.found() == {"duplicated": 1}


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        (3, {"offset": 7}),
        (3, {"at": "t0"}),
        (3, {"from_state": "R"}),
        (3, {"attempt": 2}),
        (2, {"to_state": "S"}),
        (5, {"to_state": "Q"}),
        (1, {"sequence": 2}),
    ],
)
def test_a_line_that_cannot_be_is_illegal(case: Case, line: int, changes: dict[str, object]) -> None:
    case.change(line, **changes)
    assert case.verdict().illegal


def test_a_depth_that_differs_from_a_recount_is_illegal(case: Case) -> None:
    case.depths = {"bills": {"S": 1, "Q": 1}}
    assert case.found() == {"illegal": 1}


def test_what_was_stored_without_an_answer_is_recovered_and_marks_its_life(case: Case) -> None:
    case.record.heads.append(5)
    case.record.sent[1].id = case.record.sent[1].acknowledged_life = None
    verdict = case.verdict()
    assert verdict.faultless
    assert (verdict.recovered, verdict.unanswered_lives) == (1, [1])


def test_a_body_is_known_by_its_bytes() -> None:
    body = make_message(RUN, 17).body
    assert number_of(RUN, body) == 17
    assert number_of(RUN, body[:-1] + b"?") is None
    assert number_of("other", body) is None


def test_the_controls_leave_out_the_care_that_they_say(tmp_path: Path) -> None:
    """`make prove` shows that they lose; here only that a change of the store does not leave them behind."""
    for how, synchronous in (("normal", 1), ("unchecked", 2)):
        path = tmp_path / f"{how}.db"
        with closing(open_careless(how, str(path))) as store:
            assert store._db.execute("pragma synchronous").get == synchronous
            store.apply([DeclareQueue("q")])
            copy = tmp_path / f"{how} after a crash.db"
            for suffix in ("", "-wal"):
                shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
        with closing(open_careless(how, str(copy))) as store:
            assert store.queue("q") is not None
            held = Path(f"{copy}-wal").stat().st_size
            # With care a start empties the log, and gives it its size afterwards.
            assert (0 < held < 1 << 20) == (how == "unchecked")
