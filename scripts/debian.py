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
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _services_stay_down():
        return all(
            subprocess.run(command, env=quiet, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode
            == 0
            for command in (
                ["apt-get", "-q", "update"],
                ["apt-get", "install", "-yq", "--no-install-recommends", *packages],
            )
        )


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
