"""HTTP: the wire server and the table of routes.

    problem   one refusal, RFC 9457            routes   the table, matching, OpenAPI
    site      the names we answer to           head     a request's head and its strict reader
    chunks    chunked bodies                   wire     one connection: Request, Stream
    server    listening, timers, drain         limits   how much and how long

A handler gets a `Request` and answers it; it knows nothing of sockets. None of these modules knows the
broker.
"""

from waypost.http.head import Head
from waypost.http.limits import Limits
from waypost.http.problem import Problem
from waypost.http.routes import Content, Failure, Parameter, Route, Routes
from waypost.http.server import Server, run
from waypost.http.wire import Request, Stats, Stream, render

__all__ = [
    "Content",
    "Failure",
    "Head",
    "Limits",
    "Parameter",
    "Problem",
    "Request",
    "Route",
    "Routes",
    "Server",
    "Stats",
    "Stream",
    "render",
    "run",
]
