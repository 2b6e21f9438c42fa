"""The documentation keeps its word: what there is stands in it, and what stands in it runs.

Blocks marked `sh` in README.md and docs/ are run in order, a document at a time, by a shell against a broker
of its own; blocks marked `python` are run as programs. Only the broker's address is changed. `console` and
`text` blocks are not run: what installs, starts or only shows something.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import waypost.wire
from tests.conftest import miss
from tests.http.brokers import BrokerInThread
from waypost.cli.commands import app
from waypost.config import FILE_VARIABLE, SETTINGS, TRACEBACK_VARIABLE
from waypost.delivery import Reason, State
from waypost.errors import Refused
from waypost.filters import TERMS
from waypost.policy import DEFAULT, policy_json
from waypost.stores.memory import MemoryStore

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.md")]
)
#: whose shell blocks are run
RUNNING = [
    "README.md",
    "docs/channels.md",
    "docs/cli.md",
    "docs/completion.md",
    "docs/guide.md",
    "docs/http.md",
    "docs/log.md",
    "docs/replay.md",
    "docs/router.md",
    "docs/search.md",
    "docs/topics.md",
    "docs/unchanged.md",
]
#: whose Python blocks are programs
PROGRAMS = [
    "README.md",
    "docs/channels.md",
    "docs/client.md",
    "docs/log.md",
    "docs/search.md",
    "docs/unchanged.md",
]
#: whose Python block is the broker's routing function
ROUTING = "docs/router.md"
#: written by others of the same release; linked to before they are there
EXPECTED = {"docs/guarantees.md", "docs/benchmarks.md"}

#: where words in capitals are other programs': variables, encodings
OTHER_WORDS = ("spark/", "lake/delta.py")

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ERROR_WORD = re.compile(r"[A-Z]+(?:_[A-Z]+)+")


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def blocks(name: str, language: str) -> list[str]:
    return [body for marked, body in FENCE.findall(text(name)) if marked == language]


def headings(name: str) -> list[str]:
    prose = FENCE.sub("", text(name))
    return re.findall(r"^#+ (.+)$", prose, re.MULTILINE)


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def rows(name: str) -> set[str]:
    """Every word in backticks in the first column of a table."""
    first = re.findall(r"^\| ?([^|]+)\|", text(name), re.MULTILINE)
    return {word for cell in first for word in re.findall(r"`([^`]+)`", cell)}


# ── what there is stands in it ──────────────────────────────────────────────────────────────────


def test_every_route_has_its_heading() -> None:
    with BrokerInThread(MemoryStore) as broker:
        routes = [f"{row.method} {row.pattern}" for row in broker.server.routes]
    assert len(routes) >= 30
    documented = {heading.strip("`") for heading in headings("docs/http.md")}
    assert [route for route in routes if route not in documented] == []


def test_every_parameter_of_every_route_is_named() -> None:
    with BrokerInThread(MemoryStore) as broker:
        parameters = {
            parameter.name
            for row in broker.server.routes
            for parameter in row.parameters
            if parameter.where != "path"
        }
    reference = text("docs/http.md")
    assert [name for name in sorted(parameters) if f"`{name}`" not in reference] == []


def test_every_state_has_its_row() -> None:
    assert [state.name for state in State if state.name not in rows("docs/http.md")] == []


def test_every_reason_has_its_row() -> None:
    assert [reason.value for reason in Reason if reason.value not in rows("docs/http.md")] == []


def test_every_setting_has_its_row_with_its_variable_and_default() -> None:
    reference = text("docs/http.md")
    for setting in SETTINGS.values():
        row = re.search(rf"^\| `{setting.name}` \| `{setting.variable}` \| (.+?) \|", reference, re.MULTILINE)
        assert row is not None, setting.name
        default = setting.default
        shown = (
            str(default).lower() if isinstance(default, bool) else str(default) if default != () else "none"
        )
        assert row[1].strip("`") == shown, setting.name
    assert FILE_VARIABLE in reference
    assert TRACEBACK_VARIABLE in reference


def test_every_field_of_a_policy_has_its_row() -> None:
    assert [field for field in policy_json(DEFAULT) if field not in rows("docs/http.md")] == []


def test_every_term_of_a_filter_has_its_row() -> None:
    assert [term for term in TERMS if term not in rows("docs/http.md")] == []


def test_every_metric_has_its_row() -> None:
    with BrokerInThread(MemoryStore) as broker:
        shown = broker.ask("GET", "/metrics").body.decode()
    metrics = set(re.findall(r"^# TYPE (waypost_\w+)", shown, re.MULTILINE))
    assert len(metrics) >= 15
    assert sorted(metrics - rows("docs/http.md")) == []


def error_words(folder: str) -> set[str]:
    """The code words in a folder's sources: constants that look like one, and those made from a name."""
    words: set[str] = set()
    sources = ROOT / "src" / "waypost"
    for path in (sources / folder).rglob("*.py"):
        if path.relative_to(sources).as_posix().startswith(OTHER_WORDS):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words |= {node.value} if ERROR_WORD.fullmatch(node.value) else set()
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                first = node.args[0] if node.args else None
                if node.func.id in ("_text_check", "_ascii_check") and isinstance(first, ast.Constant):
                    words.add(f"{str(first.value).upper().replace(' ', '_')}_INVALID")
                elif (
                    node.func.id == "Problem"
                    and len(node.args) > 1
                    and isinstance(node.args[1], ast.Constant)
                ):
                    words.add(str(node.args[1].value))
    return {word for word in words if not word.startswith("WAYPOST_")}


