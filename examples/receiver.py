"""A webhook receiver that believes only what is signed: orders are posted to it as they come.

    waypost serve --push-allow 127.0.0.0/8      in another terminal; webhooks may not call this machine otherwise
    python examples/receiver.py
    python examples/producer.py 20              in a third

It registers itself as a consumer of queue `orders`, with a secret made at each start: the broker signs with the new
one and the last one, so a change of secrets loses nothing. What it answers decides: 2xx is success; an order above 450
is `invalid`, a dead letter at once; every tenth is to be tried again in a second. Nothing here but the registration
is Waypost's own: any Standard Webhooks library verifies these requests as `verified` does.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import signal
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from waypost import BlockingClient

CONSUMER, QUEUE = "receiver", "orders"
#: an old request sent again is not a new one
FRESH_SECONDS = 300
SECRET = "whsec_" + base64.b64encode(os.urandom(32)).decode()


def verified(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Whether the request is the broker's, whole, and of these minutes."""
    id, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not (at.isascii() and at.isdigit()) or abs(now - int(at)) > FRESH_SECONDS:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signature = hmac.digest(key, f"{id}.{at}.".encode() + body, "sha256")
    expected = f"v1,{base64.b64encode(signature).decode()}"
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(expected.encode(), one.encode()) for one in given)


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not verified(SECRET, dict(self.headers.items()), body, time.time()):
            self._answer(401)
            return
        order, attempt = json.loads(body), int(self.headers["Waypost-Attempt"])
        if order["total"] > 450:
            self._answer(400, {"Waypost-Confirm": "invalid"})
        elif order["number"] % 10 == 0 and attempt == 1:
            self._answer(503, {"Waypost-Confirm": "retry", "Retry-After": "1"})
        else:
            # The same message may come twice: what is done here should be done once per webhook-id.
            print(f"received order {order['number']}: {order['total']} EUR", flush=True)
            self._answer(204)

    def _answer(self, status: int, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *_: object) -> None:
        pass


def main() -> None:
    stop = threading.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, lambda *_: stop.set())
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("RECEIVER_PORT", "0"))), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/orders"
    with BlockingClient(os.environ.get("WAYPOST_URL", "http://127.0.0.1:8080")) as client:
        if QUEUE not in [queue["name"] for queue in client.queues()]:
            client.declare(QUEUE)
        client.declare_consumer(CONSUMER, {"queue": QUEUE, "url": url, "secret": SECRET, "concurrency": 4})
        print(f"orders are posted to {url}", flush=True)
        stop.wait()
        client.delete_consumer(CONSUMER)
    server.shutdown()


if __name__ == "__main__":
    main()
