"""Sets up .venv with all that the Makefile runs: Waypost itself (editable), its extras, the tools.

    PYTHON -m scripts.make_venv

Every version comes from constraints.txt. pip installs uv, uv installs the rest; where uv is not to be had or
cannot reach the packages, pip does it alone, only slower. pyspark is published as source alone, 450 MB of it: its
wheel is built once and kept in the user's cache folder, where every later environment finds it.
Standard library only: nothing is installed yet.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts import debian

VENV = Path(".venv")
PYTHON = VENV / "bin" / "python"
PIP = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
PIP_WHEEL = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
# A house with its own certificate authority has it in the system, and pip looks there too.
UV = [str(VENV / "bin" / "uv"), "pip", "install", "--quiet", "--system-certs", "--python", str(PYTHON)]
CONSTRAINTS = Path("constraints.txt")
LOCKED = ["--constraint", str(CONSTRAINTS)]
#: published without a wheel, and large
BUILT_ONCE = "pyspark"


class SetUpFailed(Exception):
    """Its text is the one line that a person reads."""


def main() -> int:
    try:
        make_venv()
        install_everything()
    except SetUpFailed as failure:
        print(f"waypost: {failure}", file=sys.stderr)
        return 1
    return 0


def make_venv() -> None:
    if works([str(PYTHON), "-m", "pip", "--version"]):
        return
    if VENV.exists():
        shutil.rmtree(VENV)  # half made, or its Python is gone
    say(f"making {VENV} with Python {sys.version.split()[0]}")
    if not present("ensurepip") and not present("pip") and debian.can_install():
        debian.install([venv_package()])
    if present("ensurepip"):
        run([sys.executable, "-m", "venv", str(VENV)])
    elif present("pip"):
        run([sys.executable, "-m", "venv", "--without-pip", str(VENV)])
        run([sys.executable, "-m", "pip", "--python", str(PYTHON), "install", "--quiet", "pip"])
    else:
        raise SetUpFailed(f"this Python cannot make virtual environments; run: apt install {venv_package()}")


def install_everything() -> None:
    """The tools first: hatchling, one of them, then builds Waypost in this environment and needs no other."""
    run([*PIP, *LOCKED, "--upgrade", "pip"])
    wheels = wheel_folder()
    keep_wheel(BUILT_ONCE, locked_version(BUILT_ONCE), wheels)
    say(f"installing what {CONSTRAINTS} names (a minute or two the first time)")
    kept = ["--find-links", str(wheels)] if wheels.is_dir() else []
    steps = [["--group", "dev"], [*kept, "--no-build-isolation", "--editable", ".[all]"]]
    try:
        run([*PIP, *LOCKED, "uv"])
        for step in steps:
            run([*UV, *LOCKED, *step])
    except (SetUpFailed, OSError):
        say("uv cannot be used here; going on with pip")
        for step in steps:
            run([*PIP, *LOCKED, *step])


def keep_wheel(package: str, version: str, wheels: Path) -> None:
    """Build it into the cache folder unless it is there, or installed already.

    A wheel appears there whole or not at all. Failing is no end: the installer then builds for itself.
    """
    if any(wheels.glob(f"{package}-{version}-*.whl")) or version == installed_version(package):
        return
    say(f"building {package} {version}, published as source only: half a minute, once, kept in {wheels}")
    try:
        wheels.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wheels) as workshop:
            run([*PIP_WHEEL, "--no-deps", "--wheel-dir", workshop, f"{package}=={version}"])
            for wheel in Path(workshop).glob("*.whl"):
                wheel.replace(wheels / wheel.name)
    except (SetUpFailed, OSError) as failure:
        say(f"{failure}; going on without that wheel")


def wheel_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "waypost" / "wheels"


def locked_version(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)", CONSTRAINTS.read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise SetUpFailed(f"{CONSTRAINTS} does not name {package}; run: make lock")
    return found[1]


def installed_version(package: str) -> str | None:
    ask = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([str(PYTHON), "-c", ask], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return done.stdout.strip() or None


def venv_package() -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}-venv"


def present(module: str) -> bool:
    importlib.invalidate_caches()
    return importlib.util.find_spec(module) is not None


def works(command: list[str]) -> bool:
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    except OSError:
        return False


def run(command: list[str]) -> None:
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode != 0:
        raise SetUpFailed(f"set-up stopped at: {' '.join(command)}")


def say(line: str) -> None:
    print(f"waypost: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
