"""The pipeline: keeps the lake's tables up to date with the log.

    log ──ranges──▶ query ──▶ keep ──fold──▶ Spark ──rows──▶ merge ──▶ Delta tables, each with the last offset folded
                                                                        in the commit that brought its rows

    log         where events are read: the lake's files, and the broker for what is not sealed
    keeping     a table and an offset: whatever is missing is folded and committed
    running     one streaming query, which says how far the log goes
    rebuilding  a table anew, beside the one that is there
    standing    how far each table is, without Spark

Exactly once: a table itself says which events are in it, so nothing is lost or doubled wherever the process dies, and
Spark's checkpoint is not needed for that. It is made anew at each start.
"""

from .failures import PipelineStuck
from .keeping import Batch, Figures
from .rebuilding import rebuild
from .running import once, run
from .standing import standing

__all__ = ["Batch", "Figures", "PipelineStuck", "once", "rebuild", "run", "standing"]
