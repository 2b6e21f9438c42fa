"""The servers: found, started in folders of their own, stopped by their process id.

A server is looked for in an environment variable (`WAYPOST_BENCH_REDIS` and so on: the path of its
program), on PATH and beside the running Python (where wheels put programs). One that is not found is an
`Absent`, which the tables name as a gap. Each listens on loopback only, keeps its files under one
folder, and promises what Waypost promises: answered means synced.

    python -m benchmarks.peers      says which are there
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from benchmarks.loader import Address, Refused, drive, family
from benchmarks.wires import Wire
from benchmarks.wires.amqp import RabbitMq, RabbitMqConsumer
from benchmarks.wires.beanstalkd import Beanstalkd
from benchmarks.wires.http import Waypost, ready
from benchmarks.wires.nats import Nats
from benchmarks.wires.postgres import Postgres
from benchmarks.wires.redis import Redis

START_SECONDS = 60.0
STOP_SECONDS = 20.0


class Absent(Exception):
    """The peer is not installed, or does not start: a gap, with its reason."""


@dataclass(frozen=True)
class Plan:
    """How one server is started: everything that is decided before a process exists."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    user: str | None = None  #: whom to become when we are root
    before: list[list[str]] = field(default_factory=list)  #: commands that must end first
    beside: list[list[str]] = field(default_factory=list)  #: processes that live as long as the server
    stop_signal: signal.Signals = signal.SIGTERM


@dataclass(frozen=True)
class Server:
    name: str
    programs: tuple[str, ...]  #: the first that is found is the server
    version: tuple[str, ...]  #: arguments that make it print its version
    hello: Callable[[], Wire]  #: what to greet it with until it answers
    plan: Callable[[str, Path, int], Plan]


@dataclass(frozen=True)
class System:
    """One column of the tables: a server and how it is spoken to."""

    name: str
    title: str  #: with the settings that make its promise equal to ours
    server: Server
    wire: Callable[[], Wire]
    instance: str  #: systems with the same instance share one running server
    scenarios: tuple[str, ...] = ("publish", "cycle", "batch", "batch_cycle")


@dataclass(frozen=True)
class Running:
    """A started server: what the loader needs."""

    address: Address
    pid: int
    folder: Path
    started_after: float  #: seconds from exec to the first answer


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# ── how each is started ──────────────────────────────────────────────────────────────────────────────


def plan_waypost(program: str, folder: Path, port: int) -> Plan:
    return Plan([program, "serve", "--store", f"sqlite:///{folder}/waypost.db", "--port", str(port)])


def plan_redis(program: str, folder: Path, port: int) -> Plan:
    # Rewriting the append-only file is off: it would run into its neighbours' measurements.
    settings = f"""--port {port} --bind 127.0.0.1 --dir {folder} --daemonize no
        --appendonly yes --appendfsync always --auto-aof-rewrite-percentage 0"""
    return Plan([program, *settings.split(), "--save", ""])


def plan_beanstalkd(program: str, folder: Path, port: int) -> Plan:
    return Plan([program, "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), "-f0"])


def plan_nats(program: str, folder: Path, port: int) -> Plan:
    config = folder / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}", sync_interval: always }}\n'
    )
    return Plan([program, "-c", str(config)])


def plan_postgres(program: str, folder: Path, port: int) -> Plan:
    data = folder / "data"
    initdb = Path(program).resolve().with_name("initdb")
    if not initdb.exists():
        raise Absent("initdb is not beside postgres")
    settings = ["max_connections=300", "shared_buffers=256MB", "fsync=on", "synchronous_commit=on"]
    return Plan(
        [program, "-D", str(data), "-p", str(port), "-k", str(folder), "-h", "127.0.0.1"]
        + [word for setting in settings for word in ("-c", setting)],
        user="postgres",
        before=[f"{initdb} -D {data} -A trust -U postgres -E UTF8 --locale=C.UTF-8".split()],
        stop_signal=signal.SIGINT,  # "fast": does not wait for clients
    )


