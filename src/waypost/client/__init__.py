"""The client: the broker's verbs over HTTP, for programs.

client      Client: publish, fetch, confirm … awaited
blocking    the same verbs, for code without an event loop
worker      the loop around a handler
forms       messages and answers, typed
transport   one request and its repeats

async with Client("http://127.0.0.1:8080") as client:
    await client.publish("orders.created", {"number": 17}, key="17")

@client.worker("orders", concurrency=8)
async def handle(message): ...
"""

from .blocking import BlockingClient
from .client import Client
from .forms import Acted, Extended, Job, Message, NewMessage, Published, Settled
from .transport import Unreachable
from .worker import Invalid, NotInterested, Retry, Worker

__all__ = [
    "Acted",
    "BlockingClient",
    "Client",
    "Extended",
    "Invalid",
    "Job",
    "Message",
    "NewMessage",
    "NotInterested",
    "Published",
    "Retry",
    "Settled",
    "Unreachable",
    "Worker",
]
