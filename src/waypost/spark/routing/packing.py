"""The code that tasks need: Waypost's pure core where it is not installed, and the routing function's module, in one archive.

The core here is what a routing function may import and what computes content hashes: standard library only, the very files that the
broker runs. Of the router's module its whole package goes along, or its one file.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..session import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: of the package waypost
CORE = (
    "__init__",
    "canonical",
    "decision",
    "destinations",
    "errors",
    "names",
    "routing",
    "topics",
    "version",
)
_HOME = Path(__file__).parents[2]
#: so that the same files make the same archive
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def pack(spark: SparkSession, router: str | None) -> None:
    """From now on the session's tasks have the code."""
    files = {} if is_local(str(spark.sparkContext.master)) else core_files()
    if router is not None:
        files |= module_files(router.partition(":")[0])
    if files:
        # Executors that start later fetch it too, so it stays until the end.
        folder = tempfile.mkdtemp(prefix="waypost-routing-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        spark.sparkContext.addPyFile(str(archive(files, Path(folder))))


def core_files() -> dict[str, Path]:
    """By their name in the archive."""
    return {f"waypost/{name}.py": _HOME / f"{name}.py" for name in CORE}


def module_files(name: str) -> dict[str, Path]:
    """Of the package that the module is in, or of the module alone."""
    top = name.partition(".")[0]
    found = importlib.util.find_spec(top)
    if top == "waypost" or found is None or found.origin is None:
        return {}
    if found.submodule_search_locations is None:
        path = Path(found.origin)
        return {path.name: path} if path.suffix == ".py" else {}
    return {
        f"{top}/{path.relative_to(folder).as_posix()}": path
        for folder in map(Path, found.submodule_search_locations)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def archive(files: dict[str, Path], folder: Path) -> Path:
    """Named by what is in it: Spark takes a name for one content only."""
    contents = {name: path.read_bytes() for name, path in sorted(files.items())}
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    made = folder / f"waypost-routing-{digest.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in contents.items():
            file.writestr(zipfile.ZipInfo(name, _LONG_AGO), content)
    return made
