"""Pictures of the site: the diagrams that `generate.py` writes as mermaid, which GitHub draws, drawn as SVG here.

mkdocs would have each reader's browser fetch mermaid.js from somebody else's server, and a site on a disk would have no
pictures. What draws mermaid without a browser takes a minute for our ten, or is for later Pythons than ours. We write
only three forms of it, of which each line is parsed here: an unknown one is an error, so that nothing is left out.
"""

from __future__ import annotations

import re
from html import escape
from itertools import count
from typing import NamedTuple

CHAR, LINE, BOX, GAP = 7.4, 20, 26, 24
"""Widths of a character of 12 px (above the mean, so that no text is cut), heights of a line and a box, and a space."""
ENDS = "[*]"
MARK = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>'
)
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Edge(NamedTuple):
    """An arrow; responses are dashed."""

    source: str
    target: str
    label: str = ""
    kind: str = "arrow"


def with_pictures(page: str) -> str:
    """Return a page with its diagrams drawn. Raises ValueError for a line that no form here has."""
    return DIAGRAM.sub(lambda found: f"<div>{drawn(found[1])}</div>", page)


def drawn(diagram: str) -> str:
    """Return a diagram as SVG."""
    form, *lines = [line.strip() for line in diagram.splitlines()]
    draw = {"stateDiagram-v2": _states, "flowchart TD": _layers, "sequenceDiagram": _sequence}.get(form)
    if draw is None:
        raise ValueError(f"{form!r} is no diagram that can be drawn here")
    return draw(lines)


def _edge(line: str) -> Edge:
    found = re.fullmatch(r"(.+?) ?(--?>>?) ?([^:]+)(?:: (.*))?", line)
    if found is None:
        raise ValueError(f"{line!r} is no arrow of a diagram")
    return Edge(found[1], found[3], found[4] or "", "arrow dashed" if found[2] == "-->>" else "arrow")


def _sequence(lines: list[str]) -> str:
    steps = [line.removeprefix("Note over ") if line.startswith("Note") else _edge(line) for line in lines]
    names = list(dict.fromkeys(name for step in steps if isinstance(step, Edge) for name in step[:2]))
    longest = max(len(step.label) for step in steps if isinstance(step, Edge))
    apart = max(150.0, longest * CHAR / 2 + GAP)
    x = {name: 80 + apart * n for n, name in enumerate(names)}
    height = BOX + 2 * LINE * len(steps) + LINE
    parts = [_box(name, x[name] - 70, 0, 140) + _path(f"M{x[name]} {BOX}V{height}", "lifeline") for name in names]
    right = max(x.values())
    for y, step in zip(count(BOX + 2 * LINE, 2 * LINE), steps, strict=False):
        if isinstance(step, str):
            who, text = step.split(": ", 1)
            parts.append(_text(text, x[who] + 8, y, "note"))
            right = max(right, x[who] + len(text) * CHAR)
        elif step.source == step.target:
            parts += _path(f"M{x[step.source]} {y - 8}h30v10h-30", "arrow"), _text(step.label, x[step.source] + 36, y)
            right = max(right, x[step.source] + 36 + len(step.label) * CHAR)
        else:
            ends = x[step.source], x[step.target]
            parts += _path(f"M{ends[0]} {y}H{ends[1]}", step.kind), _text(step.label, min(ends) + 8, y - 5)
            right = max(right, min(ends) + 8 + len(step.label) * CHAR)
    return _svg(parts, max(right, max(x.values()) + 70) + GAP, height)


def _states(lines: list[str]) -> str:
    """States one below the other; at the right of each what leaves it, with its label, by a line to where it leads."""
    edges = [_edge(line) for line in lines]
    names = list(dict.fromkeys([edge.source for edge in edges] + [edge.target for edge in edges]))
    names.remove(ENDS)
    stays = {edge.source: edge.label for edge in edges if edge.source == edge.target}
    moves = [edge for edge in edges if edge.source != edge.target and ENDS not in edge[:2]]
    marks = {edge.target: "begins" for edge in edges if edge.source == ENDS}
    marks |= {edge.source: "ends" for edge in edges if edge.target == ENDS}
    width = max(map(len, [*names, *marks.values()])) * CHAR + 2 * GAP
    lanes_x = width + max(len(edge.label) for edge in moves) * CHAR + GAP
    parts, slots, y = [], {}, 4.0
    for name in names:
        ends = [(end, edge) for end in ("in", "out") for edge in moves if edge[end == "in"] == name]
        height = max(len(ends), 1 + (name in marks)) * LINE + 8
        parts.append(_box(name, 2, y, width, height) + _text(marks.get(name, ""), 12, y + 34, "note"))
        for n, end in enumerate(ends):
            slots[end] = y + 14 + n * LINE
        if stays.get(name):
            parts.append(_text(f"stays: {stays[name]}", width + 10, y + height + 14, "note"))
        y += height + GAP
    taken: list[float] = []  # where the last line of each lane ends
    for top, bottom, edge in sorted((*sorted((slots["out", edge], slots["in", edge])), edge) for edge in moves):
        lane = next((n for n, end in enumerate(taken) if end < top), len(taken))
        taken[lane : lane + 1] = [bottom]
        out = slots["out", edge]
        path = f"M{width + 2} {out}H{lanes_x + lane * 12}V{slots['in', edge]}H{width + 4}"
        parts += _path(path, "arrow"), _text(edge.label, width + 10, out - 4)
    right = max(lanes_x + len(taken) * 12, *(width + 10 + (len(text) + 7) * CHAR for text in stays.values()), 0)
    return _svg(parts, right + GAP, y)


def _layers(lines: list[str]) -> str:
    """Each name below all that lead to it, in rows."""
    edges = [_edge(line) for line in lines]
    names = list(dict.fromkeys(name for edge in edges for name in edge[:2]))
    row = dict.fromkeys(names, 0)
    for _ in names:
        for edge in edges:
            row[edge.target] = max(row[edge.target], row[edge.source] + 1)
    rows = [[name for name in names if row[name] == n] for n in range(max(row.values()) + 1)]
    width, widest = 110, max(map(len, rows))
    x: dict[str, float] = {}
    for members in rows:
        above = {name: [x[edge.source] for edge in edges if edge.target == name] for name in members}
        members.sort(key=lambda name: sum(above[name]) / max(1, len(above[name])))
        step = widest * (width + GAP) / len(members)
        x |= {name: step * (n + 0.5) for n, name in enumerate(members)}
    y = {name: 4 + row[name] * 74 for name in names}
    parts = [
        _path(f"M{x[one.source]:.0f} {y[one.source] + BOX}L{x[one.target]:.0f} {y[one.target]}", "arrow")
        for one in edges
    ]
    parts += [_box(name, x[name] - width / 2, y[name], width) for name in names]
    return _svg(parts, widest * (width + GAP), max(y.values()) + BOX + 8)


def _box(name: str, x: float, y: float, width: float, height: float = BOX) -> str:
    shape = f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="4"/>'
    return shape + _text(name, x + 10, y + 18, "name")


def _text(text: str, x: float, y: float, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>' if text else ""


def _path(path: str, kind: str) -> str:
    return f'<path class="{kind}" d="{path}"/>'


def _svg(parts: list[str], width: float, height: float) -> str:
    lines, others = ([part for part in parts if part.startswith("<path") is is_line] for is_line in (True, False))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="max-width:{width:.0f}px">{MARK}{"".join(lines + others)}</svg>'
    )
