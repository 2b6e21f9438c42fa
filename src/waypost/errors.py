"""What can go wrong, as one tree.

    WaypostError
    ├── Refused                  the request cannot be done; nothing was changed
    │   ├── RequestInvalid         400  something in it is malformed
    │   ├── ConsumerRequired       400  the policy counts consumers and none was named
    │   ├── QueueNotFound          404
    │   ├── ChannelNotFound        404
    │   ├── ObjectNotFound         404
    │   ├── ConsumerNotFound       404
    │   ├── SpectatorNotFound      404
    │   ├── MessageNotFound        404
    │   ├── JobNotFound            404
    │   ├── TableNotFound          404
    │   ├── UploadNotFound         404  forgotten after an hour, or in a batch already
    │   ├── BatchNotFound          404
    │   ├── IdTaken                409  the producer's own id names another message
    │   ├── StillLogged            409  nobody has decided yet where the message goes
    │   ├── BatchConflict          409  the batch was accepted with other content
    │   ├── PayloadReaped          410  the message is kept, its body is not any more
    │   ├── LogTrimmed             410  the log no longer goes back that far
    │   ├── PayloadDamaged         500  what was read does not fit its checksum
    │   ├── Failed                 500  a fault in Waypost itself; this command alone was undone
    │   ├── IdempotencyConflict    422  the key was used for another body
    │   ├── QueueFull              429  maxMessages or maxBytes
    │   ├── NotOffered             501  this store, or this version, does not have it
    │   ├── Busy                   503  the commit queue is full, or the broker is stopping
    │   │   └── StoreUnavailable   503  the database does not answer; the broker lives on
    │   ├── LakeUnavailable        503  the lake's process failed, or the lake cannot be read
    │   └── DiskLow                507  below the free-space mark
    ├── LogBroken                a range of the log has not exactly the events it must have
    ├── RouterUnusable           a routing function that cannot be loaded: refuse to start
    ├── StoreUnusable            a store that must not be served (locked, newer, damaged …): refuse to start
    ├── StoreBroken              a commit failed: what it acknowledges from now on could be lost; stop answering
    ├── LakeUnusable             a lake that must not be used (another broker's, foreign, damaged …)
    └── LakeFull                 no room on the lake's disk: nothing was half done, and it goes on when there is

Outcomes are values as often as exceptions: a store puts a `Refused` where that command's result
would stand, so one bad command never fails its neighbours. Each carries the fixed code word and the
hint that the wire shows; `http` adds nothing but the shape.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class WaypostError(Exception):
    """Anything Waypost itself reports."""


class LogBroken(WaypostError):
    """A range of the log is not whole; its text says which."""


class RouterUnusable(WaypostError):
    """The routing function cannot be loaded; its text says why."""


class StoreUnusable(WaypostError):
    """The store cannot be served; its text says why and what to do."""


class StoreBroken(WaypostError):
    """A commit failed. Nothing may be acknowledged any more by this process."""


class LakeUnusable(WaypostError):
    """The lake, or one of its tables, cannot be used; its text, one line, says why and what to do."""


class LakeFull(WaypostError):
    """The lake's disk is full. Nothing was committed; the same call goes on when there is room."""


class Refused(WaypostError):
    """A request that was not carried out."""

    status = 400
    code = "REFUSED"
    title = "Refused"
    hint = "GET /v1/openapi.json lists what can be asked"
    #: seconds after which trying again makes sense; None where it never does
    retry_after: int | None = None

    def __init__(self, detail: str, hint: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        if hint is not None:
            self.hint = hint


class RequestInvalid(Refused):
    code, title = "REQUEST_INVALID", "Request invalid"

    def __init__(self, detail: str, hint: str | None = None, code: str | None = None) -> None:
        super().__init__(detail, hint)
        if code is not None:
            self.code = code
            self.title = code.replace("_", " ").capitalize()


class ConsumerRequired(Refused):
    code, title = "CONSUMER_REQUIRED", "Consumer required"
    hint = "name the consumer in Waypost-Consumer or ?consumer="


class QueueNotFound(Refused):
    status, code, title = 404, "QUEUE_NOT_FOUND", "Queue not found"

    def __init__(self, name: str) -> None:
        super().__init__(f"no queue {name!r}", f"PUT /v1/queues/{name} makes one; GET /v1/queues lists them")


class ChannelNotFound(Refused):
    status, code, title = 404, "CHANNEL_NOT_FOUND", "Channel not found"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"no channel {name!r}", f"PUT /v1/channels/{name} makes one; GET /v1/channels lists them"
        )


class ObjectNotFound(Refused):
    status, code, title = 404, "OBJECT_NOT_FOUND", "Object not found"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"nothing is agreed of object {name!r}",
            f"PUT /v1/objects/{name} does; GET /v1/objects lists them",
        )


class ConsumerNotFound(Refused):
    status, code, title = 404, "CONSUMER_NOT_FOUND", "Consumer not found"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"no consumer {name!r} is registered",
            f"PUT /v1/consumers/{name} registers one; GET /v1/consumers lists them",
        )


class SpectatorNotFound(Refused):
    status, code, title = 404, "SPECTATOR_NOT_FOUND", "Spectator not found"

    def __init__(self, name: str) -> None:
        super().__init__(f"no spectator {name!r}", f"PUT /v1/spectators/{name} with an offset makes one")


