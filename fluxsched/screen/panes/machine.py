"""The map of the machine, with a cursor that says which targets are there.

Law: the map is drawn anew only if the machine, the arrangement or the size has changed; moving the cursor is a line or
two. The cursor stays on its target whatever the map's size.
"""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.screen.panes.look import TerminalLook
from fluxsched.screen.panes.pane import Pane
from fluxsched.views.machine import ARRANGEMENTS, LiveMachine, MapDrawing, MapRun, draw_map, kind_words

MARKS_MAX = 2048
"""Tagged targets that are marked on the map; how many there are stands in the title."""
_CURSOR = Style(reverse=True, bold=True)


class MachinePane(Pane):
    """A title, and the map below it."""

    class Entered(Message):
        """Enter, or a second click, on the cell with the cursor."""

    class Moved(Message):
        """The cursor is elsewhere."""

    def __init__(self, look: TerminalLook, *, id: str) -> None:
        super().__init__(look, id=id, can_focus=True)
        self.machine = LiveMachine()
        self.by = ARRANGEMENTS[0]
        self.note = ""
        self.found = EMPTY
        """What was searched for; the cursor goes from one to the next."""
        self.tagged = EMPTY
        self.rank: int | None = None
        """The first target of the cell with the cursor."""
        self._drawing: MapDrawing | None = None
        self._drawn_for: tuple[int, int] = (0, 0)
        self._strips: list[Strip] = []
        """The drawing, without title and cursor."""
        self._lines_wanted: dict[tuple[int, int], int] = {}
        self._styles: dict[tuple[str, str], Style] = {}

    def show(self, machine: LiveMachine, *, is_rebuilt: bool) -> None:
        """The machine has changed, also which targets are where if it `is_rebuilt`; `redraw` is the caller's."""
        self.machine = machine
        self._drawing = None
        if is_rebuilt:
            self._lines_wanted.clear()
        self.tagged &= machine.resources.ranks
        self.found &= machine.resources.ranks

    def next_arrangement(self) -> None:
        """The next arrangement."""
        self.by = ARRANGEMENTS[(ARRANGEMENTS.index(self.by) + 1) % len(ARRANGEMENTS)]
        self._drawing = None
        self._lines_wanted.clear()
        self.redraw()

    # -- the cursor ---------------------------------------------------------------------------------------------

    @property
    def ranks(self) -> Idset:
        """The targets in the cell with the cursor."""
        drawing = self._drawing
        place = drawing.place_of(self.rank) if drawing is not None and self.rank is not None else None
        return drawing.ranks_at(*place) if drawing is not None and place is not None else EMPTY

    @property
    def meant(self) -> Idset:
        """The tagged targets; without tags those under the cursor."""
        return self.tagged or self.ranks

    def tag(self) -> None:
        """Tag the cell with the cursor, or take its tag away, and go on."""
        ranks = self.ranks
        self.tagged = self.tagged - ranks if ranks <= self.tagged else self.tagged | ranks
        self._move(1, 0)

    def seek(self, ranks: Idset) -> None:
        """Put the cursor on the first of these; `next_found` goes on."""
        self.found = ranks
        self.rank = ranks.min() if ranks else self.rank
        self._moved()

    def next_found(self) -> bool:
        """Go to the next target of the search; whether there is one."""
        if not self.found:
            return False
        after = Idset(self.found.mask >> (self.rank or 0) + 1 << (self.rank or 0) + 1)
        self.rank = (after or self.found).min()
        self._moved()
        return True

    def _moved(self) -> None:
        self.redraw()
        self.post_message(self.Moved())

    def _move(self, dx: int, dy: int) -> None:
        """By cells; over the edge to the next line that has targets."""
        drawing = self._drawing
        place = drawing.place_of(self.rank) if drawing is not None and self.rank is not None else None
        if drawing is None or place is None:
            self.rank = self.machine.resources.ranks.min() if self.machine.resources.ranks else None
            self._moved()
            return
        found = drawing.neighbour(*place, dx, dy)
        if found is not None:
            self.rank = found
        self._moved()

    def on_key(self, event: events.Key) -> None:
        """The cursor's keys."""
        height = self.size.height
        steps = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1), "l": (1, 0), "j": (0, 1),
                 "pageup": (0, -height), "pagedown": (0, height)}  # fmt: skip
        ranks = self.machine.resources.ranks
        if event.key in steps:
            event.stop()
            self._move(*steps[event.key])
        elif event.key in ("home", "end") and ranks:
            event.stop()
            self.rank = ranks.min() if event.key == "home" else ranks.max()
            self._moved()
        elif event.key == "enter":
            event.stop()
            self.post_message(self.Entered())

    def on_click(self, event: events.Click) -> None:
        """A cell gets the cursor; a second click enters it."""
        if self._drawing is None:
            return
        ranks = self._drawing.ranks_at(event.x, event.y - 1)
        if not ranks:
            return
        is_same = self.rank is not None and self.rank in ranks
        self.rank = ranks.min()
        self._moved()
        if is_same and event.chain > 1:
            self.post_message(self.Entered())

    # -- drawing ------------------------------------------------------------------------------------------------

    def lines_wanted(self, width: int, lines_max: int) -> int:
        """How many lines the map would use of so many, with the title."""
        wanted = self._lines_wanted.get((width, lines_max))
        if wanted is None:
            wanted = 1 + max(1, len(self._draw(width, max(1, lines_max - 1)).lines))
            self._lines_wanted[width, lines_max] = wanted
        return wanted

    def _draw(self, width: int, lines_max: int) -> MapDrawing:
        look = self.look
        return draw_map(
            self.machine, self.by, width, lines_max, is_colourful=look.is_colourful, is_unicode=look.is_unicode
        )

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """A title and the map."""
        if self._drawing is None or self._drawn_for != (width, height):
            self._drawing = self._draw(width, height - 1)
            self._drawn_for = (width, height)
            self._strips = [self._strip(line, width) for line in self._drawing.lines]
        drawing = self._drawing
        if self.rank is None and self.machine.resources.ranks:
            self.rank = self.machine.resources.ranks.min()
        how = f" by {self.by}" + (f", {drawing.together} targets a place" if drawing.together > 1 else "")
        how += f": {drawing.unnamed} names need a higher terminal" if drawing.unnamed else ""
        tagged = f"  {len(self.tagged):,} tagged" if self.tagged else ""
        runs = [(" Machine ", "title-focused" if self.has_focus else "title"), (how, "dim"),
                (tagged, "tagged"), (f"  {self.note}", "dim")]  # fmt: skip
        lines = [self.look.strip(runs, width), *self._strips]
        if self.has_focus or self.tagged:
            self._mark(lines)
        return lines

    def _strip(self, line: list[MapRun], width: int) -> Strip:
        segments = [Segment(run.text, self._style(run)) for run in line]
        size = sum(len(run.text) for run in line)
        if size < width:
            segments.append(Segment(" " * (width - size), Style.null()))
        return Strip(segments, max(size, width)).crop(0, width)

    def _style(self, run: MapRun) -> Style:
        key = run.above, run.below
        style = self._styles.get(key)
        if style is None:
            style = self._styles[key] = self._make_style(*key)
        return style

    def _make_style(self, above: str, below: str) -> Style:
        if not above:
            return self.look.style("dim")
        if not self.look.is_colourful:
            return self.look.style("bold" if kind_words(above)[2] not in ".aA" else "")
        colours = [f"color({kind_words(word)[1]})" for word in (above, below) if word]
        return Style.parse(" on ".join(colours))

    def _mark(self, lines: list[Strip]) -> None:
        """The cursor is reversed; so are tagged cells."""
        drawing = self._drawing
        assert drawing is not None
        marked = set()
        for rank in self.tagged.first(MARKS_MAX):
            if (place := drawing.place_of(rank)) is not None:
                marked.add(place[:2])
        for x, y in marked:
            self._restyle(lines, x, y, self.look.style("tagged") + Style(underline=True))
        if self.has_focus and self.rank is not None and (place := drawing.place_of(self.rank)) is not None:
            self._restyle(lines, place[0], place[1], _CURSOR)

    def _restyle(self, lines: list[Strip], x: int, y: int, style: Style) -> None:
        if y + 1 >= len(lines):
            return
        strip = lines[y + 1]
        width = strip.cell_length
        cuts = [cut for cut in (x, min(x + 1, width), width) if cut]
        parts = strip.divide(cuts)
        at = 1 if x else 0
        parts = [part.apply_style(style) if index == at else part for index, part in enumerate(parts)]
        lines[y + 1] = Strip.join(parts)
