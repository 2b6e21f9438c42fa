"""Answers that several routes have alike."""

from __future__ import annotations

import msgspec

from waypost.commands import Job
from waypost.http.routes import Failure
from waypost.http.schemas import JSON
from waypost.http.wire import Request

#: every route that reads something of a request knows it
WRONG = Failure(400, "REQUEST_INVALID", "and other words that name what is malformed")

encode = msgspec.json.Encoder().encode


def answer_json(request: Request, status: int, form: object) -> None:
    request.answer(status, encode(form), JSON)


def answer_accepted(request: Request, job: Job) -> None:
    answer_json(request, 202, {"job": job.id, "matched": job.matched})