def plan_rabbitmq(program: str, folder: Path, port: int) -> Plan:
    epmd = shutil.which("epmd")
    if epmd is None:
        raise Absent("epmd is not on PATH")
    epmd_port = str(free_port())
    (folder / "enabled_plugins").write_text("[].\n")
    (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
    environment = {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_PORT": epmd_port,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
    # epmd would outlive the node that starts it, so it is ours.
    return Plan(
        [program], environment, user="rabbitmq", beside=[[epmd, "-port", epmd_port, "-address", "127.0.0.1"]]
    )


WAYPOST = Server("waypost", ("waypost",), (), Waypost, plan_waypost)
REDIS = Server("redis", ("redis-server",), ("--version",), Redis, plan_redis)
NATS = Server("nats", ("nats-server",), ("--version",), Nats, plan_nats)
# Debian's wrapper on PATH changes the user and the environment, so the script behind it comes first.
RABBITMQ = Server(
    "rabbitmq", ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"), (), RabbitMq, plan_rabbitmq
)
BEANSTALKD = Server("beanstalkd", ("beanstalkd",), ("-v",), Beanstalkd, plan_beanstalkd)
DEBIAN_POSTGRES = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")), reverse=True)
POSTGRES = Server("postgres", (*DEBIAN_POSTGRES, "postgres"), ("--version",), Postgres, plan_postgres)

OURS = System("waypost", "Waypost", WAYPOST, Waypost, "waypost")
#: Waypost once more, on a second store: what differs between the two is the spread of the measurement.
AGAIN = System("waypost-again", "Waypost again", WAYPOST, Waypost, "waypost-again")
PEERS = (
    System("redis", "Redis Streams, AOF always", REDIS, Redis, "redis"),
    System("nats", "NATS JetStream, sync always", NATS, Nats, "nats"),
    System("rabbitmq", "RabbitMQ quorum, basic.get", RABBITMQ, RabbitMq, "rabbitmq"),
    System(
        "rabbitmq-push", "RabbitMQ quorum, consumer", RABBITMQ, RabbitMqConsumer, "rabbitmq",
        scenarios=("cycle", "batch_cycle"),
    ),
    System("beanstalkd", "beanstalkd -f0", BEANSTALKD, Beanstalkd, "beanstalkd"),
    System("postgres", "PostgreSQL SKIP LOCKED", POSTGRES, Postgres, "postgres"),
)  # fmt: skip


def find(server: Server) -> str:
    variable = f"WAYPOST_BENCH_{server.name.upper()}"
    if given := os.environ.get(variable):
        if not os.access(given, os.X_OK):
            raise Absent(f"{variable} names no program: {given}")
        return given
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}:/usr/sbin"
    for program in server.programs:
        if found := shutil.which(program, path=path):
            return found
    raise Absent(f"{server.programs[-1]} is not installed")


def version(server: Server) -> str:
    """Its version as it says it."""
    program = find(server)
    if server is WAYPOST:
        return metadata.version("waypost")
    if server is RABBITMQ:  # asking it would start a virtual machine; its folder carries the number
        home = Path(program).resolve().parents[1]
        names = [home.name, *(path.name for path in home.glob("lib/rabbitmq_server-*"))]
        return next((n.partition("-")[2] for n in names if n.startswith("rabbitmq_server-")), "unknown")
    said = subprocess.run([program, *server.version], capture_output=True, text=True, check=False, timeout=30)
    found = re.search(r"\d+\.\d+(\.\d+)?", said.stdout + said.stderr)
    return found[0] if found else "unknown"


# ── starting and stopping ────────────────────────────────────────────────────────────────────────────


@contextmanager
def running(server: Server, folder: Path) -> Iterator[Running]:
    """The server on a free port, its files in `folder` (kept from an earlier run, if there are any)."""
    program, port = find(server), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    plan = server.plan(program, folder, port)
    user = plan.user if os.geteuid() == 0 else None
    if user:
        _give(folder, user)
    log = (folder / "server.log").open("ab")
    spawned: list[subprocess.Popen[bytes]] = []

    def spawn(command: list[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | plan.environment, user=user, group=user,
            extra_groups=[] if user else None, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        spawned.append(process)
        return process

    try:
        for command in plan.before:
            if not (folder / "data").exists() and spawn(command).wait(START_SECONDS) != 0:
                raise Absent(f"{command[0]} failed: {_last_line(folder)}")
        for command in plan.beside:
            spawn(command)
        start = time.perf_counter()
        process = spawn(plan.command)
        _wait_ready(server, process, ("127.0.0.1", port), folder)
        yield Running(("127.0.0.1", port), process.pid, folder, time.perf_counter() - start)
    finally:
        for process in reversed(spawned):
            _stop(process, plan.stop_signal)
        log.close()


def _give(folder: Path, user: str) -> None:
    entry = pwd.getpwnam(user)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, entry.pw_uid, entry.pw_gid)


def _wait_ready(server: Server, process: subprocess.Popen[bytes], address: Address, folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Absent(f"{server.name} ended with {process.returncode}: {_last_line(folder)}")
        try:
            if server.name == WAYPOST.name:
                drive(address, ready())
            else:
                drive(address, server.hello().hello())
            return
        except (OSError, Refused):
            time.sleep(0.02)
    raise Absent(f"{server.name} was not ready after {START_SECONDS:.0f} s: {_last_line(folder)}")


def _last_line(folder: Path) -> str:
    lines = (folder / "server.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _stop(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    if process.poll() is not None:
        return
    pids = family(process.pid)
    process.send_signal(how)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def main() -> None:
    for server in dict.fromkeys(system.server for system in (OURS, *PEERS)):
        try:
            print(f"{server.name:12} {version(server):10} {find(server)}")
        except Absent as gap:
            print(f"{server.name:12} absent: {gap}")


if __name__ == "__main__":
    main()
