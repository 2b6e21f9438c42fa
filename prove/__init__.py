"""The proofs: nothing that was acknowledged is lost, and nothing that was confirmed comes again.

    python -m prove [--only kills,power,control,walk,walk-postgres,folder,postgres,pipeline,replay] [--kills 200] [--cuts 10] …

    kills     kill -9 at random moments of a load; the same file again; drain; count
    power     the same on a disk whose power is cut, half of the cuts after an I/O error that healed
    control   the same cuts with `synchronous=NORMAL`, which must lose: the rig can see a loss
    walk      the state machine of waypost.testing, for minutes; walk-postgres: with two brokers on PostgreSQL
    folder    kill -9 of brokers on one folder
    postgres  kill -9 of brokers on one PostgreSQL, of PostgreSQL, of both
    pipeline  kill -9 of the pipeline, its sealer, its broker
    replay    kill -9 of a replay from the lake, of its target, of both

    load ──HTTP──▶ broker ──▶ file          what is struck
     │
     '─▶ Record ──▶ judge(record, log, depths) ──▶ Verdict ──▶ .prove/results.jsonl ──▶ docs/guarantees.md

The load and its record of every answer live in a process and on a disk that no fault touches. A finished
round is a line in `.prove/`, so an interrupted run goes on where it was; a line counts only for the code that
made it.
"""
