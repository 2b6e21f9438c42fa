"""Sets up .venv with all that the Makefile runs: Waypost itself (editable), its extras, the tools.

    PYTHON -m scripts.make_venv

Every version comes from constraints.txt. pip installs uv, uv installs the rest; where uv is not to be had or
cannot reach the packages, pip does it alone, only slower. Standard library only: nothing is installed yet.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from scripts import debian

VENV = Path(".venv")
PYTHON = VENV / "bin" / "python"
PIP = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
# A house with its own certificate authority has it in the system, and pip looks there too.
UV = [str(VENV / "bin" / "uv"), "pip", "install", "--quiet", "--system-certs", "--python", str(PYTHON)]
LOCKED = ["--constraint", "constraints.txt"]


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
    say("installing what constraints.txt names (a minute or two the first time)")
    run([*PIP, *LOCKED, "--upgrade", "pip"])
    steps = [["--group", "dev"], ["--no-build-isolation", "--editable", ".[all]"]]
    try:
        run([*PIP, *LOCKED, "uv"])
        for step in steps:
            run([*UV, *LOCKED, *step])
    except (SetUpFailed, OSError):
        say("uv cannot be used here; going on with pip")
        for step in steps:
            run([*PIP, *LOCKED, *step])


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
