"""`make demo`, shortened: it ends by itself, and what it claims holds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(260)


def test_the_demo_ends_by_itself_and_proves_that_nothing_was_lost(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "examples/demo.py",
            "--seconds",
            "5",
            "--page",
            tmp_path / "page.html",
            "--at-once",
        ],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "killed with SIGKILL" in done.stdout
    counts = re.search(r"✓ ([\d,]+) acknowledged, 0 of them lost", done.stdout)
    assert counts is not None
    assert int(counts[1].replace(",", "")) > 60
    assert re.search(r"; \d+ unchanged, they go nowhere", done.stdout)
    assert re.search(r"✓ \d+ also in channel analytics, 0 missing there", done.stdout)
    assert re.search(r"✓ \d+ posted to the webhook, 0 with a wrong signature", done.stdout)
    assert "✓ 1000 logged: 450 unchanged and dropped, 550 delivered, 0 left" in done.stdout
    assert done.stdout.count("✓") == 10
    assert "✗" not in done.stdout
    assert "KeyError: 'canton'" in done.stdout
    assert re.search(r"E dead .*\n.*Q queued .* redriven", done.stdout)
    assert "make serve" in done.stdout
    assert "\x1b" not in done.stdout
    assert "waypost pipeline once" in done.stdout
    assert str(tmp_path / "page.html") in done.stdout.replace("\n", "")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
