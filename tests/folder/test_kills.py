"""A few kills of a broker that serves a folder, with the load and the judge of `make prove`."""

import pytest

from prove.kills import round_of_kills


@pytest.mark.timeout(110)
def test_nothing_acknowledged_is_lost_however_often_a_broker_on_a_folder_is_killed() -> None:
    struck = round_of_kills(seed=7, kills=4, on_folder=True)

    verdict = struck.verdict
    assert verdict.findings == []
    assert verdict.faultless
    assert struck.faults == 4
    assert verdict.acknowledged > 50
    assert verdict.confirmed > 20
    assert verdict.events >= 3 * verdict.acknowledged
