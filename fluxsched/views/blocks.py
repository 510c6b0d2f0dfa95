"""The machine as a map of characters: two targets a cell one above the other where the terminal has half blocks.

Law: nothing here is for one terminal: a line is runs of text with the words of the states above and below, and who
prints them chooses the colours (`kind_words`). A map that would not fit shows several targets in a place: the gravest
state that at least one in TROUBLE_SHARE of them has, else how much of their cores is in use on the whole. It is drawn
in time linear in targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress, groupby
from typing import NamedTuple

from fluxsched.core.children import Entry
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.text import printable
from fluxsched.views.machine import LiveMachine, MapSection
from fluxsched.views.states import PARTLY_SIGN, STATES, USED, state_named

LEVELS = ("free", "used-25", "used-50", "used-75", "allocated")
"""Kinds of targets that work: by the share of their cores in use, none, up to each quarter, all."""
TROUBLES = tuple([state.word for state in STATES if state.word not in USED])
"""The other kinds, gravest first."""
KINDS = (*LEVELS, *TROUBLES)
TROUBLE_SHARE = 8
"""Of so many targets in one place one in trouble is enough to show it."""
TOGETHER_MAX = 1 << 17
"""Targets in one place at most."""
TERMINAL = {"used-25": 66, "used-50": 67, "used-75": 68}
"""Colours of 256 between those of free and allocated."""
_NONE = 0xFF
"""No target is in that place: the last line of a section."""
_ALLOCATED = len(LEVELS) - 1


class MapRun(NamedTuple):
    """Equal cells of a line: their text, the kind of what is above, and of what is below in a half block."""

    text: str
    above: str = ""
    below: str = ""


class _MapScale(NamedTuple):
    """How a place is drawn: columns, places one above the other in a line, targets in a place."""

    columns: int
    stacked: int
    together: int


class _MapBlock(NamedTuple):
    """The places of one section: its first line on the map and its targets."""

    line: int
    lines: int
    ranks: Idset


class MapDrawing:
    """A drawn map, and which targets are where."""

    def __init__(
        self, lines: list[list[MapRun]], blocks: Sequence[_MapBlock], scale: _MapScale, width: int, unnamed: int = 0
    ) -> None:
        self.lines = lines
        self.unnamed = unnamed
        """How many parts of the machine have no room for their names; they are drawn as one."""
        self.together = scale.together
        """How many targets are in one place."""
        self._blocks = blocks
        self._scale = scale
        self._per_row = max(1, width // scale.columns)

    def ranks_at(self, x: int, y: int, half: int | None = None) -> Idset:
        """The targets in a cell; `half`: those above (0) or below (1) only."""
        columns, stacked, together = self._scale
        for block in self._blocks:
            if block.line <= y < block.line + block.lines and 0 <= x // columns < self._per_row:
                found = EMPTY
                for row in range(stacked) if half is None or stacked == 1 else (half,):
                    place = ((y - block.line) * stacked + row) * self._per_row + x // columns
                    found |= _between(block.ranks, place * together, together)
                return found
        return EMPTY

    def place_of(self, rank: int) -> tuple[int, int, int] | None:
        """Column and line of a target, and which half; None if it is not on the map."""
        columns, stacked, together = self._scale
        for block in self._blocks:
            if rank in block.ranks:
                row, at = divmod(block.ranks.index(rank) // together, self._per_row)
                return at * columns, block.line + row // stacked, row % stacked
        return None

    def neighbour(self, x: int, y: int, half: int, dx: int, dy: int) -> int | None:
        """The first target of the cell so far away, or of the last one on the way; None: there is none.

        To the sides it goes over the edge, up and down over titles.
        """
        columns = self._scale.columns
        at = self._block_at(y)
        if at is None:
            return None
        if dx:
            ranks = self.ranks_at(x, y)
            order = self._blocks[at].ranks
            index = order.index(ranks.min()) + dx * max(1, self._scale.together)
            row_x = x + dx * columns
            beside = self.ranks_at(row_x, y)
            if row_x >= 0 and beside:
                return beside.min()
            return order.nth(max(0, min(index, len(order) - 1)))
        wanted = y + dy
        step = 1 if dy > 0 else -1
        last = max(block.line + block.lines for block in self._blocks)
        wanted = max(0, min(wanted, last - 1))
        while 0 <= wanted < last:
            for column in range(x, -1, -columns):
                if ranks := self.ranks_at(column, wanted):
                    return ranks.min()
            wanted += step
        return None

    def _block_at(self, y: int) -> int | None:
        return next((at for at, one in enumerate(self._blocks) if one.line <= y < one.line + one.lines), None)


def kind_words(word: str) -> tuple[str, int, str]:
    """Meaning, colour of a terminal of 256 colours, and sign of one of KINDS."""
    if word in TERMINAL:
        return f"{word.removeprefix('used-')} % or less of its cores in use", TERMINAL[word], PARTLY_SIGN
    state = state_named(word)
    return state.meaning, state.terminal, state.sign


def draw_map(
    machine: LiveMachine, by: str, width: int, lines_max: int, *, is_colourful: bool, is_unicode: bool = True
) -> MapDrawing:
    """The map in at most `lines_max` lines of `width` columns; signs instead of blocks where there is no colour."""
    sections, unnamed = machine.arranged(by), 0
    has_blocks = is_colourful and is_unicode
    scale, has_titles = _scale(sections, max(1, width), max(1, lines_max), has_blocks)
    if not has_titles:
        unnamed = len(sections) if len(sections) > 1 else 0
        everything = EMPTY
        for section in sections:
            everything |= section.ranks
        sections = [MapSection("", everything)] if everything else []
    kinds = _kinds(machine)
    lines: list[list[MapRun]] = []
    blocks = []
    for section in sections:
        if has_titles:
            lines.append([MapRun(_heading(section, width))])
        rows = _rows(kinds, section.ranks, scale, width)
        drawn = [_line(rows[at : at + scale.stacked], scale, has_blocks) for at in range(0, len(rows), scale.stacked)]
        blocks.append(_MapBlock(len(lines), len(drawn), section.ranks))
        lines += drawn
    return MapDrawing(lines[:lines_max], blocks, scale, width, unnamed)


def _heading(section: MapSection, width: int) -> str:
    return printable(f"{section.title}  {len(section.ranks):,}")[:width]


def _between(ranks: Idset, first: int, count: int) -> Idset:
    if first >= len(ranks):
        return EMPTY
    low = ranks.nth(first)
    high = ranks.nth(min(first + count, len(ranks)) - 1)
    return Idset(ranks.mask & ((1 << high + 1) - (1 << low)))


def _scale(sections: Sequence[MapSection], width: int, lines_max: int, has_blocks: bool) -> tuple[_MapScale, bool]:
    """The largest places with which all targets fit, and whether titles fit, too."""
    stacked = 2 if has_blocks else 1
    scales = [_MapScale(4, 1, 1), _MapScale(2, 1, 1), _MapScale(1, stacked, 1)]
    together = 2
    while together < TOGETHER_MAX:
        scales.append(_MapScale(1, stacked, together))
        together += max(1, together // 4)
    sizes = [len(section.ranks) for section in sections]
    titles = len(sizes) if len(sizes) > 1 else 0
    for scale in scales:
        if titles + sum(_lines(size, scale, width) for size in sizes) <= lines_max:
            if titles and scale.together > 1 and titles * 3 > lines_max:
                break  # more titles than map
            return scale, titles > 0
    total = sum(sizes)
    return next((scale for scale in scales if _lines(total, scale, width) <= lines_max), scales[-1]), False


def _lines(targets: int, scale: _MapScale, width: int) -> int:
    places = -(-targets // scale.together)
    rows = -(-places // max(1, width // scale.columns))
    return -(-rows // scale.stacked)


def _kinds(machine: LiveMachine) -> bytes:
    """The kind of each rank, as an index of KINDS, up to the highest rank there is."""
    resources = machine.resources
    if not resources.ranks:
        return b""
    size = resources.ranks.max() + 1
    total = 0
    used = machine.states.parts.get("allocated", EMPTY)
    left = used
    for cores, ranks in machine.busy.parts.items():
        for level, part in _levels(resources.entries, int(cores), ranks & used):
            total += _spread(part, level, size)
            left -= part
    total += _spread(left, _ALLOCATED, size)  # held, and nothing is said of its cores
    for word, ranks in machine.states.parts.items():
        if word not in USED:
            at = KINDS.index(word) if word in KINDS else KINDS.index("lost")
            total += _spread(ranks & resources.ranks, at, size)
    return total.to_bytes(size, "little")


def _levels(entries: Sequence[Entry], cores: int, ranks: Idset) -> Iterator[tuple[int, Idset]]:
    """Which of these targets, of which so many cores are in use, have which level."""
    for entry in entries:
        part = ranks & entry.ranks
        if part:
            has = entry.children.count("core")
            share = _ALLOCATED if cores >= has else 1 + min(2, (4 * cores - 1) // has) if cores else 0
            yield share, part


def _spread(ranks: Idset, value: int, size: int) -> int:
    """An int whose byte number `rank` is `value` for each of these ranks: sums of them are tables."""
    if not value or not ranks:
        return 0
    bits = f"{ranks.mask:0{size}b}".encode()[-size:]
    table = bytes.maketrans(b"01", bytes((0, value)))
    return int.from_bytes(bits.translate(table), "big")


def _rows(kinds: bytes, ranks: Idset, scale: _MapScale, width: int) -> list[bytes]:
    """The kinds of the places of a section, one row a piece, all of the same length."""
    low, high = ranks.min(), ranks.max() + 1
    piece = kinds[low:high]
    if len(ranks) < high - low:
        bits = f"{ranks.mask >> low:0{high - low}b}".encode()[::-1].translate(bytes.maketrans(b"01", b"\0\1"))
        piece = bytes(compress(piece, bits))
    if scale.together > 1:
        piece = bytes([_common(piece[at : at + scale.together]) for at in range(0, len(piece), scale.together)])
    per_row = max(1, width // scale.columns)
    rows = [piece[at : at + per_row] for at in range(0, len(piece), per_row)]
    rows[-1] += bytes((_NONE,)) * (per_row - len(rows[-1]))
    if len(rows) % scale.stacked:
        rows.append(bytes((_NONE,)) * per_row)
    return rows


def _common(kinds: bytes) -> int:
    """The kind of several targets in one place."""
    first = kinds[0]
    if kinds.count(first) == len(kinds):
        return first
    for kind in range(len(LEVELS), len(KINDS)):
        if kinds.count(kind) * TROUBLE_SHARE >= len(kinds):
            return kind
    counts = [kinds.count(level) for level in range(len(LEVELS))]
    return round(sum(level * count for level, count in enumerate(counts)) / max(1, sum(counts)))


def _line(rows: Sequence[bytes], scale: _MapScale, has_blocks: bool) -> list[MapRun]:
    if scale.stacked == 2:
        pairs = groupby(zip(rows[0], rows[1], strict=True))
        return [_half(above, below, len(list(same))) for (above, below), same in pairs]
    runs = []
    for kind, same in groupby(rows[0]):
        count = len(list(same))
        if kind == _NONE:
            runs.append(MapRun(" " * scale.columns * count))
            continue
        filled = max(1, scale.columns - 1)
        block = "█" * filled if has_blocks else kind_words(KINDS[kind])[2]
        runs.append(MapRun(block.ljust(scale.columns) * count, KINDS[kind]))
    return runs


def _half(above: int, below: int, count: int) -> MapRun:
    if above == _NONE and below == _NONE:
        return MapRun(" " * count)
    if below == _NONE:
        return MapRun("▀" * count, KINDS[above])
    if above == below:
        return MapRun("█" * count, KINDS[above])
    return MapRun("▀" * count, KINDS[above], KINDS[below])
