"""The first things a newcomer meets keep their word: make, README, CHANGELOG, the package's public names."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import waypost

ROOT = Path(__file__).parents[2]

#: Hosts of package registries and paths of one person's machine: neither belongs into a repository.
REGISTRY_HOST = re.compile(
    r"pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|repo1?\.maven\.(?:apache\.)?org|(?:deb|security)\.debian\.org"
    r"|archive\.ubuntu\.com|--(?:extra-)?index-url[ =]\S|crates\.io",
    re.IGNORECASE,
)
MACHINE_PATH = re.compile(r"/(?:work/(?:main|shared)|root|home/\w+|Users/\w+)\b")

#: What `import waypost` offers. A name leaves only with a line under Upgrading in the CHANGELOG.
PUBLIC_NAMES = [
    "BlockingClient",
    "Busy",
    "ChannelNotFound",
    "Client",
    "ConsumerNotFound",
    "ConsumerRequired",
    "DiskLow",
    "IdTaken",
    "IdempotencyConflict",
    "Invalid",
    "JobNotFound",
    "LogTrimmed",
    "Message",
    "MessageNotFound",
    "NewMessage",
    "NotInterested",
    "NotOffered",
    "ObjectNotFound",
    "PayloadReaped",
    "Published",
    "QueueFull",
    "QueueNotFound",
    "Refused",
    "RequestInvalid",
    "Retry",
    "Route",
    "SpectatorNotFound",
    "Unreachable",
    "WaypostError",
    "__version__",
]

FIRST_TARGETS = {
    "help",
    "setup",
    "demo",
    "test",
    "serve",
    "check",
    "bench",
    "bench-full",
    "bench-peers",
    "prove",
}


def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def lines_that_say(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text("utf-8", errors="ignore").splitlines(), 1)
        if pattern.search(line)
    ]


def test_make_alone_lists_every_target_with_its_text() -> None:
    makefile = text("Makefile")
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert phony is not None
    targets = set(phony[1].split())
    assert targets >= FIRST_TARGETS

    # A make that runs the tests hands its own flags down, and with them what it would print.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    listed = subprocess.run(["make"], cwd=ROOT, env=clean, capture_output=True, check=True, text=True).stdout

    texts = dict(re.findall(r"^  make ([a-z-]+) +(\S.*)$", listed, re.MULTILINE))
    assert set(texts) == targets


def test_every_rule_of_the_makefile_is_listed() -> None:
    makefile = text("Makefile")
    rules = re.findall(r"^([a-z][a-z-]*):(?!=)(.*)$", makefile, re.MULTILINE)
    assert [name for name, rest in rules if " ## " not in rest] == []


def test_the_readme_names_the_two_commands_on_its_first_screen() -> None:
    first_screen = "\n".join(text("README.md").splitlines()[:40])
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_no_tracked_file_names_a_registry_host() -> None:
    assert lines_that_say(REGISTRY_HOST) == []


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    assert lines_that_say(MACHINE_PATH) == []


def test_versions_are_locked_in_the_constraints_and_nowhere_else() -> None:
    assert not (ROOT / "uv.lock").exists()
    locked = text("constraints.txt").splitlines()
    assert locked
    assert [line for line in locked if not re.match(r"[a-z0-9-]+==[\w.]+( ; .+)?$", line)] == []
    names = {line.split("==")[0] for line in locked}
    assert names >= {"aiohttp", "apsw", "hatchling", "mypy", "pytest", "ruff", "uvloop"}


def test_the_changelog_has_an_entry_for_this_version_with_upgrading_first() -> None:
    changelog = text("CHANGELOG.md")
    entry = re.search(
        rf"^## \[{re.escape(waypost.__version__)}\].*?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    assert entry is not None
    assert re.findall(r"^### (.+)$", entry[1], re.MULTILINE)[0] == "Upgrading"


def test_the_package_and_its_metadata_tell_the_same_version() -> None:
    assert waypost.__version__ == version("waypost")


def test_the_public_names_are_these() -> None:
    assert sorted(waypost.__all__) == PUBLIC_NAMES
    assert [name for name in PUBLIC_NAMES if not hasattr(waypost, name)] == []


def test_ci_calls_two_make_targets_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.findall(r"^make (\S+)", text(".ci/run"), re.MULTILINE) == ["check", "test"]


@pytest.mark.parametrize(("ci", "outcome"), [("false", "1 skipped"), ("true", "1 error")])
def test_a_missing_server_skips_at_home_and_fails_in_ci(tmp_path: Path, ci: str, outcome: str) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n@pytest.mark.needs('strace')\ndef test_that_traces():\n    pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml")]
    ran = subprocess.run(
        [*command, "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path), "CI": ci},
        capture_output=True,
        text=True,
    )
    assert outcome in ran.stdout
    assert ran.returncode == (1 if ci == "true" else 0)
    assert "apt-get install -y --no-install-recommends strace" in ran.stdout.rsplit("how to get them", 1)[1]


def test_what_the_package_needs_is_what_it_imports() -> None:
    needed = {
        re.split(r"[<>=]", line)[0].replace("-", "_")
        for line in tomllib.loads(text("pyproject.toml"))["project"]["dependencies"]
    }
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    imported = set(re.findall(r"^ *(?:from|import) (\w+)", source, re.MULTILINE))
    assert sorted(needed - imported) == []