def kinds(of: type[Refused]) -> Iterator[type[Refused]]:
    yield of
    for kind in of.__subclasses__():
        yield from kinds(kind)


def test_every_error_word_has_its_row() -> None:
    words = {kind.code for kind in kinds(Refused)} | error_words("")
    assert {
        "QUEUE_NOT_FOUND",
        "BAD_CHUNK",
        "KEY_INVALID",
        "INTERNAL",
        waypost.wire.TooManyMessages.code,
    } <= words
    of_the_client = error_words("client") - error_words("http")
    assert [word for word in sorted(words - of_the_client) if word not in rows("docs/http.md")] == []
    assert [word for word in sorted(of_the_client) if f"`{word}`" not in text("docs/client.md")] == []


def test_every_status_in_the_table_of_errors_is_the_one_that_is_sent() -> None:
    rows = re.findall(r"^\| (`[A-Z_`, ]+`) \| (\d{3}) \|", text("docs/http.md"), re.MULTILINE)
    documented = {word: int(status) for words, status in rows for word in re.findall(r"[A-Z_]+", words)}
    for kind in kinds(Refused):
        if kind is not Refused:
            assert documented[kind.code] == kind.status, kind.code


def commands() -> list[str]:
    return [
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    ]


def test_every_command_has_its_heading() -> None:
    assert {"serve", "publish", "config"} <= set(commands())
    documented = {heading.strip("`") for heading in headings("docs/cli.md")}
    assert [name for name in commands() if f"waypost {name}" not in documented] == []


def test_every_command_of_two_words_has_its_heading_somewhere() -> None:
    documented = {heading.strip("`") for name in DOCUMENTS for heading in headings(name)}
    there = [
        f"waypost {group.name} {command.name or command.callback.__name__}"
        for group in app.registered_groups
        if group.typer_instance is not None
        for command in group.typer_instance.registered_commands
        if command.callback is not None
    ]
    assert {"waypost lake seal", "waypost lake verify"} <= set(there)
    assert [name for name in there if name not in documented] == []


def test_every_public_name_of_the_client_is_named() -> None:
    named = text("docs/client.md")
    assert [name for name in waypost.__all__ if name != "__version__" and f"{name}" not in named] == []


