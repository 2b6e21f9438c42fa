"""Choosing a store by its URL.

sqlite:///waypost-data/waypost.db     relative: after :// comes / and then the path as the shell would read it
sqlite:////var/lib/waypost.db         absolute
folder:////srv/mq                     a folder, which other brokers may serve as well
memory:///                            nothing is kept
"""

from __future__ import annotations

import os.path
from typing import NamedTuple

from ..errors import StoreUnusable
from ..store import Store

#: what can be opened, with an example of each
SCHEMES = {
    "sqlite": "sqlite:////var/lib/waypost/waypost.db",
    "folder": "folder:////srv/mq",
    "memory": "memory:///",
}
#: what an answer is worth
_PROMISES = {
    "sqlite": "an answer means: committed and synced to disk",
    "folder": "an answer means: in its folder, logged, and synced to disk",
    "memory": "nothing survives this process",
}


class StoreUrl(NamedTuple):
    scheme: str
    #: empty where the store has none
    path: str


def parse_store_url(url: str) -> StoreUrl:
    scheme, found, rest = url.partition("://")
    if not found or scheme not in SCHEMES:
        given = f"no store is called {scheme!r}" if found else f"not a store URL: {url!r}"
        raise StoreUnusable(f"{given}; there are {', '.join(SCHEMES.values())}")
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
    where = f"{parsed.scheme} {os.path.abspath(parsed.path)}" if parsed.path else parsed.scheme
    return f"store {where}; {_PROMISES[parsed.scheme]}"


def open_store(
    url: str, *, infer_types: bool = True, peers: int = 0, mover: bool = True, reaper: bool = True
) -> Store:
    """`peers`, `mover` and `reaper` are the folder store's. Raises StoreUnusable, in one line, when it must not be served."""
    parsed = parse_store_url(url)
    if parsed.scheme == "memory":
        from .memory import MemoryStore

        return MemoryStore(infer_types=infer_types)
    if parsed.scheme == "folder":
        from .folder import FolderStore

        return FolderStore(parsed.path, infer_types=infer_types, peers=peers, mover=mover, reaper=reaper)
    from .sqlite import SqliteStore

    return SqliteStore(parsed.path, infer_types=infer_types)