class MessageNotFound(Refused):
    status, code, title = 404, "MESSAGE_NOT_FOUND", "Message not found"

    def __init__(self, id: str) -> None:
        super().__init__(
            f"no message {id!r}", "completed messages are kept for the queue's `keep`, 7 days by default"
        )


class JobNotFound(Refused):
    status, code, title = 404, "JOB_NOT_FOUND", "Job not found"

    def __init__(self, id: str) -> None:
        super().__init__(f"no job {id!r}", "redrive, cancel and purge answer with the job's id")


class TableNotFound(Refused):
    status, code, title = 404, "TABLE_NOT_FOUND", "Table not found"

    def __init__(self, name: str) -> None:
        super().__init__(f"no table {name!r}", "there are /v1/tables/messages and /v1/tables/deliveries")


class UploadNotFound(Refused):
    status, code, title = 404, "UPLOAD_NOT_FOUND", "Upload not found"

    def __init__(self, id: str) -> None:
        super().__init__(
            f"no upload {id[:60]!r} waits for a batch",
            "uploads wait for an hour, and are of one batch: upload the rows again",
        )


class BatchNotFound(Refused):
    status, code, title = 404, "BATCH_NOT_FOUND", "Batch not found"

    def __init__(self, query: str, batch: int) -> None:
        super().__init__(
            f"no batch {batch} of {query!r}",
            "PUT accepts one; those that entered are known for 30 days",
        )


class BatchConflict(Refused):
    status, code, title = 409, "BATCH_CONFLICT", "Batch known with other content"

    def __init__(self, query: str, batch: int, known: int, rows: int) -> None:
        super().__init__(
            f"batch {batch} of {query!r} was accepted with other content: {known} rows then, {rows} now",
            "a replayed batch must have the same rows; new rows need a batch of their own",
        )


class IdTaken(Refused):
    status, code, title = 409, "ID_TAKEN", "Id taken"

    def __init__(self, id: str) -> None:
        super().__init__(
            f"id {id!r} names a message with another body", "send a new id, or leave X-Message-Id out"
        )


class StillLogged(Refused):
    status, code, title = 409, "STILL_LOGGED", "Message still logged"
    hint = "its payload is needed to decide where it goes: try again when it is routed"
    retry_after = 10

    def __init__(self, id: str) -> None:
        super().__init__(f"nobody has decided yet where message {id!r} goes")


class PayloadReaped(Refused):
    status, code, title = 410, "PAYLOAD_REAPED", "Payload reaped"
    hint = "the queue's `keep` says for how long bodies of completed messages stay; one may also have been erased"


class PayloadDamaged(Refused):
    status, code, title = 500, "PAYLOAD_DAMAGED", "Payload damaged"
    hint = "the disk or the file is damaged: check the disk, and restore a copy of the store"


class Failed(Refused):
    status, code, title = 500, "FAILED", "Failed"
    hint = "this is a fault in Waypost; the log says more"


class LogTrimmed(Refused):
    status, code, title = 410, "LOG_TRIMMED", "Log trimmed"

    def __init__(self, oldest: int, oldest_at: int | None = None) -> None:
        """`oldest_at`: the oldest moment, where one was asked for."""
        self.oldest, self.oldest_at = oldest, oldest_at
        if oldest_at is None:
            super().__init__(f"the log starts at offset {oldest}", f"GET /log?from={oldest}")
        else:
            moment = _instant_text(oldest_at)
            super().__init__(f"what was before {moment} is not kept", f"the oldest moment is at={moment}")


class IdempotencyConflict(Refused):
    status, code, title = 422, "IDEMPOTENCY_CONFLICT", "Idempotency key used for another body"
    hint = "use a new Idempotency-Key for a new message"


class QueueFull(Refused):
    status, code, title = 429, "QUEUE_FULL", "Queue full"
    hint = "wait for consumers, or raise maxMessages or maxBytes in the queue's policy"
    retry_after = 10


class NotOffered(Refused):
    status, code, title = 501, "NOT_OFFERED", "Not offered"
    hint = "GET /v1/openapi.json lists what this broker offers"


class Busy(Refused):
    status, code, title = 503, "BUSY", "Busy"
    hint = "try again after Retry-After seconds; an Idempotency-Key makes a repeat safe"
    retry_after: int | None = 1


class StoreUnavailable(Busy):
    code, title = "STORE_UNAVAILABLE", "Store unavailable"
    hint = "nothing was stored: try again after Retry-After seconds, when the database answers"
    retry_after: int | None = 5


class LakeUnavailable(Refused):
    status, code, title = 503, "LAKE_UNAVAILABLE", "Lake unavailable"
    hint = "GET /v1/lake says more; the broker goes on, and what is not sealed yet stays in the store"
    retry_after = 5


class DiskLow(Refused):
    status, code, title = 507, "DISK_LOW", "Disk almost full"
    hint = "free some space on the store's disk; fetch and confirm still work"
    retry_after = 10


def _instant_text(at: int) -> str:
    """As `instants` has it; that module needs this one."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
    return moment.isoformat(timespec="microseconds")[:26] + "Z"
