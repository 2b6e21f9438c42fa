"""Recovering: at start every file is put where the log says, and what the log does not know is taken in.

    the log says            and its file lies        then
    can be fetched          in delay/                it goes back: a claim was never logged, so nobody had it
    anything                elsewhere, or in new/    it follows: it was logged, and then there was no time
    open                    nowhere                  it is cancelled, reason `recovered`
    nothing of it           in queues/ or delay/     it is logged and queued, reason `recovered`

All of it under the log's lock, so nobody of ours is in the middle of anything. What is no message's file, or bears the name of
another message, stays where it is, and is said.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress

from ...delivery import DEAD, OPEN, Reason
from .deciding import Decider, Found, Group
from .picture import Message, Picture, Place
from .tree import Spot, Tree, Unfit

#: a body on its way in is never older than this
_STALE_SECONDS = 3_600.0
_READ_BYTES = 1 << 20

_Files = dict[tuple[str, str], list[Place]]


def clear_temporaries(tree: Tree, alone: bool) -> None:
    """What a killed broker was writing; where others serve, only what is too old to be theirs."""
    for spot in tree.temporaries():
        if alone or _is_stale(spot):
            tree.unlink(spot)


def _is_stale(spot: Spot) -> bool:
    try:
        written = os.stat(spot.name, dir_fd=spot.folder, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return False
    return time.time() - written > _STALE_SECONDS


def recover(tree: Tree, picture: Picture, decider: Decider, group: Group) -> list[Unfit]:
    queues, unfit = tree.listed_queues()
    files: _Files = {}
    for queue, ids in queues.items():
        for id in ids:
            files.setdefault((queue, id), []).append(Place.QUEUE)
    for place, folder in ((Place.DELAY, "delay"), (Place.DEAD, "dead"), (Place.REMOVE, "remove")):
        listed, strange = tree.listed(folder)
        unfit += strange
        for name in listed:
            files.setdefault(name, []).append(place)
    for message in list(picture.messages.values()):
        queue = picture.numbered[message.number].name
        _put_right(tree, picture, decider, group, message, files.pop((queue, message.id), []))
    for queue, ids in queues.items():
        _put_queue_right(tree, picture, decider, group, queue, bool(ids))
    for (queue, id), places in sorted(files.items()):
        if places[0] is Place.REMOVE:
            continue  # the reaper's
        if id in picture.by_id:
            unfit.append(Unfit(f"{queue}:{id}", "its id is another message's"))
        else:
            spot = tree.spot(places[0], queue, id)
            with suppress(FileNotFoundError):
                decider.adopt(group, found(queue, id, places[0], tree, spot), Reason.RECOVERED)
    return unfit


def _put_right(
    tree: Tree, picture: Picture, decider: Decider, group: Group, message: Message, places: list[Place]
) -> None:
    belongs, queue = message.belongs, picture.numbered[message.number].name
    if belongs is Place.REMOVE:
        for place in places:
            if place is not belongs:
                _bring(tree, tree.spot(place, queue, message.id), message, queue)
        if message.staged is not None and belongs not in places:
            _bring(tree, tree.in_new(message.staged), message, queue)
        message.place = belongs
    elif (
        belongs in places
        or (places and _bring(tree, tree.spot(places[0], queue, message.id), message, queue))
        or (message.staged is not None and _bring(tree, tree.in_new(message.staged), message, queue))
    ):
        message.place = belongs
        if message.lost:
            picture.find_again(message)
    elif message.state in OPEN or (message.state in DEAD and message.has_body):
        decider.gone(group, message)


def _bring(tree: Tree, spot: Spot, message: Message, queue: str) -> bool:
    """To where it belongs; whether it was there: reapers, and those who do not know the lock, take files at any moment."""
    try:
        tree.move(spot, tree.spot(message.belongs, queue, message.id))
    except FileNotFoundError:
        return False
    return True


def _put_queue_right(
    tree: Tree, picture: Picture, decider: Decider, group: Group, queue: str, full: bool
) -> None:
    if queue in picture.queues:
        return
    was_deleted = any(known.name == queue for known in picture.numbered.values())
    if was_deleted and not full:
        tree.remove_queue(queue)
    elif not was_deleted:
        decider.make_queue(group, queue)


def dropped(tree: Tree, picture: Picture, limit: int) -> tuple[list[Found], list[Unfit]]:
    """Files that somebody put into new/ by a rename, for queues that there are."""
    listed, unfit = tree.listed("new")
    taken = []
    for queue, id in listed[:limit]:
        if queue not in picture.queues:
            unfit.append(Unfit(f"new/{queue}:{id}", f"there is no queue {queue!r}"))
        elif id in picture.by_id:
            unfit.append(Unfit(f"new/{queue}:{id}", "its id is another message's"))
        else:
            taken.append((queue, id))
    return list(_found(taken, tree, unfit)), unfit


def _found(names: list[tuple[str, str]], tree: Tree, unfit: list[Unfit]) -> Iterator[Found]:
    for queue, id in names:
        try:
            yield found(queue, id, Place.NEW, tree, tree.in_new(f"{queue}:{id}"))
        except FileNotFoundError:
            continue
        except OSError as error:
            unfit.append(Unfit(f"new/{queue}:{id}", (error.strerror or str(error)).lower()))


def found(queue: str, id: str, place: Place, tree: Tree, spot: Spot) -> Found:
    """With its size and hash, which nobody said; and synced, since nobody says that either."""
    handle = tree.open(spot)
    try:
        hash, size = hashlib.sha256(), 0
        while piece := os.read(handle, _READ_BYTES):
            hash.update(piece)
            size += len(piece)
        os.fsync(handle)
    finally:
        os.close(handle)
    return Found(queue, id, place, size, hash.digest())
