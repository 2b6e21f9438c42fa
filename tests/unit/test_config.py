"""Settings: which of several sayings counts, and what cannot be meant."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from waypost.config import SETTINGS, SettingInvalid, read_file, resolve, shown, unknown_variables

FILE = ("waypost.toml", {"port": 7000, "store": "memory:///"})


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default() -> None:
    settings = resolve({"port": "9000"}, {"WAYPOST_PORT": "8000", "WAYPOST_HOST": "::1"}, FILE)
    assert settings["port"] == (9000, "--port")
    assert settings["host"] == ("::1", "WAYPOST_HOST")
    assert settings["store"] == ("memory:///", "waypost.toml")
    assert settings["log"] == ("text", "default")


def test_the_defaults_are_those_of_the_rulings() -> None:
    settings = resolve({}, {})
    assert set(settings) == set(SETTINGS)
    assert settings["port"].value == 8080
    assert settings["store"].value == "sqlite:///waypost-data/waypost.db"
    assert settings["host"].value == "127.0.0.1"
    assert settings["access-log"].value is False


def test_an_empty_variable_says_nothing() -> None:
    assert resolve({}, {"WAYPOST_PORT": ""})["port"] == (8080, "default")


def test_names_come_from_commas_lists_and_repeated_flags_alike() -> None:
    for flags, environ, file in (
        ({"name": ["a", "b"]}, {}, None),
        ({}, {"WAYPOST_NAME": "a, b"}, None),
        ({}, {}, ("waypost.toml", {"name": ["a", "b"]})),
    ):
        assert resolve(flags, environ, file)["name"].value == ("a", "b")


def test_a_router_its_time_and_the_networks_of_webhooks_are_read() -> None:
    said = {"WAYPOST_ROUTER": "routing.mine:route", "WAYPOST_ROUTER_TIMEOUT": "0.5"}
    settings = resolve({"push_allow": None, "push-allow": ["10.1.0.0/16", "::1"]}, said)
    assert settings["router"].value == "routing.mine:route"
    assert settings["router-timeout"].value == 0.5
    assert settings["push-allow"].value == ("10.1.0.0/16", "::1/128")
    assert resolve({}, {})["router"].value == "none"


@pytest.mark.parametrize(("said", "meant"), [("1", True), ("off", False), ("TRUE", True), ("no", False)])
def test_a_switch_is_said_in_many_ways(said: str, meant: bool) -> None:
    assert resolve({}, {"WAYPOST_ACCESS_LOG": said})["access-log"].value is meant


@pytest.mark.parametrize(
    ("environ", "file", "named"),
    [
        ({"WAYPOST_PORT": "http"}, {}, "WAYPOST_PORT should be a number"),
        ({"WAYPOST_PORT": "65536"}, {}, "WAYPOST_PORT"),
        ({"WAYPOST_PORT": "8_0"}, {}, "WAYPOST_PORT"),
        ({"WAYPOST_LOG": "xml"}, {}, "text or json, not 'xml'"),
        ({"WAYPOST_ACCESS_LOG": "maybe"}, {}, "true or false"),
        ({"WAYPOST_ROUTER": "routing"}, {}, "WAYPOST_ROUTER should be module:function, or none"),
        ({"WAYPOST_ROUTER": "my routing:route"}, {}, "WAYPOST_ROUTER"),
        ({"WAYPOST_ROUTER_TIMEOUT": "soon"}, {}, "a number of seconds, from 0.01 to 3600, not 'soon'"),
        ({"WAYPOST_ROUTER_TIMEOUT": "nan"}, {}, "WAYPOST_ROUTER_TIMEOUT"),
        ({}, {"router-timeout": True}, "waypost.toml: router-timeout"),
        (
            {"WAYPOST_PUSH_ALLOW": "10.0.0.1/8"},
            {},
            "WAYPOST_PUSH_ALLOW should be networks such as 10.1.0.0/16",
        ),
        ({}, {"port": True}, "waypost.toml: port"),
        ({}, {"port": 80.5}, "waypost.toml: port"),
        ({}, {"store": ""}, "waypost.toml: store"),
        ({}, {"name": [1]}, "waypost.toml: name"),
        ({}, {"prot": 1}, "unknown setting 'prot'; known: host, port"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(
    environ: Mapping[str, str], file: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(SettingInvalid) as refused:
        resolve({}, environ, ("waypost.toml", file))
    assert named in str(refused.value)


def test_a_folder_without_the_file_has_nothing_to_say(tmp_path: Path) -> None:
    assert read_file({}, tmp_path) is None


def test_the_file_is_found_in_the_folder_or_by_its_variable(tmp_path: Path) -> None:
    (tmp_path / "waypost.toml").write_text("port = 9000\n")
    (tmp_path / "other.toml").write_text("port = 9001\n")
    assert read_file({}, tmp_path) == ("waypost.toml", {"port": 9000})
    other = str(tmp_path / "other.toml")
    assert read_file({"WAYPOST_CONFIG": other}, tmp_path) == (other, {"port": 9001})


def test_a_named_file_that_is_missing_or_broken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid, match="not there"):
        read_file({"WAYPOST_CONFIG": str(tmp_path / "none.toml")}, tmp_path)
    (tmp_path / "waypost.toml").write_text("port = \n")
    with pytest.raises(SettingInvalid, match="not TOML"):
        read_file({}, tmp_path)


def test_a_misspelt_variable_is_noticed() -> None:
    environ = {"WAYPOST_PROT": "1", "WAYPOST_PORT": "1", "WAYPOST_CONFIG": "x", "PATH": "/bin"}
    assert unknown_variables(environ) == ["WAYPOST_PROT"]


def test_values_are_shown_as_they_would_be_written() -> None:
    assert [shown(value) for value in (True, (), ("a", "b"), 80)] == ["true", "none", "a, b", "80"]
