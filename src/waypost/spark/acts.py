"""Act on rows: redrive, replay or cancel the deliveries that a DataFrame names.

    dead = table(spark, "dead_letters", url=url).where("reason like '%timeout%'")
    print(redrive(dead, url))                          counts, and changes nothing
    print(redrive(dead, url, dry_run=False, rate=50))

    rows ──▶ survey: which exist, in which state, of which sequence ──▶ by sequence, in slices, at the rate ──▶ counts
             └────────────── as of one moment: what changes after it is left alone ──────────────┘

The survey's moment is the fence: a delivery that has changed since, by this call, an earlier one or anybody else, is not touched. So whatever breaks
off is repeated with the same `as_of`, and nothing is done twice. A cancel is its own fence: what is cancelled waits no more.

The rows' names are held by the driver: about 100 bytes each. Executors do not speak with the broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_waypost.options import DEFAULT_URL

from ..client import Acted, BlockingClient, Unreachable
from ..client.forms import instant
from ..consumers import check_rate
from ..errors import Refused, WaypostError
from .failures import in_one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Verb = Literal["redrive", "replay", "cancel"]

#: what the broker takes in one request
SLICE = 1_000
#: unknown ones that a result names
SHOWN = 10
#: how long a broker that does not answer is waited for
PATIENCE_SECONDS = 30.0
#: at a rate, so many times a second
TURNS_A_SECOND = 10

_DONE = {"redrive": "redriven", "replay": "replayed", "cancel": "cancelled"}
_COLUMNS = ("message_id", "queue", "channel")
#: what can be the id of a message, the name of a queue or channel
_ID, _NAME = r"^[a-z0-9-]{1,50}$", r"^[a-z0-9][a-z0-9_.-]{0,199}$"
#: hears how many rows are done, and of how many
Progress = Callable[[int, int], None]


class ActImpossible(WaypostError):
    """It could not be done, or not to its end; the text says why, and how to go on."""


@dataclass
class Outcome:
    """What became of the rows; of a dry run, what would become of them. A row without queue and channel may stand for several deliveries."""

    verb: Verb
    dry_run: bool
    #: different ones
    rows: int
    #: the moment, of the broker's clock, at which the deliveries were looked at: with it, a repeat touches nothing twice
    as_of: str = ""
    #: deliveries touched, and in which states they were
    matched: int = 0
    states: dict[str, int] = field(default_factory=dict)
    #: left alone: by their states; because they have changed since; because nobody could have them
    left: dict[str, int] = field(default_factory=dict)
    changed: int = 0
    unable: int = 0
    #: rows for which there is no delivery, and the first of them
    unknown: int = 0
    unknown_ids: list[str] = field(default_factory=list)

    def add(self, acted: Acted) -> None:
        self.matched += acted.matched
        self.changed += acted.changed
        self.unable += acted.unable
        for counts, more in ((self.states, acted.states), (self.left, acted.left)):
            for letter, count in more.items():
                counts[letter] = counts.get(letter, 0) + count

    def miss(self, ids: list[str]) -> None:
        self.unknown += len(ids)
        self.unknown_ids += ids[: SHOWN - len(self.unknown_ids)]

    def __str__(self) -> str:
        would = "would be " if self.dry_run else ""
        as_of = f" as of {self.as_of}" if self.as_of else ""
        lines = [
            f"{self.matched:,} {would}{_DONE[self.verb]}{_by_state(self.states)}{as_of}",
            f"  left alone: {sum(self.left.values()):,}{_by_state(self.left)}" if self.left else "",
            f"  changed since: {self.changed:,}" if self.changed else "",
            f"  without a body, or not for this consumer: {self.unable:,}" if self.unable else "",
            f"  unknown: {self.unknown:,} of {self.rows:,} rows: {', '.join(self.unknown_ids)}{' …' * (self.unknown > len(self.unknown_ids))}"
            if self.unknown
            else "",
        ]
        return "\n".join(line for line in lines if line)


def _by_state(counts: Mapping[str, int]) -> str:
    return f" ({', '.join(f'{count:,} in {letter}' for letter, count in counts.items())})" if counts else ""


def redrive(
    df: DataFrame,
    url: str = DEFAULT_URL,
    *,
    dry_run: bool = True,
    rate: float | None = None,
    states: str | None = None,
    as_of: datetime | str | None = None,
    consumer: str | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Dead letters that the rows name back to where they were; with `states`, other ended ones.

    `df` has `message_id`, and may have `queue` and `channel`: where both are null or missing, all deliveries of the message are meant. `rate`:
    so many rows a second. `consumer`: only this one may have them then. `progress` hears how many rows are done, and of how many.
    """
    return _act(_How("redrive", states, as_of, consumer), df, url, dry_run, rate, progress)


