"""What a proof that failed leaves behind: the store's folder, copied before it is removed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .child import ROOT
from .verdict import Verdict

FOLDER = ROOT / ".prove" / "evidence"


@contextmanager
def kept_when_wrong(
    folder: Path, run: str, *, careful: bool = True, besides: Sequence[str] = ()
) -> Iterator[Callable[[Verdict], Verdict]]:
    """Hand the verdict to what this yields; a folder without a good one is kept, unless it is a control's; but
    for what is named like `besides`."""
    faultless = False

    def checked(verdict: Verdict) -> Verdict:
        nonlocal faultless
        faultless = verdict.faultless
        return verdict

    try:
        yield checked
    finally:
        if careful and not faultless and folder.exists():
            ignored = shutil.ignore_patterns(*besides)
            shutil.copytree(folder, FOLDER / run, dirs_exist_ok=True, ignore=ignored)
