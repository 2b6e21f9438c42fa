"""Settings: what they are called, and where each value comes from.

    flag  >  WAYPOST_… in the environment  >  waypost.toml  >  default

    port = 9000                              waypost.toml, in the folder where the command is started
    store = "sqlite:////srv/waypost.db"      (WAYPOST_CONFIG names another)

`resolve` decides and is pure; `load` looks at this process's environment and disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .errors import WaypostError

FILE = "waypost.toml"
FILE_VARIABLE = "WAYPOST_CONFIG"
#: set to anything, an error that nobody foresaw shows where it happened
TRACEBACK_VARIABLE = "WAYPOST_TRACEBACK"
#: messages go where they name
NO_ROUTER = "none"
#: of the lake: beside the store, where that is a file; nowhere
LAKE_BESIDE = "beside"
LAKE_OFF = "off"
LAKE_FOREVER = "forever"
MOST_PEERS = 1_000
LAKE_KEEP_LEAST_US = 8 * 86_400_000_000


class SettingInvalid(WaypostError):
    """A setting that cannot be meant; its text says which, from where, and what it should be."""


class Setting(NamedTuple):
    name: str
    default: Any
    #: from what a flag, a variable or the file says; raises ValueError with what it should be
    read: Callable[[Any], Any]
    text: str

    @property
    def variable(self) -> str:
        return "WAYPOST_" + self.name.upper().replace("-", "_")

    @property
    def flag(self) -> str:
        return "--" + self.name


class Value(NamedTuple):
    value: Any
    #: "default", or the flag, variable or file that said so
    origin: str


def _text(given: Any) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ValueError("a text")
    return given.strip()


def _port(given: Any) -> int:
    # int() would take "1_0", True and 80.5
    text = str(given) if isinstance(given, int | str) and not isinstance(given, bool) else ""
    if not text.isascii() or not text.isdigit() or not 0 <= int(text) <= 65_535:
        raise ValueError("a number from 0 (any free port) to 65535")
    return int(text)


def _names(given: Any) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(
        isinstance(name, str) and name.strip() for name in names
    ):
        raise ValueError("host names, several separated by commas")
    return tuple(name.strip() for name in names)


def _networks(given: Any) -> tuple[str, ...]:
    from ipaddress import ip_network  # only where one is named

    wanted = "networks such as 10.1.0.0/16, several separated by commas"
    try:
        return tuple(str(ip_network(network)) for network in _names(given))
    except ValueError:
        raise ValueError(wanted) from None


def _router(given: Any) -> str:
    text = _text(given)
    module, colon, function = text.partition(":")
    named = [*module.split("."), *function.split(".")]
    if text != NO_ROUTER and not (colon and all(part.isidentifier() for part in named)):
        raise ValueError(f"module:function, or {NO_ROUTER}")
    return text


def _seconds(given: Any) -> float:
    try:
        seconds = float(given) if isinstance(given, int | float | str) else 0.0
    except ValueError:
        seconds = 0.0
    if isinstance(given, bool) or not 0.01 <= seconds <= 3_600:
        raise ValueError("a number of seconds, from 0.01 to 3600")
    return seconds


def _kept(given: Any) -> str:
    from .errors import RequestInvalid
    from .instants import parse_span

    text = str(given).strip() if isinstance(given, int | float | str) else ""
    try:
        # The lake may not forget what the store still has, which keeps a week of it.
        if text == LAKE_FOREVER or (not isinstance(given, bool) and parse_span(text) >= LAKE_KEEP_LEAST_US):
            return text
    except RequestInvalid:
        pass
    raise ValueError(f"a span of time such as 90d, at least 8d, or {LAKE_FOREVER}")


def _switch(given: Any) -> bool:
    known = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }
    word = str(given).lower() if isinstance(given, str | bool | int) else ""
    if word not in known:
        raise ValueError("true or false")
    return known[word]


def _peers(given: Any) -> int:
    text = str(given) if isinstance(given, int | str) and not isinstance(given, bool) else ""
    if not text.isascii() or not text.isdigit() or int(text) > MOST_PEERS:
        raise ValueError(f"a number from 0 (order is kept) to {MOST_PEERS}")
    return int(text)


def _log(given: Any) -> str:
    if given not in ("text", "json"):
        raise ValueError("text or json")
    return str(given)


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("host", "127.0.0.1", _text, "address that the broker listens on"),
        Setting("port", 8080, _port, "its port; 0 takes a free one"),
        Setting("store", "sqlite:///waypost-data/waypost.db", _text, "where messages live"),
        Setting(
            "lake", LAKE_BESIDE, _text, "folder of the lake; beside: `lake` in the store's folder; off: none"
        ),
        Setting("lake-keep", LAKE_FOREVER, _kept, "how long the lake keeps events and bodies, such as 90d"),
        Setting("name", (), _names, "host names it answers to, besides its address"),
        Setting(
            "infer-types", True, _switch, "whether a message without object takes its first topic's root"
        ),
        Setting("peers", 0, _peers, "folder store: brokers beside this one; 0 keeps the order of messages"),
        Setting("mover", True, _switch, "folder store: whether this broker moves what is due or dropped"),
        Setting("reaper", True, _switch, "folder store: whether this broker unlinks what is done"),
        Setting("router", NO_ROUTER, _router, "function that decides where messages go, as module:function"),
        Setting("router-timeout", 5.0, _seconds, "seconds that it may take for a message"),
        Setting("router-warning", 60.0, _seconds, "seconds that a message may wait for it, or for Spark"),
        Setting("push-allow", (), _networks, "networks that webhooks may call although they are not public"),
        Setting("log", "text", _log, "how log lines look: text or json"),
        Setting("access-log", False, _switch, "a log line for every request"),
        Setting("url", "http://127.0.0.1:8080", _text, "the broker that the other commands speak to"),
    )
}


def read_file(environ: Mapping[str, str], folder: Path) -> tuple[str, dict[str, Any]] | None:
    """(its name, what it says), or None when there is no file."""
    named = environ.get(FILE_VARIABLE)
    path = Path(named).expanduser() if named else folder / FILE
    name = named or FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        if named is None:
            return None
        raise SettingInvalid(f"{FILE_VARIABLE} names a file that is not there: {named}") from None
    except OSError as error:
        raise SettingInvalid(f"{name} cannot be read: {error.strerror}") from None
    import tomllib  # only where there is such a file

    try:
        return name, tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingInvalid(f"{name} is not TOML: {error}") from None


def load(**flags: Any) -> dict[str, Value]:
    """What this process is told: `access_log=True` is the flag --access-log."""
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    return resolve(given, os.environ, read_file(os.environ, Path()))


def resolve(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    file: tuple[str, Mapping[str, Any]] | None = None,
) -> dict[str, Value]:
    """Every setting's value and its origin. A flag that is None was not given, an empty variable neither."""
    name, said = file if file is not None else (FILE, {})
    unknown = [key for key in said if key not in SETTINGS]
    if unknown:
        raise SettingInvalid(f"{name}: unknown setting {unknown[0]!r}; known: {', '.join(SETTINGS)}")
    return {setting.name: _value(setting, flags, environ, name, said) for setting in SETTINGS.values()}


def _value(
    setting: Setting, flags: Mapping[str, Any], environ: Mapping[str, str], file: str, said: Mapping[str, Any]
) -> Value:
    if flags.get(setting.name) is not None:
        given, origin = flags[setting.name], setting.flag
    elif environ.get(setting.variable):
        given, origin = environ[setting.variable], setting.variable
    elif setting.name in said:
        given, origin = said[setting.name], file
    else:
        return Value(setting.default, "default")
    try:
        return Value(setting.read(given), origin)
    except ValueError as wanted:
        where = f"{origin}: {setting.name}" if origin == file else origin
        raise SettingInvalid(f"{where} should be {wanted}, not {given!r}") from None


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Those that look like settings and are none: most likely a slip."""
    known = {FILE_VARIABLE, TRACEBACK_VARIABLE, *(setting.variable for setting in SETTINGS.values())}
    return sorted(name for name in environ if name.startswith("WAYPOST_") and name not in known)


def shown(value: Any) -> str:
    """A value for people's eyes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)
