"""What Waypost costs, measured beside its peers: `python -m benchmarks.run --help`.

    run ──▶ peers   finds, starts and stops the servers (Waypost too)
     │  └─▶ loader  one closed-loop engine for all of them
     │        └──▶ wires/  one file per protocol: request bytes, and when a reply is whole
     ├────▶ large, backlog   what only Waypost is asked
     └────▶ report, picture   medians, ratios, targets, the page
    promise  shows that all of them answer only after a sync

Nothing in `src/` imports this package.
"""
