"""A few kills of brokers on a PostgreSQL, and of PostgreSQL, with the load and the judge of `make prove`."""

import pytest

from prove.shared import BOTH, ONE, ONLY, SERVER, round_of_postgres_kills
from scripts.postgres_server import programs
from tests.conftest import miss


@pytest.mark.timeout(110)
def test_nothing_acknowledged_is_lost_when_brokers_and_their_database_are_killed() -> None:
    if programs() is None:
        miss("PostgreSQL's programs are not on this machine")
    struck = round_of_postgres_kills(seed=22, kills=4)

    verdict = struck.verdict
    assert verdict.findings == []
    assert verdict.faultless
    assert struck.faults == 4
    assert set(struck.victims) == {ONLY, ONE, SERVER, BOTH}
    assert verdict.acknowledged > 50
    assert verdict.confirmed > 20
    assert verdict.events >= 4 * verdict.acknowledged
