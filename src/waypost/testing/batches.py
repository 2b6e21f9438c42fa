"""Uploads and batches, as every store must have them: part of `StoreTests`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from ..batches import Chunk, Kind, Packing, Rows, sum_of
from ..commands import AcceptBatch, Batch, EnterRows, KeepUpload, Publish, Reap, Staged, Upload
from ..errors import (
    BatchConflict,
    BatchNotFound,
    PayloadReaped,
    QueueFull,
    Refused,
    RequestInvalid,
    UploadNotFound,
)
from ..message import payload_hash
from ..store import Feature
from .features import wants
from .hand import Hand, publish

HOUR = 3_600.0
DAY = 86_400.0


def keep(hand: Hand, *messages: Publish) -> Upload:
    """An upload of these, as the broker keeps one."""
    packing = Packing()
    packing.add(rows_of(messages))
    id = os.urandom(16).hex()
    body = hand.store.stage_chunk(id, packing.chunk())
    upload: Upload = hand.do(KeepUpload(id=id, body=body, rows=packing.rows, hash=packing.hash))
    return upload


def rows_of(messages: Sequence[Publish]) -> Rows:
    said: list[Kind] = [(m.envelope.topics, m.envelope.object, m.envelope.mime_type) for m in messages]
    kinds = list(dict.fromkeys(said))
    bodies = [bytes(m.body) for m in messages if not isinstance(m.body, Staged)]
    return Rows(
        kinds=kinds,
        kind=[kinds.index(kind) for kind in said],
        bodies=bodies,
        hashes=list(map(payload_hash, bodies)),
        keys=[m.envelope.key for m in messages],
        timestamps=[m.envelope.timestamp for m in messages],
        delays_us=[m.delay_us for m in messages],
        ttls_us=[m.ttl_us for m in messages],
        priorities=[m.priority for m in messages],
    )


def accept(hand: Hand, *uploads: Upload, query: str = "q", batch: int = 0, **other: Any) -> Batch:
    given: dict[str, Any] = {
        "uploads": [upload.id for upload in uploads],
        "rows": sum(upload.rows for upload in uploads),
        "hash": sum_of(upload.hash for upload in uploads),
    }
    accepted: Batch = hand.do(AcceptBatch(query=query, batch=batch, **(given | other)))
    return accepted


def messages_of(hand: Hand, batch: Batch) -> list[Publish]:
    """What has not entered yet."""
    messages: list[Publish] = []
    for upload in hand.store.uploads(batch.number):
        body = hand.store.chunk(upload.id)
        chunk = Chunk(hand.store.unstage(body) if isinstance(body, Staged) else body)
        start = 0
        while more := chunk.messages(start):
            messages += more
            start += len(more)
    return messages[batch.entered :]


def enter(hand: Hand, batch: Batch, *messages: Publish) -> Batch:
    entered: Batch = hand.do(
        EnterRows(query=batch.query, batch=batch.batch, after=batch.entered, messages=list(messages))
    )
    return entered


def bodies(hand: Hand, queue: str = "a") -> list[bytes]:
    return [hand.body(fetched) for fetched in hand.fetch(queue, n=100)] if hand.store.queue(queue) else []


def three(topic: str = "a.x") -> list[Publish]:
    return [publish(topic, body=body) for body in (b"1", b"2", b"3")]


@wants(Feature.ATOMIC)
class BatchTests:
    def test_an_upload_is_kept_and_seen_by_nobody(self, hand: Hand) -> None:
        upload = keep(hand, *three())
        assert hand.store.uploads(None) == [upload]
        assert (upload.rows, upload.kept_at, upload.batch) == (3, hand.clock.now, None)
        assert hand.store.bounds() == (1, 0)
        assert hand.store.queues() == []

    def test_an_accepted_batch_waits_for_its_rows(self, hand: Hand) -> None:
        batch = accept(hand, keep(hand, *three()))
        assert (batch.rows, batch.entered, batch.ended_at) == (3, 0, None)
        assert hand.store.open_batches() == [batch]
        assert hand.store.batch("q", 0) == batch
        assert hand.store.uploads(None) == []
        assert hand.store.bounds() == (1, 0)

    def test_rows_enter_in_slices_in_the_order_of_the_uploads(self, hand: Hand) -> None:
        uploads = [keep(hand, *three()), keep(hand, publish("a.x", body=b"4"))]
        batch = accept(hand, *uploads)
        messages = messages_of(hand, batch)
        batch = enter(hand, batch, *messages[:2])
        assert (batch.entered, batch.ended_at) == (2, None)
        assert hand.store.open_batches() == [batch]
        batch = enter(hand, batch, *messages[2:])
        assert (batch.entered, batch.ended_at) == (4, hand.clock.now)
        assert hand.store.batch("q", 0) == batch
        assert hand.store.open_batches() == []
        assert bodies(hand) == [b"1", b"2", b"3", b"4"]

    def test_what_a_row_says_of_itself_comes_in_with_it(self, hand: Hand) -> None:
        said = [
            publish("b.x", "b.y", object="b", key="k", body=b"text", delay_us=5_000_000, priority=1),
            publish("b.x", object="b", body=b"", ttl_us=60_000_000),
        ]
        batch = accept(hand, keep(hand, *said))
        packed = messages_of(hand, batch)
        assert packed == said
        enter(hand, batch, *packed)
        (second,) = hand.fetch("b", n=10)
        hand.wait(5)
        (first,) = hand.fetch("b", n=10)
        assert (first.envelope, second.envelope) == (said[0].envelope, said[1].envelope)

    def test_a_slice_that_entered_does_not_enter_again(self, hand: Hand) -> None:
        batch = accept(hand, keep(hand, *three()))
        messages = messages_of(hand, batch)
        moved = enter(hand, batch, *messages[:2])
        assert enter(hand, batch, *messages[:2]) == moved
        assert enter(hand, msgspec.structs.replace(batch, entered=1), *messages[1:]) == moved
        ended = enter(hand, moved, *messages[2:])
        assert enter(hand, moved, *messages[2:]) == ended
        assert enter(hand, msgspec.structs.replace(ended, entered=3), *messages) == ended
        assert bodies(hand) == [b"1", b"2", b"3"]

    def test_the_same_batch_again_changes_nothing(self, hand: Hand) -> None:
        one, two = keep(hand, *three()[:2]), keep(hand, *three()[2:])
        batch = accept(hand, one, two)
        # Written again with other tasks, in another order, as Spark may.
        again = [keep(hand, *three()[1:]), keep(hand, *three()[:1])]
        assert accept(hand, *again) == batch
        assert accept(hand, one, two) == batch
        ended = enter(hand, batch, *messages_of(hand, batch))
        assert accept(hand, one, two) == ended
        assert accept(hand, *again) == ended
        assert bodies(hand) == [b"1", b"2", b"3"]
        assert len(hand.store.uploads(None)) == 2

    def test_other_content_under_a_known_name_is_refused(self, hand: Hand) -> None:
        batch = accept(hand, keep(hand, *three()))
        other = keep(hand, *three()[:2], publish("a.x", body=b"other"))
        with pytest.raises(BatchConflict):
            accept(hand, other)
        fewer = keep(hand, *three()[:2])
        with pytest.raises(BatchConflict):
            accept(hand, fewer)
        assert hand.store.open_batches() == [batch]
        assert accept(hand, other, batch=1).rows == 3
        assert accept(hand, fewer, query="another").rows == 2

    def test_an_upload_is_of_one_batch(self, hand: Hand) -> None:
        upload = keep(hand, *three())
        accept(hand, upload)
        with pytest.raises(UploadNotFound):
            accept(hand, upload, batch=1)
        assert hand.store.batch("q", 1) is None

    def test_a_batch_of_what_is_not_there_is_refused(self, hand: Hand) -> None:
        upload = keep(hand, *three())
        with pytest.raises(UploadNotFound):
            accept(hand, upload, uploads=[upload.id, "f" * 32])
        with pytest.raises(RequestInvalid, match="twice"):
            accept(hand, upload, upload)
        for wrong in ({"rows": 4}, {"hash": bytes(16)}):
            with pytest.raises(RequestInvalid, match="rows with hash"):
                accept(hand, upload, **wrong)
        assert hand.store.batch("q", 0) is None
        assert hand.store.uploads(None) == [upload]

    def test_rows_of_no_batch_do_not_enter(self, hand: Hand) -> None:
        with pytest.raises(BatchNotFound):
            hand.do(EnterRows(query="q", batch=0, after=0, messages=three()))
        assert hand.store.bounds() == (1, 0)

    def test_a_batch_without_rows_has_entered_at_once(self, hand: Hand) -> None:
        batch = accept(hand)
        assert batch.ended_at == hand.clock.now
        assert hand.store.open_batches() == []

    def test_a_slice_that_finds_no_room_leaves_nothing(self, hand: Hand) -> None:
        hand.declare("a", max_messages=2)
        batch = accept(hand, keep(hand, *three()))
        messages = messages_of(hand, batch)
        with pytest.raises(QueueFull):
            enter(hand, batch, *messages)
        assert hand.store.open_batches() == [batch]
        moved = enter(hand, batch, *messages[:2])
        with pytest.raises(QueueFull):
            enter(hand, moved, *messages[2:])
        assert bodies(hand) == [b"1", b"2"]

    def test_rows_are_compared_as_all_messages_are(self, hand: Hand) -> None:
        hand.unchanged("a")
        said = [publish("a.x", object="a", key="k", body=body) for body in (b"{}", b"{ }", b"1")]
        batch = accept(hand, keep(hand, *said))
        enter(hand, batch, *messages_of(hand, batch))
        assert bodies(hand) == [b"{}", b"1"]

    def test_batches_beside_other_commands_of_a_group(self, hand: Hand) -> None:
        first, second = keep(hand, *three()), keep(hand, publish("a.x", body=b"4"))
        batch = accept(hand, first)
        results = hand.ask(
            publish("a.x", body=b"0"),
            EnterRows(query="q", batch=0, after=0, messages=messages_of(hand, batch)),
            AcceptBatch(query="q", batch=1, uploads=[second.id], rows=1, hash=second.hash),
            AcceptBatch(query="q", batch=2, uploads=[second.id], rows=1, hash=second.hash),
            publish("a.x", body=b"5"),
        )
        assert [type(result) for result in results if isinstance(result, Refused)] == [UploadNotFound]
        assert [batch.batch for batch in hand.store.open_batches()] == [1]
        assert bodies(hand) == [b"0", b"1", b"2", b"3", b"5"]

    def test_batches_and_their_slices_are_there_after_a_restart(
        self, hand: Hand, restart: Callable[[], None]
    ) -> None:
        waiting = keep(hand, publish("a.x", body=b"later"))
        batch = accept(hand, keep(hand, *three()))
        batch = enter(hand, batch, *messages_of(hand, batch)[:1])
        restart()
        assert hand.store.open_batches() == [batch]
        assert hand.store.uploads(None) == [waiting]
        ended = enter(hand, batch, *messages_of(hand, batch))
        later = accept(hand, waiting, batch=1)
        restart()
        assert hand.store.batch("q", 0) == ended
        enter(hand, later, *messages_of(hand, later))
        assert bodies(hand) == [b"1", b"2", b"3", b"later"]

    def test_an_upload_without_a_batch_is_swept_after_an_hour(self, hand: Hand) -> None:
        left = keep(hand, *three())
        accept(hand, keep(hand, *three()))
        hand.clock.move(HOUR - 1)
        hand.reap()
        assert hand.store.uploads(None) == [left]
        hand.clock.move(1)
        hand.reap()
        assert hand.store.uploads(None) == []
        with pytest.raises(PayloadReaped):
            hand.store.chunk(left.id)
        with pytest.raises(UploadNotFound):
            accept(hand, left, batch=1)
        (batch,) = hand.store.open_batches()
        enter(hand, batch, *messages_of(hand, batch))
        assert len(bodies(hand)) == 3

    def test_uploads_that_were_left_are_swept_after_a_restart_too(
        self, hand: Hand, restart: Callable[[], None]
    ) -> None:
        left = keep(hand, *three())
        restart()
        hand.clock.move(HOUR)
        hand.reap()
        assert hand.store.uploads(None) == []
        with pytest.raises(PayloadReaped):
            hand.store.chunk(left.id)

    def test_the_uploads_of_a_batch_go_when_its_rows_are_in(self, hand: Hand) -> None:
        upload = keep(hand, *three())
        batch = accept(hand, upload)
        batch = enter(hand, batch, *messages_of(hand, batch)[:2])
        assert [one.id for one in hand.store.uploads(batch.number)] == [upload.id]
        enter(hand, batch, *messages_of(hand, batch))
        assert hand.store.uploads(batch.number) == []
        with pytest.raises(PayloadReaped):
            hand.store.chunk(upload.id)

    def test_a_batch_is_known_for_thirty_days_after_it_entered(self, hand: Hand) -> None:
        batch = accept(hand, keep(hand, *three()))
        enter(hand, batch, *messages_of(hand, batch))
        waiting = accept(hand, keep(hand, *three()), batch=1)
        hand.clock.move(30 * DAY - 1)
        hand.do(Reap())
        assert hand.store.batch("q", 0) is not None
        hand.clock.move(1)
        hand.do(Reap())
        assert hand.store.batch("q", 0) is None
        assert hand.store.open_batches() == [waiting]
