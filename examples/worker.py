"""A worker: handles orders until Ctrl-C or SIGTERM, four at a time.

    waypost serve                         in another terminal
    python examples/worker.py

Returning confirms the message. Raising decides otherwise: here an order above 450 is invalid, and every
tenth one is tried again in a second. While a handler runs its lease is kept; on SIGTERM what runs is finished
first.
"""

import asyncio
import os

from waypost import Client, Invalid, Message, Retry

client = Client(os.environ.get("WAYPOST_URL", "http://127.0.0.1:8080"), consumer="billing")


@client.worker("orders", concurrency=4)
async def bill(message: Message) -> None:
    order = message.json()
    if order["total"] > 450:
        raise Invalid(f"order {order['number']} is too large to bill")
    if order["number"] % 10 == 0 and message.attempt == 1:
        raise Retry("the bank did not answer", delay=1)
    await asyncio.sleep(0.05)
    print(f"billed order {order['number']}: {order['total']} EUR", flush=True)


if __name__ == "__main__":
    client.run()
