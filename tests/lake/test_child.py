"""The child process over its pipe: what it reads, how it is paced, and that it never outlives its broker."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.lake.traffic import many, of_every_kind, opened
from waypost.arrow import EVENTS
from waypost.http.eventlog import Reading
from waypost.lake.child import NICENESS
from waypost.lake.frames import PIECE_BYTES, Ask, decode_ask, frame, lengths
from waypost.lake.process import WINDOW_PIECES, ChildFailed, ChildGone, Process
from waypost.stores.sqlite import SqliteStore
from waypost.wire import event_json

PATIENCE = 60.0


def within_patience(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE))


@asynccontextmanager
async def child(store: SqliteStore) -> AsyncIterator[Process]:
    process = await Process.start(lambda why: None)
    try:
        await process.ask("begin", source=str(store.path)).end()
        yield process
    finally:
        await process.stop()


def events(process: Process, lo: int, hi: int, **more: Any) -> Any:
    given: dict[str, Any] = {
        "form": "arrow",
        "columns": None,
        "queue": None,
        "channel": None,
        "topic": None,
        "payload": False,
        "limit": None,
        "erased": [],
        "use_lake": False,
        "pieces": WINDOW_PIECES,
    }
    return process.ask("events", lo=lo, hi=hi, **given | more)


async def read(process: Process, lo: int, hi: int, **more: Any) -> bytes:
    return b"".join([body async for _, body in events(process, lo, hi, **more)])


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_frame_is_read_as_it_was_written() -> None:
    written = frame(Ask(7, "events", {"lo": 1, "topic": "früh.*"}), 12)
    head_bytes, body_bytes = lengths(written[:8])
    assert (len(written) - 8, body_bytes) == (head_bytes, 12)
    assert decode_ask(written[8:]) == Ask(7, "events", {"lo": 1, "topic": "früh.*"})


def test_lines_of_json_are_those_that_the_broker_makes(tmp_path: Path) -> None:
    store = opened(tmp_path / "waypost.db")
    of_every_kind(store)
    head = store.bounds()[1]
    assert {event.to_state.name for event in store.events(1, head)} >= set("LQFSXUNIRE")

    async def compare() -> None:
        async with child(store) as process:
            for chosen in (
                {},
                {"queue": "fruit"},
                {"channel": "crm"},
                {"topic": "veg.carrot"},
                {"topic": "cust*"},
            ):
                for limit in (None, 2):
                    wanted = Reading(
                        start=1,
                        until=None,
                        n=None,
                        follow=False,
                        payload=False,
                        queue=chosen.get("queue"),
                        channel=chosen.get("channel"),
                        topic=chosen.get("topic"),
                        arrow=False,
                        columns=None,
                    )
                    expected = [event_json(event) for event in store.events(1, head) if wanted.wants(event)]
                    lines = await read(process, 1, head, form="json", limit=limit, **chosen)
                    assert expected
                    assert lines == msgspec.json.Encoder().encode_lines(expected[:limit])

    within_patience(compare())
    store.close()


def test_an_arrow_stream_has_the_columns_that_were_asked_for(tmp_path: Path) -> None:
    store = opened(tmp_path / "waypost.db")
    of_every_kind(store)
    head = store.bounds()[1]

    async def look() -> None:
        async with child(store) as process:
            whole = pa.ipc.open_stream(await read(process, 1, head)).read_all()
            assert whole.schema == EVENTS
            assert whole["offset"].to_pylist() == list(range(1, head + 1))
            some = pa.ipc.open_stream(
                await read(process, 3, head, columns=["to_state", "offset"], queue="fruit", limit=4)
            ).read_all()
            assert some.schema.names == ["to_state", "offset"]
            of_fruit = [event for event in store.events(3, head) if event.queue == "fruit"][:4]
            assert some["offset"].to_pylist() == [event.offset for event in of_fruit]
            none = pa.ipc.open_stream(await read(process, head + 1, head)).read_all()
            assert (none.num_rows, none.schema) == (0, EVENTS)

    within_patience(look())
    store.close()


@pytest.mark.parametrize(
    ("columns", "word"), [(["nope"], "no column 'nope'"), (["at", "at"], "named twice"), ([""], "no column")]
)
def test_a_column_that_is_none_is_refused_before_the_first_piece(
    tmp_path: Path, columns: list[str], word: str
) -> None:
    store = opened(tmp_path / "waypost.db")

    async def ask() -> None:
        async with child(store) as process:
            with pytest.raises(ChildFailed, match=word) as refused:
                await anext(events(process, 1, 0, columns=columns))
            assert refused.value.code == "COLUMN_UNKNOWN"

    within_patience(ask())
    store.close()


def test_a_range_that_is_not_there_fails_instead_of_ending(tmp_path: Path) -> None:
    store = opened(tmp_path / "waypost.db")
    of_every_kind(store)

    async def ask() -> None:
        async with child(store) as process:
            with pytest.raises(ChildFailed, match="the log ends at"):
                await read(process, 1, store.bounds()[1] + 1)

    within_patience(ask())
    store.close()


def test_the_stores_rows_come_as_arrow(tmp_path: Path) -> None:
    store = opened(tmp_path / "waypost.db")
    of_every_kind(store)
    head = store.bounds()[1]

    ids = [event.message_id for event in store.events(1, head) if event.envelope is not None]
    known = [info for info in map(store.message, ids) if info is not None]
    slots = [(slot.message_id, slot.queue, slot.state.name) for info in known for slot in info.deliveries]

    async def look() -> None:
        async with child(store) as process:

            async def rows(table: str, columns: list[str]) -> list[tuple[Any, ...]]:
                call = process.ask(
                    "table", table=table, lo=1, hi=head, columns=columns, use_lake=False, pieces=8
                )
                found = pa.ipc.open_stream(b"".join([body async for _, body in call])).read_all()
                assert found.schema.names == columns
                return list(zip(*(found[name].to_pylist() for name in columns), strict=True))

            assert await rows("messages", ["state", "message_id"]) == [(i.state.name, i.id) for i in known]
            assert await rows("deliveries", ["message_id", "queue", "state"]) == slots

    within_patience(look())
    store.close()


def test_no_more_is_sent_than_the_reader_asked_for(tmp_path: Path) -> None:
    store = opened(tmp_path / "waypost.db")
    many(store, 8_000)
    head = store.bounds()[1]

    async def slow_reader() -> None:
        async with child(store) as process:
            call = events(process, 1, head, form="json")
            while call._told.qsize() < WINDOW_PIECES:
                await read(process, 1, 1)
            # Others are answered meanwhile, and after several answers nothing more has come.
            for _ in range(3):
                await read(process, 1, 1_000)
            assert call._told.qsize() == WINDOW_PIECES
            pieces = [body async for _, body in call]
            assert len(pieces) > 2 * WINDOW_PIECES
            assert max(map(len, pieces)) <= PIECE_BYTES
            assert b"".join(pieces).count(b"\n") == head

    within_patience(slow_reader())
    store.close()


def test_a_read_that_was_given_up_does_not_hinder_others(tmp_path: Path) -> None:
    store = opened(tmp_path / "waypost.db")
    many(store, 8_000)
    head = store.bounds()[1]

    async def leave() -> None:
        async with child(store) as process:
            for _ in range(5):
                call = events(process, 1, head)
                await anext(call)
                process.drop(call)
            assert pa.ipc.open_stream(await read(process, 1, head)).read_all().num_rows == head

    within_patience(leave())
    store.close()


def test_the_child_has_no_descriptor_but_its_pipe(tmp_path: Path) -> None:
    store = opened(tmp_path / "waypost.db")
    (tmp_path / "open").write_text("held by the broker")

    async def look() -> None:
        with (tmp_path / "open").open() as held:
            os.set_inheritable(held.fileno(), True)
            async with child(store) as process:
                found = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{process.pid}/fd")]
        assert sum(target.startswith("socket:") for target in found) == 1
        assert {target for target in found if not target.startswith("socket:")} <= {
            "/dev/null",
            "anon_inode:[eventpoll]",
        }

    within_patience(look())
    store.close()


def test_the_child_starts_without_what_it_does_not_need(tmp_path: Path) -> None:
    store = opened(tmp_path / "waypost.db")

    async def look() -> None:
        async with child(store) as process:
            loaded = await asyncio.to_thread(Path(f"/proc/{process.pid}/maps").read_text)
            assert "/pyarrow/" in loaded
            assert "/pandas/" not in loaded
            assert "/polars" not in loaded
            assert (
                os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
            )

    within_patience(look())
    store.close()


def test_the_child_ends_with_its_pipe_and_not_with_the_groups_signals(tmp_path: Path) -> None:
    store = opened(tmp_path / "waypost.db")

    async def look() -> None:
        heard: list[str] = []
        process = await Process.start(heard.append)
        await process.ask("begin", source=str(store.path)).end()
        for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(process.pid, sign)
        assert await read(process, 1, 0)
        await process.stop()
        assert gone(process.pid)
        assert heard == []

    within_patience(look())
    store.close()


def test_whoever_waits_hears_that_the_child_was_killed(tmp_path: Path) -> None:
    store = opened(tmp_path / "waypost.db")
    many(store, 8_000)

    async def kill() -> None:
        heard: list[str] = []
        process = await Process.start(heard.append)
        await process.ask("begin", source=str(store.path)).end()
        call = events(process, 1, store.bounds()[1])
        await anext(call)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ChildGone, match="SIGKILL"):
            await call.end()
        with pytest.raises(ChildGone):
            await process.ask("begin", source="").end()
        assert process.gone
        assert [f"process {process.pid} ended: signal SIGKILL" in why for why in heard] == [True]
        await process.stop()

    within_patience(kill())
    store.close()


def test_a_child_that_cannot_begin_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyarrow").mkdir()
    (tmp_path / "pyarrow" / "__init__.py").write_text("raise ImportError('this pyarrow is broken')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    async def start() -> None:
        heard: list[str] = []
        process = await Process.start(heard.append)
        with pytest.raises(ChildGone, match="this pyarrow is broken"):
            await process.ask("begin", source="").end()
        assert len(heard) == 1
        await process.stop()

    within_patience(start())
