"""Which addresses are really connected to: checked after every resolution, and for addresses in the URL."""

import asyncio
import shutil
import socket
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.conftest import miss
from tests.push.harness import Receiver, in_a_loop, pushing
from waypost.consumers import Consumer
from waypost.errors import RequestInvalid
from waypost.push.addresses import parse_allowed
from waypost.push.breaker import Position


def found(*addresses: str, port: int = 0) -> list[tuple[Any, ...]]:
    """As getaddrinfo gives them."""
    return [
        (
            socket.AF_INET6 if ":" in address else socket.AF_INET,
            socket.SOCK_STREAM,
            6,
            "",
            (address, port, 0, 0) if ":" in address else (address, port),
        )
        for address in addresses
    ]


@in_a_loop
async def test_loopback_is_not_called_unless_it_is_allowed(folder: Path) -> None:
    async with Receiver() as receiver, pushing(folder, allow=()) as bench:
        for n, host in enumerate(
            ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0177.0.0.1", "127.1"]
        ):
            await bench.queue(f"q{n}")
            await bench.register(f"c{n}", f"http://{host}:{receiver.port}/", queue=f"q{n}")
            id = await bench.publish(queue=f"q{n}")
            await bench.until(lambda n=n: bench.figures(f"c{n}").breaker is Position.OPEN)  # type: ignore[misc]
            assert "no connection" in (bench.figures(f"c{n}").last_error or "") or n > 2
            await bench.until(lambda id=id: bench.state(id).name == "Q")  # type: ignore[misc]
        assert "127.0.0.1 may not be called: loopback" in (bench.figures("c0").last_error or "")
        assert receiver.got == []


@in_a_loop
async def test_a_name_that_changes_its_mind_is_refused_at_the_second_attempt(folder: Path) -> None:
    """DNS rebinding: an address that passes first, and another one after it."""
    asked: list[str] = []

    def lookup(host: str, port: int) -> Sequence[tuple[Any, ...]]:
        asked.append(host)
        return found("127.0.0.2" if len(asked) == 1 else "127.0.0.1", port=port)

    first, second = (
        Receiver(lambda got: web.Response(status=400, headers={"Connection": "close"})),
        Receiver(),
    )
    await first.start("127.0.0.2")
    await second.start("127.0.0.1", first.port)
    async with pushing(folder, allow=parse_allowed(["127.0.0.2/32"]), lookup=lookup) as bench:
        await bench.register("billing", f"http://hooks.example:{first.port}/")
        id = await bench.publish()
        await bench.until(lambda: bench.figures("billing").breaker is Position.OPEN)
        assert "127.0.0.1 may not be called" in (bench.figures("billing").last_error or "")
        assert bench.journey(id).startswith("QFRFQ")
    assert len(first.got) == 1
    assert second.got == []
    assert len(asked) >= 2
    await first.stop()
    await second.stop()


@in_a_loop
async def test_of_several_addresses_only_those_that_passed_are_tried(folder: Path) -> None:
    def lookup(host: str, port: int) -> Sequence[tuple[Any, ...]]:
        return found("127.0.0.1", "::1", "64:ff9b::7f00:1", "127.0.0.2", port=port)

    allowed, refused = Receiver(), Receiver()
    await allowed.start("127.0.0.2")
    await refused.start("127.0.0.1", allowed.port)
    async with pushing(folder, allow=parse_allowed(["127.0.0.2/32"]), lookup=lookup) as bench:
        await bench.register("billing", f"http://hooks.example:{allowed.port}/")
        await bench.ended(await bench.publish())
    assert (len(allowed.got), len(refused.got)) == (1, 0)
    assert allowed.got[0].headers["host"] == f"hooks.example:{allowed.port}"
    await allowed.stop()
    await refused.stop()


@in_a_loop
async def test_a_name_that_nobody_knows_is_an_outage(folder: Path) -> None:
    def lookup(host: str, port: int) -> Sequence[tuple[Any, ...]]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with pushing(folder, lookup=lookup) as bench:
        await bench.register("billing", "https://nowhere.example/")
        id = await bench.publish()
        await bench.until(lambda: bench.figures("billing").breaker is Position.OPEN)
        assert bench.figures("billing").last_error == "no connection: name or service not known"
        await bench.until(lambda: bench.state(id).name == "Q")


@in_a_loop
async def test_a_look_up_that_hangs_holds_up_nobody_else(folder: Path) -> None:
    answer = threading.Event()

    def lookup(host: str, port: int) -> Sequence[tuple[Any, ...]]:
        if host == "hanging.example":
            answer.wait(20)
        return found("127.0.0.1", port=port)

    async with Receiver() as receiver, pushing(folder, lookup=lookup) as bench:
        await bench.queue("other")
        await bench.register("hanging", f"http://hanging.example:{receiver.port}/", concurrency=20)
        await bench.register("other", f"http://other.example:{receiver.port}/", queue="other")
        hanging = [await bench.publish() for _ in range(20)]
        await bench.ended([await bench.publish(queue="other") for _ in range(10)])
        assert bench.figures("hanging").in_flight == 20
        answer.set()
        await bench.ended(hanging)


@in_a_loop
async def test_a_certificate_that_nobody_vouches_for_is_an_outage(folder: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        miss("openssl is not on this machine")
    assert openssl is not None
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    asked = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=hooks.example", "-days", "2"]
    making = await asyncio.create_subprocess_exec(
        openssl, *asked, "-keyout", str(key), "-out", str(certificate), stderr=asyncio.subprocess.DEVNULL
    )
    assert await making.wait() == 0
    secured = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secured.load_cert_chain(certificate, key)
    async with Receiver(tls=secured) as receiver, pushing(folder) as bench:
        await bench.register("billing", f"https://127.0.0.1:{receiver.port}/")
        id = await bench.publish()
        await bench.until(lambda: bench.figures("billing").breaker is Position.OPEN)
        assert "certificate" in (bench.figures("billing").last_error or "")
        await bench.until(lambda: bench.state(id).name == "Q")
        assert receiver.got == []


def test_a_proxy_of_the_environment_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @in_a_loop
    async def test(folder: Path) -> None:
        async with Receiver() as receiver, Receiver() as proxy, pushing(folder) as bench:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            await bench.register("billing", receiver.url)
            await bench.ended(await bench.publish())
            assert (len(receiver.got), len(proxy.got)) == (1, 0)

    test(tmp_path)


@in_a_loop
async def test_a_url_that_could_never_be_called_is_refused_when_it_is_declared(folder: Path) -> None:
    async with pushing(folder) as bench:
        bench.pusher.check(Consumer(queue="a"))
        bench.pusher.check(Consumer(queue="a", url="https://hooks.example/"))
        bench.pusher.check(Consumer(queue="a", url="http://127.0.0.1:9/"))
        for url in ("http://10.0.0.1/", "http://169.254.169.254/", "http://0x7f.1/", "ftp://hooks.example/"):
            with pytest.raises(RequestInvalid):
                bench.pusher.check(Consumer(queue="a", url=url))
