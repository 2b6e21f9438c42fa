"""A producer: orders, one by one, from a program that has no event loop.

    waypost serve                         in another terminal
    python examples/producer.py 20

A publish that returns is on the broker's disk. One whose answer was lost is sent again, and still is one
message.
"""

import os
import random
import sys

from waypost import BlockingClient


def main(count: int) -> None:
    url = os.environ.get("WAYPOST_URL", "http://127.0.0.1:8080")
    with BlockingClient(url, producer="shop") as client:
        for number in range(1, count + 1):
            order = {"number": number, "customer": random.randint(1, 5), "total": random.randint(5, 500)}
            published = client.publish("orders.created", order, key=str(order["customer"]))
            print(f"order {number} is message {published.id}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
