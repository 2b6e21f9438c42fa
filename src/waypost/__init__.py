"""Waypost: a durable message broker that starts with one command and speaks plain HTTP.

    import waypost

    async with waypost.Client("http://127.0.0.1:8080") as client:
        await client.publish("orders.created", {"number": 17})

The client's names are imported when they are first used: the broker, which starts from this package too, does
without them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from waypost.version import __version__

if TYPE_CHECKING:
    from waypost.client import (
        BlockingClient,
        Client,
        Invalid,
        Message,
        NewMessage,
        NotInterested,
        Published,
        Retry,
        Unreachable,
    )
    from waypost.errors import (
        Busy,
        ChannelNotFound,
        ConsumerNotFound,
        ConsumerRequired,
        DiskLow,
        IdempotencyConflict,
        IdTaken,
        JobNotFound,
        LogTrimmed,
        MessageNotFound,
        NotOffered,
        ObjectNotFound,
        PayloadReaped,
        QueueFull,
        QueueNotFound,
        Refused,
        RequestInvalid,
        SpectatorNotFound,
        WaypostError,
    )
    from waypost.routing import Route

__all__ = [
    "BlockingClient",
    "Busy",
    "ChannelNotFound",
    "Client",
    "ConsumerNotFound",
    "ConsumerRequired",
    "DiskLow",
    "IdTaken",
    "IdempotencyConflict",
    "Invalid",
    "JobNotFound",
    "LogTrimmed",
    "Message",
    "MessageNotFound",
    "NewMessage",
    "NotInterested",
    "NotOffered",
    "ObjectNotFound",
    "PayloadReaped",
    "Published",
    "QueueFull",
    "QueueNotFound",
    "Refused",
    "RequestInvalid",
    "Retry",
    "Route",
    "SpectatorNotFound",
    "Unreachable",
    "WaypostError",
    "__version__",
]

_OF_THE_CLIENT = frozenset(
    {
        "BlockingClient",
        "Client",
        "Invalid",
        "Message",
        "NewMessage",
        "NotInterested",
        "Published",
        "Retry",
        "Unreachable",
    }
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'waypost' has no attribute {name!r}")
    home = "waypost.client" if name in _OF_THE_CLIENT else "waypost.errors"
    home = "waypost.routing" if name == "Route" else home
    value = globals()[name] = getattr(import_module(home), name)
    return value
