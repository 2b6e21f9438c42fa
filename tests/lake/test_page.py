"""docs/lake.md: its programs run, against a lake where it says that one is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lake import rows
from waypost.arrow import EVENTS, PAYLOADS
from waypost.lake import sealing
from waypost.lake.owner import Lake

PAGE = (Path(__file__).parents[2] / "docs" / "lake.md").read_text("utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=["polars", "duckdb", "pandas"])
def test_the_programs_of_the_page_run(tmp_path: Path, program: str) -> None:
    sealing.seal_upto(rows.Source(90), Lake(tmp_path / "waypost-data" / "lake"))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "orders" in done.stdout or "sealed up to offset 90" in done.stdout


def test_every_column_is_named() -> None:
    for name in (*EVENTS.names, *PAYLOADS.names):
        assert f"`{name}`" in PAGE