def replay(
    df: DataFrame,
    url: str = DEFAULT_URL,
    *,
    dry_run: bool = True,
    rate: float | None = None,
    states: str | None = None,
    as_of: datetime | str | None = None,
    consumer: str | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """As `redrive`, of everything that has ended: also what was confirmed."""
    return _act(_How("replay", states, as_of, consumer), df, url, dry_run, rate, progress)


def cancel(
    df: DataFrame,
    url: str = DEFAULT_URL,
    *,
    dry_run: bool = True,
    rate: float | None = None,
    states: str | None = None,
    as_of: datetime | str | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Those that wait out of their queues and channels; with `as_of`, only what has not changed since."""
    return _act(_How("cancel", states, as_of), df, url, dry_run, rate, progress)


@dataclass(frozen=True)
class _How:
    verb: Verb
    states: str | None = None
    as_of: datetime | str | None = None
    consumer: str | None = None


def _act(
    how: _How, df: DataFrame, url: str, dry_run: bool, rate: float | None, progress: Progress | None
) -> Outcome:
    with _plainly(lambda: "nothing was touched"):
        pace = None if rate is None else check_rate(rate)
        outcome, named = _named(how.verb, df)
        with BlockingClient(url, patience=PATIENCE_SECONDS) as client:
            sequences = _survey(client, how, named, outcome)
    if dry_run:
        return outcome
    known = _in_order(named, sequences)
    done = Outcome(
        how.verb, False, outcome.rows, outcome.as_of, unknown=outcome.unknown, unknown_ids=outcome.unknown_ids
    )
    with _plainly(lambda: _how_to_go_on(how, done)), BlockingClient(url, patience=PATIENCE_SECONDS) as client:
        for rows, acted in _work(client, how, known, outcome.as_of, pace):
            done.add(acted)
            if progress is not None:
                progress(rows, known.num_rows)
    return done


@contextmanager
def _plainly(standing: Callable[[], str]) -> Iterator[None]:
    """What the broker and Spark say in one line, and how things stand."""
    try:
        yield
    except Unreachable as gone:
        raise ActImpossible(f"no broker answers at {gone.url} ({gone.detail}): {standing()}") from gone
    except Refused as refused:
        raise ActImpossible(f"{refused.detail}; {refused.hint}: {standing()}") from refused


def _how_to_go_on(how: _How, done: Outcome) -> str:
    fence = f" with as_of={done.as_of!r}" if _fence(how, done.as_of) is not None else ""
    return f"{done.matched:,} are {_DONE[how.verb]}, and the same call{fence} goes on and does nothing twice"


def _fence(how: _How, as_of: str) -> str | None:
    """What has changed since then is left alone."""
    return instant(how.as_of) if how.verb == "cancel" else as_of


# --- the rows ----------------------------------------------------------------------------------------------------


def _named(verb: Verb, df: DataFrame) -> tuple[Outcome, pa.Table]:
    """The different rows that can be asked for; what can be no delivery's name is unknown already."""
    types = dict(df.dtypes)
    if types.get("message_id") != "string":
        told = f"has {', '.join(df.columns) or 'none'}" if "message_id" not in types else "is no string"
        raise ActImpossible(f"a DataFrame with the column message_id (string) is needed; this one {told}")
    for name in _COLUMNS[1:]:
        if types.get(name, "string") != "string":
            raise ActImpossible(f"the column {name} is {types[name]}, and a string is needed")
    columns = [name for name in _COLUMNS if name in types]
    with in_one_line():
        rows = df.select(*columns).distinct().toArrow()
    for name in _COLUMNS:
        if name not in columns:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.string()))
    if rows["message_id"].null_count:
        raise ActImpossible(f"{rows['message_id'].null_count:,} rows have no message_id")
    both = pc.and_(pc.is_valid(rows["queue"]), pc.is_valid(rows["channel"]))
    if pc.any(both).as_py():
        first = rows.filter(both)["message_id"][0].as_py()
        raise ActImpossible(
            f"a row names a queue and a channel, and one of them is needed: message_id {first!r}"
        )
    sound = pc.match_substring_regex(rows["message_id"], _ID)
    for name in _COLUMNS[1:]:
        sound = pc.and_(sound, pc.fill_null(pc.match_substring_regex(rows[name], _NAME), True))
    outcome = Outcome(verb, True, rows.num_rows)
    outcome.miss(rows.filter(pc.invert(sound))["message_id"].to_pylist())
    return outcome, rows.filter(sound)


def _slices(rows: pa.Table, most: int) -> Iterator[list[dict[str, str]]]:
    for start in range(0, rows.num_rows, most):
        columns = (rows.slice(start, most)[name].to_pylist() for name in _COLUMNS)
        yield [
            {"id": id}
            | ({} if queue is None else {"queue": queue})
            | ({} if channel is None else {"channel": channel})
            for id, queue, channel in zip(*columns, strict=True)
        ]


def _in_order(rows: pa.Table, sequences: list[int | None]) -> pa.Table:
    """Those that exist, in the order of the log."""
    numbered = rows.append_column("sequence", pa.array(sequences, pa.int64()))
    return numbered.filter(pc.is_valid(numbered["sequence"])).sort_by("sequence")


# --- the broker --------------------------------------------------------------------------------------------------


def _survey(client: BlockingClient, how: _How, named: pa.Table, outcome: Outcome) -> list[int | None]:
    """What an act would do, as of the moment given or else of the first answer; and the sequence of each row."""
    outcome.as_of = instant(how.as_of) or ""
    sequences: list[int | None] = []
    for rows in _slices(named, SLICE):
        fence = _fence(how, outcome.as_of) or None
        acted = client.act(
            how.verb, rows, dry_run=True, states=how.states, as_of=fence, consumer=how.consumer
        )
        outcome.as_of = outcome.as_of or acted.at
        outcome.add(acted)
        outcome.miss([one["id"] for one in acted.unknown])
        sequences += acted.sequences
    return sequences


def _work(
    client: BlockingClient, how: _How, known: pa.Table, as_of: str, pace: float | None
) -> Iterator[tuple[int, Acted]]:
    """(rows done, what became of a slice); not quicker than the pace."""
    most = SLICE if pace is None else max(1, min(SLICE, int(pace / TURNS_A_SECOND)))
    fence = _fence(how, as_of)
    done, due = 0, time.monotonic()
    for rows in _slices(known, most):
        time.sleep(max(0.0, due - time.monotonic()))
        acted = client.act(how.verb, rows, states=how.states, as_of=fence, consumer=how.consumer)
        done += len(rows)
        due = time.monotonic() if pace is None else due + len(rows) / pace
        yield done, acted
