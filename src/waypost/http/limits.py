"""What one server takes of its clients, and how long it waits for them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes, counts and seconds."""

    request_line: int = 8192
    header_bytes: int = 32768
    headers: int = 100
    #: Largest body, where the route does not say otherwise.
    body: int = 16 * 1024 * 1024
    #: Bytes of requests that are not whole yet, of all connections together.
    arriving: int = 256 * 1024 * 1024
    connections: int = 10_000
    #: New connections taken in one turn of the loop.
    accepts: int = 256
    #: Requests of one connection that may wait for their answer.
    pipeline: int = 64
    #: A head that has begun must be whole after this time.
    head_seconds: float = 10.0
    #: A body, or a client taking its answers, may stand still for so long.
    body_seconds: float = 30.0
    #: Nothing asked for so long: closed.
    idle_seconds: float = 75.0
    #: After our last answer, how long we wait for the client to close its side.
    linger_seconds: float = 2.0
    #: How often the connections are looked at for all these.
    sweep_seconds: float = 1.0