# ── what stands in it is true ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    for target in LINK.findall(FENCE.sub("", text(document))):
        if "://" in target:
            continue
        path, _, fragment = target.partition("#")
        found = ((ROOT / document).parent / path).resolve() if path else ROOT / document
        name = found.relative_to(ROOT).as_posix()
        assert found.exists() or name in EXPECTED, f"{document}: {target}"
        if fragment:
            assert fragment in map(anchor, headings(name)), f"{document}: {target}"


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", text("Makefile"), re.MULTILINE))
    named = {name for document in DOCUMENTS for name in re.findall(r"`make ([a-z-]+)", text(document))}
    named |= {
        name
        for block in blocks("README.md", "console")
        for name in re.findall(r"^make ([a-z-]+)", block, re.MULTILINE)
    }
    assert {"demo", "test", "serve"} <= named
    assert sorted(named - targets) == []


def test_the_first_screen_has_the_sentence_the_commands_three_requests_and_the_picture() -> None:
    first_screen = "\n".join(text("README.md").splitlines()[:40])
    assert "make demo" in first_screen
    assert "make test" in first_screen
    assert len(re.findall(r"^(?:receipt=\$\()?curl ", first_screen, re.MULTILINE)) == 3
    assert all(f"{state} " in first_screen for state in "LQFSXRIENTC")
    assert "Waypost is not" in first_screen


# ── what stands in it runs ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def port(tmp_path: Path, document: str) -> Iterator[int]:
    """Of a broker as a person who reads the document starts it, on the embedded store."""
    store = tmp_path / "store" / "waypost.db"
    command = [sys.executable, "-m", "waypost", "serve", "--port", "0", "--store", f"sqlite:///{store}"]
    if document == ROUTING:
        (function,) = blocks(document, "python")
        (tmp_path / "routing.py").write_text(function)
        command += ["--router", "routing:route"]
    broker = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    assert broker.stderr is not None
    try:
        ready = broker.stderr.readline()
        found = re.search(r"ready on http://127\.0\.0\.1:(\d+)", ready)
        assert found is not None, ready
        yield int(found[1])
    finally:
        broker.terminate()
        broker.communicate(timeout=20)


def environment(**more: str) -> dict[str, str]:
    """This process's, without settings of the person who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WAYPOST_", "MAKE"))}
    return kept | more


def addressed(block: str, port: int) -> str:
    return block.replace("localhost:8080", f"127.0.0.1:{port}").replace("127.0.0.1:8080", f"127.0.0.1:{port}")


@pytest.mark.timeout(300)  # a page of the command line starts Python fifty times
@pytest.mark.parametrize("document", RUNNING)
def test_every_shell_block_runs(document: str, port: int, tmp_path: Path) -> None:
    for program in ("bash", "curl"):
        if shutil.which(program) is None:
            miss(f"{program} is not on this machine")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "waypost").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m waypost "$@"\n')
    (programs / "waypost").chmod(0o755)
    # curl ends well whatever the status is, unless told otherwise
    (programs / "curl").write_text(f'#!/bin/sh\nexec "{shutil.which("curl")}" --fail-with-body "$@"\n')
    (programs / "curl").chmod(0o755)

    script = "\n".join(addressed(block, port) for block in blocks(document, "sh"))
    assert script
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=environment(PATH=path, WAYPOST_URL=f"http://127.0.0.1:{port}"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("document", PROGRAMS)
def test_every_python_block_runs(document: str, port: int, tmp_path: Path) -> None:
    found = blocks(document, "python")
    assert found
    for block in found:
        program = addressed(block, port)
        compile(program, document, "exec")
        running = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert running.stdout is not None
        # A worker goes on until it is asked to stop; it has done something by then.
        if "client.run()" in program:
            assert running.stdout.readline(), running.communicate()
            running.send_signal(signal.SIGTERM)
        said, complaint = running.communicate(timeout=60)
        assert (running.returncode, complaint) == (0, ""), f"{program}\n{said}{complaint}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_python_block_compiles(document: str) -> None:
    for block in blocks(document, "python"):
        compile(block, document, "exec")
