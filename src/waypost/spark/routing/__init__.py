"""Routing at scale: of objects whose policy says so the broker only logs, and this job decides where their messages go.

    broker: L ──what waits, Arrow──▶ driver ──▶ mapInArrow: content hash, route(message, consumers) ──▶ decisions
      ▲                                                                                                   │
      '───────────────── POST /v1/decisions, in the order of `sequence`: L → U or Q ◀─────────────────────'

    asking    the broker's two routes             deciding   what a task does with its rows
    packing   the code that tasks need            running    round after round, and the query that wakes them

It reads what waits and not a stretch of the log, from the lowest sequence on, and a decision that comes twice changes nothing: so
it keeps no state, and nothing is lost, doubled or overtaken whether it is killed, its checkpoint is gone, dead letters
are redriven or a policy moves to and fro. What one answer of the broker brings is one batch: it was chosen at one moment, by which
none of a key's messages can be missing before one that is there.
"""

from .failures import RoutingStuck
from .running import Figures, Round, once, run

__all__ = ["Figures", "Round", "RoutingStuck", "once", "run"]
