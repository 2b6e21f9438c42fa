"""Many statements as one, within what CockroachDB allows too."""

import pytest

from tests.postgres.fixtures import database
from waypost.stores.postgres.columns import bigints
from waypost.stores.postgres.connecting import connect
from waypost.stores.postgres.statements import Together, insert, update

__all__ = ["database"]

NUMBERS = "numbers (number bigint, square bigint)"


def test_parts_run_as_one_and_the_last_one_returns(database: str) -> None:
    with connect(database) as connection, connection.cursor() as db:
        db.execute("create temporary table numbers (number bigint primary key, square bigint)")
        db.execute("create temporary table others (number bigint primary key)")
        together = Together()
        assert not together
        insert(together, NUMBERS, [(1, 1), (2, None)])
        source = together.execute("select * from unnest(%b::bigint[]) as u (number)", [bigints([3, 4])])
        together.execute(f"insert into numbers (number) select number from {source}")
        insert(together, "others (number bigint)", [(7,)], "(number) do nothing returning number")
        assert together.run(db).fetchall() == [(7,)]
        changes = Together()
        update(changes, "numbers", "number bigint", "square bigint", [(2, 4), (3, 9)])
        changes.run(db)
        found = db.execute("select number, square from numbers order by number").fetchall()
        assert found == [(1, 1), (2, 4), (3, 9), (4, None)]


def test_each_part_returns_something() -> None:
    together = Together()
    insert(together, NUMBERS, [(1, 1)])
    insert(together, "others (number bigint)", [(1,)])
    (text, _) = together.text()
    assert text == (
        b"with s0 as (insert into numbers (number, square) select * from unnest($1::bigint[], $2::bigint[]) returning 1)"
        b" insert into others (number) select * from unnest($3::bigint[])"
    )


@pytest.mark.parametrize("conflict", [True, False])
def test_no_two_parts_change_a_table(conflict: bool) -> None:
    together = Together()
    insert(together, NUMBERS, [(1, 1)])
    insert(together, NUMBERS, [(2, 4)])
    together.text()
    if conflict:
        insert(together, NUMBERS, [(3, 9)], "(number) do nothing")
    else:
        update(together, "numbers", "number bigint", "square bigint", [(3, 9)])
    with pytest.raises(ValueError, match="two parts of one statement change numbers"):
        together.text()
