"""The load: N connections, each with one operation in flight, whatever the protocol.

A connection runs a *script*, a generator that yields the bytes to send and is resumed with the bytes
that came back (it yields b"" to read on). An operation lies between two calls of `tick()`:

    def publish(tick):
        while tick():                      # ends one operation, begins the next; False: stop
            data = yield REQUEST
            while not whole(data):
                data += yield b""

So every system is measured by the same loop, the same clock and the same discipline; only the scripts
differ. A reply that is not the wanted one raises `Refused`, and the whole measurement is void.
Only the standard library is needed.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import time
from array import array
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

Script = Generator[bytes, bytes, None]
Reading = Generator[bytes, bytes, bytes]
Tick = Callable[[], bool]
Address = tuple[str, int]

READ_SIZE = 1 << 16
#: Seconds without any answer after which a server counts as stuck.
PATIENCE = 20.0
#: Seconds a warm-up or a measurement is stretched to, at most, where single operations are slow.
LONGEST = 30.0
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Refused(Exception):
    """The server answered something else than the operation needs, or nothing."""


@dataclass(frozen=True)
class Measured:
    """One measurement of one system in one cell. Latencies in seconds."""

    operations: int
    seconds: float
    p50: float
    p99: float
    server_cpu: float  #: seconds of user and system time of all the server's processes
    client_cpu: float
    other_cpu: float  #: what the rest of the machine used meanwhile, and what was stolen from it
    each_cpu: tuple[float, ...] = ()  #: server_cpu, by server

    @property
    def rate(self) -> float:
        return self.operations / self.seconds


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


# ── the server's processor time ──────────────────────────────────────────────────────────────────────


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found = [pid]
    for parent in found:
        found.extend(children.get(parent, ()))
    return found


def cpu_seconds(pids: list[int]) -> float:
    """User and system time, also of children already waited for."""
    ticks = sum(sum(map(int, fields[11:15])) for pid in pids if (fields := _stat(pid)))
    return ticks / CLOCK_TICKS


def machine_seconds() -> float:
    """Processor time used by anybody, with what a hypervisor took away."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / CLOCK_TICKS


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from `state` on; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


# ── the engine ───────────────────────────────────────────────────────────────────────────────────────


class Load:
    """Runs the same script on many connections."""

    def __init__(
        self, addresses: Sequence[Address], connections: int, script: Callable[[Tick], Script]
    ) -> None:
        self.latencies = array("d")
        self.begun = 0
        self.stopping = False
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._resume: dict[int, Callable[[bytes], bytes]] = {}
        self._unsent: dict[int, bytes] = {}
        for number in range(connections):
            sock = socket.create_connection(addresses[number % len(addresses)], timeout=PATIENCE)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            fd = sock.fileno()
            running = script(self._stopwatch())
            self._sockets[fd] = sock
            self._resume[fd] = running.send
            self._poll.register(fd, select.EPOLLIN)
            self._write(fd, next(running))

    def _stopwatch(self) -> Tick:
        began = 0.0
        clock = time.perf_counter
        note = self.latencies.append

        def tick() -> bool:
            nonlocal began
            now = clock()
            if began:
                note(now - began)
            else:
                self.begun += 1
            began = now
            return not self.stopping

        return tick

    def turn(self, timeout: float) -> int:
        """Takes what has arrived, lets each script go on, sends what it says. How many were heard."""
        resume, read, write, unsent = self._resume, os.read, os.write, self._unsent
        events = self._poll.poll(timeout)
        for fd, event in events:
            if event & select.EPOLLOUT:
                self._write(fd, unsent.pop(fd))
                if not event & select.EPOLLIN:
                    continue
            data = read(fd, READ_SIZE)
            if not data:
                raise Refused("the server closed a connection")
            try:
                out = resume[fd](data)
            except StopIteration:
                self._drop(fd)
                continue
            if out:
                try:
                    sent = write(fd, out)
                except BlockingIOError:
                    sent = 0
                if sent != len(out):
                    self._later(fd, out[sent:])
        return len(events)

    def _write(self, fd: int, data: bytes) -> None:
        try:
            sent = os.write(fd, data) if data else 0
        except BlockingIOError:
            sent = 0
        if sent == len(data):
            self._poll.modify(fd, select.EPOLLIN)
        else:
            self._later(fd, data[sent:])

    def _later(self, fd: int, rest: bytes) -> None:
        self._unsent[fd] = rest
        self._poll.modify(fd, select.EPOLLIN | select.EPOLLOUT)

    def _drop(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._resume[fd]
        self._sockets.pop(fd).close()

    def until(self, done: Callable[[], bool]) -> None:
        heard = time.perf_counter()
        while not done():
            if self.turn(0.05):
                heard = time.perf_counter()
            elif time.perf_counter() - heard > PATIENCE:
                raise Refused(f"no answer for {PATIENCE:.0f} s")

    def run_for(self, seconds: float, operations: int) -> None:
        """So long, and so many operations; but never longer than LONGEST."""
        start = time.perf_counter()

        def done() -> bool:
            elapsed = time.perf_counter() - start
            return elapsed >= seconds and (len(self.latencies) >= operations or elapsed >= LONGEST)

        self.until(done)

    def finish(self) -> None:
        """Lets every operation in flight end, so that the next measurement finds a quiet server."""
        self.stopping = True
        self.until(lambda: not self._resume)

    def close(self) -> None:
        for fd in list(self._sockets):
            self._drop(fd)
        self._poll.close()


def measure(
    address: Address,
    pid: int,
    connections: int,
    script: Callable[[Tick], Script],
    seconds: float,
    warm_up: float = 0.3,
) -> Measured:
    return measure_all([address], [pid], connections, script, seconds, warm_up)


def measure_all(
    addresses: Sequence[Address],
    servers: Sequence[int],
    connections: int,
    script: Callable[[Tick], Script],
    seconds: float,
    warm_up: float = 0.3,
) -> Measured:
    """Loads servers that work together, the connections in turn: all connections running, warm-up, then `seconds` that count.

    Where operations are slow the time is stretched (to LONGEST at most) until each connection has ended
    one in the warm-up and two in the measurement: otherwise waves of answers would be cut in two.
    """
    load = Load(addresses, connections, script)
    gc.collect()
    gc.disable()
    try:
        load.until(lambda: load.begun == connections)
        families = [family(pid) for pid in servers]
        load.run_for(warm_up, connections)
        del load.latencies[:]
        machine, before, client = machine_seconds(), [*map(cpu_seconds, families)], time.process_time()
        start = time.perf_counter()
        load.run_for(seconds, 2 * connections)
        elapsed = time.perf_counter() - start
        client = time.process_time() - client
        each = tuple(cpu_seconds(pids) - was for pids, was in zip(families, before, strict=True))
        server = sum(each)
        other = max(0.0, machine_seconds() - machine - server - client)
        latencies = sorted(load.latencies)
        load.finish()
    finally:
        gc.enable()
        load.close()
    if len(latencies) < connections:
        raise Refused(f"only {len(latencies)} of {connections} clients had an answer within {elapsed:.0f} s")
    p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
    return Measured(len(latencies), elapsed, p50, p99, server, client, other, each)


def drive(address: Address, script: Script) -> None:
    """Runs one script to its end on a connection of its own: setting up, clearing away."""
    with socket.create_connection(address, timeout=PATIENCE) as sock:
        try:
            out = next(script)
            while True:
                sock.sendall(out)
                data = sock.recv(READ_SIZE)
                if not data:
                    raise Refused("the server closed the connection")
                out = script.send(data)
        except StopIteration:
            return
