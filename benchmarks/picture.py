"""The picture: for each cell and peer, how many times as fast Waypost is. Hand-made SVG.

One panel per scenario, one group per number of clients, one bar per peer, on a logarithmic axis with
1 × in the middle of attention: to the right Waypost is faster, to the left slower. The colours follow
the reader's light or dark theme, and every bar has its figure, so colour is never needed to read it.
"""

from __future__ import annotations

from html import escape
from math import log2

from benchmarks.peers import PEERS
from benchmarks.report import TITLES, Cell, Run

LANE, GROUP_GAP, HEAD, FOOT = 17, 26, 78, 14
LABELS, AXIS, FIGURE, PANEL_GAP = 188, 190, 48, 10
LEAST, MOST = 0.25, 32.0
SCALE = {0.25: "¼", 0.5: "½", 1: "1", 2: "2", 4: "4", 8: "8", 16: "16", 32: "32"}

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 } .panel { font-size: 13px; font-weight: 600 }
  .soft { fill: #59636e; font-size: 11px } .mid { text-anchor: middle }
  .faster { fill: #1a7f5a } .slower { fill: #c4622d } .line { stroke: #d1d9e0 } .one { stroke: #59636e }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .soft { fill: #9198a1 }
    .faster { fill: #3fb98a } .slower { fill: #e0874f } .line { stroke: #30363d } .one { stroke: #9198a1 }
  }
"""


def picture(run: Run) -> str:
    panels = [s for s in TITLES if any(cell.scenario == s for cell in run.order())]
    drawn = [_panel(run, scenario, index) for index, scenario in enumerate(panels)]
    width = max(1, len(panels)) * (LABELS + AXIS + FIGURE + PANEL_GAP)
    height = HEAD + max((tall for _, tall in drawn), default=0) + FOOT
    facts = f"{run.machine['date']} · {run.machine['machine']}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-label="Waypost compared with its peers">',
            f"<style>{STYLE}</style>",
            '<text class="title" x="12" y="24">Waypost as a multiple of its peers, all synced before they '
            "answer</text>",
            f'<text class="soft" x="12" y="42">{escape(facts)}</text>',
            *(svg for svg, _ in drawn),
            "</svg>\n",
        ]
    )


def _panel(run: Run, scenario: str, index: int) -> tuple[str, int]:
    """One scenario, and how tall it is."""
    left = index * (LABELS + AXIS + FIGURE + PANEL_GAP) + 12
    axis = left + LABELS
    shown = {system for cell, system in run.cells if cell.scenario == scenario} | {*run.gaps}
    peers = [peer for peer in PEERS if peer.name in shown and scenario in peer.scenarios]
    out, y = [f'<text class="panel" x="{left}" y="{HEAD - 10}">{escape(TITLES[scenario])}</text>'], HEAD
    for cell in [cell for cell in run.order() if cell.scenario == scenario]:
        y += GROUP_GAP
        clients = "1 client" if cell.clients == 1 else f"{cell.clients} clients"
        out.append(f'<text class="soft" x="{left}" y="{y - 8}">{clients}</text>')
        for peer in peers:
            out.append(f'<text x="{left + 8}" y="{y + 12}">{escape(peer.title)}</text>')
            out.append(_bar(run.ratio(cell, peer.name), _absence(run, cell, peer.name), axis, y))
            y += LANE
    return "\n".join(_scale(axis, HEAD + 2, y + 6) + out), y - HEAD + 12


def _absence(run: Run, cell: Cell, system: str) -> str:
    return "gap" if system in run.gaps else "void" if run.void(cell, system) else "not measured"


def _x(ratio: float) -> float:
    clipped = min(max(ratio, LEAST), MOST)
    return AXIS * log2(clipped / LEAST) / log2(MOST / LEAST)


def _bar(ratio: float | None, absence: str, axis: int, y: int) -> str:
    one = axis + _x(1)
    if ratio is None:
        return f'<text class="soft" x="{one + 6:.1f}" y="{y + 12}">{absence}</text>'
    end = axis + _x(ratio)
    start, wide = min(one, end), abs(end - one)
    kind = "faster" if ratio >= 1 else "slower"
    text = f"{ratio:.2f} ×" if ratio < 10 else f"{ratio:.0f} ×"
    return (
        f'<rect class="{kind}" x="{start:.1f}" y="{y + 3}" width="{max(wide, 1.5):.1f}" height="{LANE - 6}"/>'
        f'<text x="{max(one, end) + 6:.1f}" y="{y + 12}">{text}</text>'
    )


def _scale(axis: int, top: int, bottom: int) -> list[str]:
    lines = []
    for ratio, name in SCALE.items():
        x = axis + _x(ratio)
        kind = "one" if ratio == 1 else "line"
        dash = "" if ratio == 1 else ' stroke-dasharray="2 4"'
        lines.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"{dash}/>')
        lines.append(f'<text class="soft mid" x="{x:.1f}" y="{bottom + 13}">{name}×</text>')
    return lines
