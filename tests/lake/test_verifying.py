"""What `waypost lake verify` finds, and that it finds nothing where nothing is wrong."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.lake import rows
from tests.lake.dying import moment_of
from waypost.arrow import PAYLOADS
from waypost.lake import delta, maintaining, sealing
from waypost.lake.mending import entry_path
from waypost.lake.owner import SEALER, Lake, claim
from waypost.lake.verifying import Figures, Verification

HEAD = 900


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Three files of each table."""
    lake = Lake(tmp_path / "lake")
    claim(lake, "a store", sealed=None)
    sealing.seal_upto(rows.Source(HEAD), lake, range_events=300)
    return lake


def findings(lake: Lake, log: rows.Source | None = None) -> list[str]:
    return [str(finding) for finding in Verification(lake, log).findings()]


def a_file(path: Path, number: int = 1) -> Path:
    column = "offset" if path.name == "message_events" else "sequence"
    return delta.data_files(delta.open_table(path), path, column)[number].path


def replaced(path: Path, table: pa.Table, number: int = 1) -> None:
    """A commit that puts other rows in the place of a file's, as no sealer would."""
    opened = delta.open_table(path)
    column = "offset" if path.name == "message_events" else "sequence"
    old = delta.data_files(opened, path, column)[number]
    delta.rewrite(opened, path, [old], table.to_batches(), app=SEALER, data_change=True)


def test_a_whole_lake_has_no_findings_and_the_figures_say_what_was_looked_at(lake: Lake) -> None:
    seen: list[tuple[int, int]] = []
    verification = Verification(lake, rows.Source(HEAD), lambda done, all_of: seen.append((done, all_of)))
    assert list(verification.findings()) == []
    size = sum(
        file.stat().st_size for path in (lake.events, lake.payloads) for file in path.glob("*.parquet")
    )
    assert verification.figures == Figures(
        findings=0, files=6, size=size, events=HEAD, payloads=300, compared=HEAD, oldest=1, sealed=HEAD
    )
    assert seen[-1] == (HEAD + 300, HEAD + 300)


def test_a_lake_that_was_compacted_erased_and_shortened_is_whole(lake: Lake) -> None:
    maintaining.erase(lake, [301, 304])
    maintaining.maintain(lake, older_than=moment_of(101))
    verification = Verification(lake, rows.Source(HEAD, oldest=500))
    assert list(verification.findings()) == []
    figures = verification.figures
    assert (figures.oldest, figures.sealed, figures.events) == (101, HEAD, HEAD - 100)
    assert (figures.without_body, figures.compared, figures.files) == (2, HEAD - 499, 2)


def test_a_missing_file_is_named_with_what_it_held(lake: Lake) -> None:
    file = a_file(lake.events)
    file.unlink()
    assert findings(lake) == [
        f"message_events: {file.name} is missing, and with it 300 rows from 301 to 600",
        "message_events: after offset 300 comes 601",
        "payloads: a row for 301, 304, 307 and 97 more up to 598, not logged in message_events",
    ]


def test_a_file_of_another_size_is_named(lake: Lake) -> None:
    file = a_file(lake.payloads)
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    assert findings(lake) == [
        f"payloads: {file.name} has {len(whole) - 10} bytes instead of {len(whole)}: 100 rows from 301 to 598",
        "payloads: no row for 301, 304, 307 and 97 more up to 598, logged in message_events",
    ]


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_looked_at(lake: Lake) -> None:
    file = a_file(lake.events, 2)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] + bytes(200) + whole[len(whole) // 2 + 200 :])
    found = findings(lake)
    assert len(found) == 3
    assert str(file) in found[0]
    assert "with it 300 rows from 601 to 900" in found[0]
    assert found[1] == "message_events: ends with offset 600, and 900 were sealed"


def test_rows_that_are_missing_doubled_or_out_of_order_are_found(lake: Lake) -> None:
    whole = rows.events(301, 600)
    replaced(lake.events, pa.concat_tables([whole.slice(0, 99), whole.slice(100)]))
    assert findings(lake)[0] == "message_events: after offset 399 comes 401"
    replaced(lake.events, pa.concat_tables([whole.slice(0, 100), whole.slice(99)]))
    assert findings(lake) == ["message_events: after offset 400 comes 400"]
    replaced(lake.events, pa.concat_tables([whole.slice(150), whole.slice(0, 150)]))
    found = findings(lake)
    assert "message_events: after offset 300 comes 451" in found
    assert "message_events: the moment of offset 301 is before the one of the last" in found


def test_a_body_that_does_not_fit_its_hash_is_found(lake: Lake) -> None:
    table = pa.Table.from_batches(rows.payloads(301, 600))
    bodies = [b"something else" if n == 304 else rows.body(n) for n in table["sequence"].to_pylist()]
    index = PAYLOADS.get_field_index("body")
    replaced(lake.payloads, table.set_column(index, PAYLOADS.field("body"), pa.array(bodies, pa.binary())))
    assert findings(lake) == ["payloads: the body of 304 is not the one that was published"]


def test_a_log_that_says_other_than_the_files_is_found(lake: Lake) -> None:
    entry = entry_path(lake.events, 2)
    entry.write_text(entry.read_text().replace('\\"numRecords\\": 300', '\\"numRecords\\": 299'))
    (found,) = findings(lake)
    assert "has 300 rows from 301 to 600; its log says 299 rows from 301 to 600" in found


def test_other_events_than_the_store_has_are_found(lake: Lake) -> None:
    class Other(rows.Source):
        def events(self, lo: int, hi: int) -> pa.Table:
            table = super().events(lo, hi)
            consumers = ["somebody" if name else None for name in table["consumer"].to_pylist()]
            return table.set_column(table.column_names.index("consumer"), "consumer", pa.array(consumers))

    assert findings(lake, Other(HEAD)) == [
        "message_events: consumer of offset 3 is 'worker-1', and the store has 'somebody'"
    ]


def test_a_lake_with_no_label_or_no_table_has_one_finding_each(lake: Lake) -> None:
    lake.label.unlink()
    lake.payloads.rename(lake.folder / "elsewhere")
    found = findings(lake)
    assert found[0] == "lake.json: is missing: nothing says whose lake this is"
    assert found[1].endswith("payloads is no Delta table")
    assert len(found) == 2
