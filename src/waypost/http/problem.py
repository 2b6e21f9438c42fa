"""A problem: one refusal, in the one shape every refusal has on the wire (RFC 9457).

    {"status": 404, "code": "QUEUE_NOT_FOUND", "title": "Queue not found",
     "detail": "no queue 'bills'", "hint": "PUT /v1/queues/bills makes one; GET /v1/queues lists them"}

`code` is a fixed UPPER_SNAKE word that programs test, `title` says the same to people, `detail` names this
case and `hint` the way out. A handler raises a Problem (or gives it to `Request.refuse`) and the wire answers
it.
"""

from collections.abc import Iterable
from http import HTTPStatus

import msgspec

MEDIA_TYPE = "application/problem+json"

#: The JSON schema of a problem, for the OpenAPI document.
SCHEMA: dict[str, object] = {
    "type": "object",
    "required": ["status", "code", "title", "detail", "hint"],
    "properties": {
        "status": {"type": "integer"},
        "code": {"type": "string", "pattern": "^[A-Z][A-Z0-9_]*$"},
        "title": {"type": "string"},
        "detail": {"type": "string"},
        "hint": {"type": "string"},
    },
}


class Problem(Exception):
    """A refusal. `headers` are added to the answer (`Allow`, `Retry-After`, …)."""

    def __init__(
        self,
        status: int,
        code: str,
        title: str | None = None,
        detail: str = "",
        hint: str = "",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.status = status
        self.code = code
        self.title = HTTPStatus(status).phrase if title is None else title
        self.detail = detail
        self.hint = hint
        self.headers = tuple(headers)
        super().__init__(f"{status} {code}: {detail or self.title}")

    def body(self) -> bytes:
        return msgspec.json.encode(
            {
                "status": self.status,
                "code": self.code,
                "title": self.title,
                "detail": self.detail,
                "hint": self.hint,
            }
        )
