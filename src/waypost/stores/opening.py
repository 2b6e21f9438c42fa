"""Choosing a store by its URL.

sqlite:///waypost-data/waypost.db     relative: after :// comes / and then the path as the shell would read it
sqlite:////var/lib/waypost.db         absolute
postgresql://user@host:5432/waypost   a database that any number of brokers share; what libpq reads
folder:////srv/mq                     a folder, which other brokers may serve as well
memory:///                            nothing is kept
"""

from __future__ import annotations

import os.path
from importlib.util import find_spec
from typing import NamedTuple

from ..errors import StoreUnusable
from ..store import Store
from .urls import masked

#: what can be opened, with an example of each
SCHEMES = {
    "sqlite": "sqlite:////var/lib/waypost/waypost.db",
    "postgresql": "postgresql://user@host:5432/waypost",
    "folder": "folder:////srv/mq",
    "memory": "memory:///",
}
#: what the PostgreSQL store needs beside Waypost itself
EXTRA = "pip install 'waypost[postgres]'"
#: what an answer is worth
_PROMISES = {
    "sqlite": "an answer means: committed and synced to disk",
    "postgresql": "an answer means: committed and synced by the server",
    "folder": "an answer means: in its folder, logged, and synced to disk",
    "memory": "nothing survives this process",
}


class StoreUrl(NamedTuple):
    scheme: str
    #: empty where the store has none; of postgresql, the whole URL
    path: str


def parse_store_url(url: str) -> StoreUrl:
    scheme, found, rest = url.partition("://")
    if not found or scheme not in SCHEMES:
        given = f"no store is called {scheme!r}" if found else f"not a store URL: {url!r}"
        raise StoreUnusable(f"{given}; there are {', '.join(SCHEMES.values())}")
    if scheme == "postgresql":
        return StoreUrl(scheme, url)
    if not rest.startswith("/"):
        raise StoreUnusable(
            f"{url!r} lacks a slash: {scheme}:///{rest} is relative, {scheme}:////{rest} absolute"
        )
    path = rest[1:]
    if scheme == "memory":
        if path:
            raise StoreUnusable(f"the memory store has no path; write {SCHEMES['memory']}")
    elif not path or "\0" in path or (path.endswith("/") and scheme == "sqlite"):
        what = "file" if scheme == "sqlite" else "folder"
        raise StoreUnusable(f"{url!r} names no {what}; for example {SCHEMES[scheme]}")
    return StoreUrl(scheme, os.path.expanduser(path))


def described(url: str) -> str:
    """Where messages live, and what an answer is worth there."""
    parsed = parse_store_url(url)
    if parsed.scheme == "postgresql":
        return f"store {masked(url)}; {_PROMISES[parsed.scheme]}"
    where = f"{parsed.scheme} {os.path.abspath(parsed.path)}" if parsed.path else parsed.scheme
    return f"store {where}; {_PROMISES[parsed.scheme]}"


def migrate_store(url: str) -> tuple[int, int]:
    """(schema before, schema after). Raises StoreUnusable."""
    parsed = parse_store_url(url)
    if parsed.scheme != "postgresql":
        raise StoreUnusable(f"{parsed.scheme} needs no migration: `waypost serve` brings its file up to date")
    check_driver()
    from .postgres.connecting import migrate

    return migrate(url)


def check_driver() -> None:
    if find_spec("psycopg") is None:
        raise StoreUnusable(f"PostgreSQL needs a package that is not here: {EXTRA}")


def open_store(
    url: str, *, infer_types: bool = True, peers: int = 0, mover: bool = True, reaper: bool = True
) -> Store:
    """`peers`, `mover` and `reaper` are the folder store's. Raises StoreUnusable, in one line, when it must not be served."""
    parsed = parse_store_url(url)
    if parsed.scheme == "memory":
        from .memory import MemoryStore

        return MemoryStore(infer_types=infer_types)
    if parsed.scheme == "postgresql":
        check_driver()
        from .postgres import PostgresStore

        return PostgresStore(url, infer_types=infer_types)
    if parsed.scheme == "folder":
        from .folder import FolderStore

        return FolderStore(parsed.path, infer_types=infer_types, peers=peers, mover=mover, reaper=reaper)
    from .sqlite import SqliteStore

    return SqliteStore(parsed.path, infer_types=infer_types)
