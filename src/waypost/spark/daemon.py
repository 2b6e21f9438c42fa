"""pyspark's daemon of workers, silent when Spark hangs up on one of them.

A limit() that has its rows closes the connection while a worker still writes; pyspark prints a traceback for that.
Sessions on this machine name this module in `spark.python.daemon.module`. It is forked: nothing that starts threads,
such as pyarrow, may be imported here.
"""

from __future__ import annotations

from typing import Any

from pyspark import daemon

_work = daemon.worker


def worker(sock: Any, authenticated: bool) -> int:
    try:
        return int(_work(sock, authenticated))
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
