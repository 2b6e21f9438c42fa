"""Policies: JSON there and back, and refusals that name the field."""

import pytest

from waypost.errors import RequestInvalid
from waypost.instants import SECOND
from waypost.policy import DEFAULT, Policy, parse_policy, policy_json

WHOLE = Policy(
    lease_us=1_500_000,
    retries=9,
    complete=2,
    order="key",
    latest_only=True,
    kick=True,
    ttl_us=90 * SECOND,
    backoff_base_us=2 * SECOND,
    backoff_cap_us=60 * SECOND,
    max_messages=10,
    max_bytes=1 << 40,
    keep_us=0,
    dead="graves",
    paused=True,
)


@pytest.mark.parametrize(
    "policy", [DEFAULT, WHOLE, Policy(complete="per_topic"), Policy(complete="all", lease_us=1_000)]
)
def test_a_policy_comes_back_from_its_json(policy: Policy) -> None:
    assert parse_policy(policy_json(policy)) == policy


def test_what_is_left_out_takes_its_default() -> None:
    assert parse_policy({}) == DEFAULT
    assert parse_policy({"retries": 5}) == Policy(retries=5)
    assert parse_policy({"backoff": {"base": 5}}) == Policy(backoff_base_us=5 * SECOND)


def test_the_defaults_are_those_of_the_design() -> None:
    assert policy_json(DEFAULT) == {
        "lease": 10,
        "retries": 3,
        "complete": "any",
        "order": "fifo",
        "latestOnly": False,
        "kick": False,
        "ttl": None,
        "backoff": {"base": 1, "cap": "10m"},
        "maxMessages": None,
        "maxBytes": None,
        "keep": "7d",
        "dead": None,
        "paused": False,
    }
    assert parse_policy({"backoff": {"base": 1, "cap": 600}}) == DEFAULT


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("lease", [0, -1, None, "x", 43_201, True, 0.0001, {}]),
        ("retries", [0, 10, "3", True, None, 1.5]),
        ("complete", ["none", -1, 101, True, None, 1.5, []]),
        ("order", ["lifo", None, 1, []]),
        ("latestOnly", [1, None, "true"]),
        ("kick", [0, None, "false"]),
        ("ttl", [-1, "soon", True]),
        (
            "backoff",
            [5, None, {"bottom": 1}, {"base": -1}, {"cap": "x"}, {"base": 5, "cap": 1}, {"cap": 0.5}],
        ),
        ("maxMessages", [0, -1, True, "5", 2**62, 1.5]),
        ("maxBytes", [0, -1, True, "5", 2**62, 1.5]),
        ("keep", [-1, None, "for ever"]),
        ("dead", [1, "Not A Name", "", []]),
        ("paused", [1, None]),
        ("lesae", [10]),
    ],
)
def test_every_refusal_names_its_field(field: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(RequestInvalid) as refused:
            parse_policy({field: value})
        assert field in refused.value.detail, value
        assert refused.value.hint


@pytest.mark.parametrize("given", [None, [], "lease", 3, [("lease", 10)]])
def test_a_policy_is_a_json_object(given: object) -> None:
    with pytest.raises(RequestInvalid):
        parse_policy(given)


def test_only_policies_that_count_distinct_consumers_want_names() -> None:
    counts = {
        complete: Policy(complete=complete).counts_consumers
        for complete in ("any", 0, 1, 2, "all", "per_topic")
    }
    assert counts == {"any": False, 0: False, 1: False, 2: True, "all": True, "per_topic": True}
