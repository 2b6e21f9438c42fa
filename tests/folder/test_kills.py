"""A few kills of brokers that serve a folder, with the load and the judge of `make prove`."""

import pytest

from prove.shared import ONE, ONLY, round_of_folder_kills


@pytest.mark.timeout(110)
def test_nothing_acknowledged_is_lost_however_often_a_broker_on_a_folder_is_killed() -> None:
    struck = round_of_folder_kills(seed=7, kills=4)

    verdict = struck.verdict
    assert verdict.findings == []
    assert verdict.faultless
    assert struck.faults == 4
    assert set(struck.victims) == {ONLY, ONE}
    assert verdict.acknowledged > 50
    assert verdict.confirmed > 20
    assert verdict.events >= 3 * verdict.acknowledged
