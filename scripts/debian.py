"""Installing Debian packages without a service ever starting.

Only root on a machine with apt may do it; everybody else is told the command. Knows no package by name.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Debian's maintainer scripts ask this program before they start a service; 101 means no.
POLICY = Path("/usr/sbin/policy-rc.d")


def can_install() -> bool:
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def install_command(packages: list[str]) -> str:
    return f"apt-get install -y --no-install-recommends {' '.join(packages)}"


def install(packages: list[str]) -> bool:
    """Update the lists once and install; says what it does, returns whether it worked."""
    print(f"waypost: installing {' '.join(packages)}", flush=True)
    with _services_stay_down():
        _apt_get("update")  # a source that does not answer need not be the one that has them
        return _apt_get("install", "--yes", "--no-install-recommends", *packages)


def _apt_get(*arguments: str) -> bool:
    command = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", *arguments]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=quiet, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return done.returncode == 0


@contextmanager
def _services_stay_down() -> Iterator[None]:
    """A machine's own policy is left alone; ours goes away with the installation."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
