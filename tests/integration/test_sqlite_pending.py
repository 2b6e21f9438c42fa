"""Rows that wait for their group: in any number, in runs that share more or less, and gone with a roll-back."""

from collections.abc import Iterator

import apsw
import pytest

from waypost.stores.sqlite.files import schema_text
from waypost.stores.sqlite.pending import Pending, Rows


@pytest.fixture
def db() -> Iterator[apsw.Connection]:
    connection = apsw.Connection(":memory:")
    connection.execute(schema_text())
    yield connection
    connection.close()


@pytest.mark.parametrize("count", [1, 3, 4, 5, 31, 32, 33, 100])
def test_every_row_is_written_once_with_what_it_shares(count: int, db: apsw.Connection) -> None:
    db.execute("create table t (key integer primary key, shared, own)")
    rows = Rows("insert into t", "({}, ?1, {})")
    wanted = [(key, "even" if key // 7 % 2 else "odd", -key) for key in range(1, count + 1)]
    for key, shared, own in wanted:
        rows.add((shared,), (key, own))
    assert rows.first == 1
    rows.write(db)
    assert db.execute("select * from t order by key").fetchall() == wanted
    assert not rows
    rows.write(db)
    assert db.execute("select count(*) from t").get == count


def test_what_a_roll_back_undid_is_not_written_by_a_later_group(db: apsw.Connection) -> None:
    pending = Pending(db)
    pending.keys[0, "k"] = (b"hash", "id", 3, None)
    db.execute("alter table idempotency rename to elsewhere")
    with pytest.raises(apsw.SQLError):
        pending.flush()
    pending.clear()
    db.execute("alter table elsewhere rename to idempotency")
    pending.keys[0, "other"] = (b"hash", "id", 3, None)
    pending.flush()
    assert db.execute("select key from idempotency").fetchall() == [("other",)]
