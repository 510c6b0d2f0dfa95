"""Panes of the screen: the map of the machine, figures, the log, the last two lines, the reader and the question.

They know nothing of the instance. Tables have a file of their own.

Law: the map is drawn anew only if the machine, the arrangement or the size has changed; moving the cursor is a line or
two, and the cursor stays on its target whatever the map's size. A number that this user may not ask, or that is not
known yet, is left out, not shown as 0. A refusal is shown in the box in the words of the instance, and can be tried
again; Esc leaves things as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.role import Role
from fluxsched.core.text import printable
from fluxsched.errors import FluxschedError
from fluxsched.screen.look import KeyUse, Pane, Run, TerminalLook, cell, refusal, wrapped
from fluxsched.views.machine import ARRANGEMENTS, LiveMachine, MapDrawing, MapRun, draw_map, kind_words
from fluxsched.views.words import rounded, span_text, time_text

MARKS_MAX = 2048
"""Tagged targets that are marked on the map; how many there are stands in the title."""
_CURSOR = Style(reverse=True, bold=True)


class MachinePane(Pane):
    """A title, and the map below it."""

    class Entered(Message):
        """Enter, or a second click, on the cell with the cursor."""

    class Moved(Message):
        """Message that the cursor has moved to another place."""

    def __init__(self, look: TerminalLook, *, id: str) -> None:
        super().__init__(look, id=id, can_focus=True)
        self.machine = LiveMachine()
        self.by = ARRANGEMENTS[0]
        self.note = ""
        self.found = EMPTY
        """Targets that a search has found; the cursor goes from one to the next."""
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
        """Record that the machine has changed, also which targets are where if it `is_rebuilt`; `redraw` is the
        caller's.
        """
        self.machine = machine
        self._drawing = None
        if is_rebuilt:
            self._lines_wanted.clear()
        self.tagged &= machine.resources.ranks
        self.found &= machine.resources.ranks

    def next_arrangement(self) -> None:
        """Choose the next arrangement of the map."""
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
        """Handle the keys of the cursor."""
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
        """Give a cell the cursor; a second click enters it."""
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
        """Return the number of lines, of so many, that the map would use, with the title."""
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
        """Return a title and the map."""
        if self._drawing is None or self._drawn_for != (width, height):
            self._drawing = self._draw(width, height - 1)
            self._drawn_for = (width, height)
            self._strips = [self._strip(line, width) for line in self._drawing.lines]
        drawing = self._drawing
        if self.rank is None and self.machine.resources.ranks:
            self.rank = self.machine.resources.ranks.min()
        how = f" by {self.by}" + (f", {drawing.together} targets a place" if drawing.together > 1 else "")
        how += f": no room for {drawing.unnamed} names, z makes some" if drawing.unnamed else ""
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
        """Reverse the cursor and tagged cells."""
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


# ---- pane of figures

FIGURE_LINES = 3
BAR_WIDTH_MAX = 120
"""A longer bar says no more."""


class Amount(NamedTuple):
    """Amount of a resource that is in use."""

    name: str
    used: int
    total: int


class JobRates(NamedTuple):
    """Rates of jobs per second."""

    submitted: float
    started: float
    ended: float


class InstanceFigures(NamedTuple):
    """Figures of the whole instance, as far as they are known."""

    name: str = ""
    up_s: float | None = None
    targets: Mapping[str, int] | None = None
    amounts: tuple[Amount, ...] = ()
    running: int | None = None
    waiting: int | None = None
    rates: JobRates | None = None
    wait_median_s: float | None = None


class StateLook(NamedTuple):
    """Look of a state in the list of states: its sign and the style of the sign."""

    sign: str
    style: str


class FiguresBar(Pane):
    """The top of the screen."""

    def __init__(self, look: TerminalLook, states: Mapping[str, StateLook], *, id: str) -> None:
        super().__init__(look, id=id)
        self.figures = InstanceFigures()
        self.clock = ""
        self.lost: str | None = None
        self._states = states

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """Three lines; if the instance is lost the first says so."""
        return [self._targets(width), self._amounts(width), self._jobs(width)]

    def _targets(self, width: int) -> Strip:
        if self.lost is not None:
            text = f" INSTANCE LOST: {printable(self.lost)}; looking for it "
            return self.look.strip([(text.ljust(width), "banner")], width)
        said = self.figures
        runs: list[Run] = []
        if said.targets is not None:
            counts = self._counts(said.targets)
            runs = next((one for one in counts if sum(cell_len(text) for text, _ in one) <= width), counts[-1])
        up = "" if said.up_s is None else f" up {span_text(round(said.up_s))}"
        name: list[Run] = [(" fluxsched ", "bold"), (f"{printable(said.name)}{up}  ", "dim")]
        if sum(cell_len(text) for text, _ in [*name, *runs]) + len(self.clock) + 2 <= width:
            runs = [*name, *runs]
        used = sum(cell_len(text) for text, _ in runs)
        if self.clock and used + len(self.clock) + 2 <= width:
            runs += [(" " * (width - used - len(self.clock) - 1), ""), (self.clock, "dim")]
        return self.look.strip(runs, width)

    def _counts(self, targets: Mapping[str, int]) -> list[list[Run]]:
        """Targets by state, in gravity's order: with whole words, and shorter for narrow terminals."""
        total = sum(targets.values())
        order = [
            *[word for word in self._states if word in targets],
            *[word for word in targets if word not in self._states],
        ]
        found = []
        for letters in (40, 5, 0):
            runs: list[Run] = [(f" {total:,} {'target' if total == 1 else 'targets'} ", "bold")]
            for word in order:
                if targets[word]:
                    shown = self._states.get(word, StateLook("?", "dim"))
                    runs += [(f" {shown.sign}", shown.style), (f"{targets[word]:,} {printable(word)[:letters]} ", "")]
            found.append(runs)
        return found

    def _amounts(self, width: int) -> Strip:
        amounts = self.figures.amounts
        if not amounts or self.lost is not None:
            return Strip.blank(width)
        each = min(width // len(amounts) - 1, BAR_WIDTH_MAX)
        runs: list[Run] = []
        for one in amounts:
            runs += self._bar(one, each)
        return self.look.strip(runs, width)

    def _bar(self, one: Amount, width: int) -> list[Run]:
        """`Cores[|||||||     83.2% of 1,024]`, as htop draws it."""
        share = one.used / one.total if one.total else 0.0
        text = f"{share:.1%} of {one.total:,}"
        inner = max(0, width - len(one.name) - 3)
        if inner < len(text) + 4:
            return [(f" {one.name} {text}", "")]
        filled = round(share * (inner - len(text) - 1))
        return [
            (f" {one.name}", "bold"), ("[", "bold"), ("|" * filled, "used"),
            (" " * (inner - filled - len(text)), ""), (text, "dim"), ("]", "bold"),
        ]  # fmt: skip

    def _jobs(self, width: int) -> Strip:
        said = self.figures
        runs: list[Run] = [(" Jobs ", "bold")]
        if self.lost is not None:
            return self.look.strip([*runs, ("not known while the instance is lost", "dim")], width)
        if said.running is not None and said.waiting is not None:
            runs += [
                (f"{said.running:,}", "good"),
                (" running  ", ""),
                (f"{said.waiting:,}", "warn"),
                (" waiting ", ""),
            ]
        if said.rates is not None:
            rates = zip(said.rates, ("submitted", "started", "ended"), strict=True)
            text = "  ".join(f"{rounded(rate)} {what}/s" for rate, what in rates)
            short = "  ".join(f"{mark}{rounded(rate)}" for rate, mark in zip(said.rates, "+>-", strict=True)) + " /s"
            used = sum(len(run[0]) for run in runs)
            runs.append((f"  {text if used + len(text) + 2 <= width else short}", "dim"))
        if said.wait_median_s is not None and width >= 100:
            runs.append((f"   median wait {span_text(said.wait_median_s)}", "dim"))
        return self.look.strip(runs, width)


# ---- pane of the log

LOG_LINES_MAX = 2000
"""Older lines leave; a screen that is open for months must not grow."""


class LogLine(NamedTuple):
    """One line: when (seconds since the epoch), its style, and its text, which may be any user's."""

    at_s: float
    style: str
    text: str


class LogPane(Pane):
    """The last lines that fit."""

    def __init__(self, look: TerminalLook, *, id: str) -> None:
        super().__init__(look, id=id, can_focus=True)
        self.title = "Log"
        self.note = ""
        self.held: deque[LogLine] = deque(maxlen=LOG_LINES_MAX)
        self._back = 0
        """Number of lines after the last one shown."""

    def add(self, line: LogLine) -> None:
        """Append a line; what is shown stays if one looks back."""
        self.held.append(line)
        if self._back:
            self._back = min(self._back + 1, len(self.held) - 1)

    def find(self, text: str, *, go_on: bool) -> bool:
        """Go back to the latest line above the last one shown that has `text`; whether there is one."""
        lines = list(self.held)
        wanted = text.casefold()
        for at in range(len(lines) - 1 - self._back - (1 if go_on else 0), -1, -1):
            if wanted in lines[at].text.casefold():
                self._back = len(lines) - 1 - at
                self.redraw()
                return True
        return False

    def on_key(self, event: events.Key) -> None:
        """Scroll the log back and forth."""
        page = max(1, self.size.height - 1)
        steps = {"up": 1, "down": -1, "j": -1, "pageup": page, "pagedown": -page, "home": len(self.held),
                 "end": -len(self.held), "g": -len(self.held), "G": -len(self.held)}  # fmt: skip
        if event.key in steps:
            event.stop()
            self._look_back(steps[event.key])

    def on_mouse_scroll_up(self) -> None:
        """Scroll the log back by three lines."""
        self._look_back(3)

    def on_mouse_scroll_down(self) -> None:
        """Scroll the log forth by three lines."""
        self._look_back(-3)

    def _look_back(self, by: int) -> None:
        self._back = max(0, min(self._back + by, len(self.held) - max(1, self.size.height - 1)))
        self.redraw()

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """Return a title and the lines."""
        style = "title-focused" if self.has_focus else "title"
        later = f"  {self._back} newer: End" if self._back else ""
        lines = [self.look.strip([(f" {self.title} ", style), (f" {self.note}", "dim"), (later, "warn")], width)]
        last = len(self.held) - self._back
        shown = [self.held[at] for at in range(max(0, last - height + 1), last)]
        for line in shown:
            clock = time_text(line.at_s, "%H:%M:%S")
            lines.append(self.look.strip([(f" {clock} ", "dim"), (cell(line.text, width - 10), line.style)], width))
        if not shown:
            lines.append(self.look.strip([(" nothing has happened yet", "dim")], width))
        return lines


# ---- panes of lines


class StatusLine(Pane):
    """Line with the last message, until a key is pressed; else with more about the row under the cursor."""

    def __init__(self, look: TerminalLook, *, id: str) -> None:
        super().__init__(look, id=id)
        self.said = ""
        self.said_style = ""
        self.about = ""

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """Return the one line of the pane."""
        text, style = (self.said, self.said_style) if self.said else (self.about, "dim")
        return [self.look.strip([(" " + cell(text, width - 1), style)], width)]


class NoticeLines(Pane):
    """Notices of admins, a line each, the latest first; what does not fit is counted on the last line."""

    def __init__(self, look: TerminalLook, *, id: str) -> None:
        super().__init__(look, id=id)
        self.texts: Sequence[str] = ()

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """Return a line a notice."""
        shown = self.texts[:height]
        more = len(self.texts) - len(shown)
        ends = ["" for _ in shown[1:]] + [f" (and {more} more)" if more else ""]
        sign = self.look.sign("⚑", "!")
        return [
            self.look.strip([(f" {sign} " + cell(text, width - 3 - len(end)) + end, "notice")], width)
            for text, end in zip(shown, ends, strict=False)
        ]


class KeyLine(Pane):
    """The keys that mean something here; a click is the key."""

    class Pressed(Message):
        """A key's label was clicked."""

        def __init__(self, use: KeyUse) -> None:
            super().__init__()
            self.use = use

    def __init__(self, look: TerminalLook, *, id: str) -> None:
        super().__init__(look, id=id)
        self.uses: Sequence[KeyUse] = ()
        self.role: Role | None = None
        self._ends: list[tuple[int, KeyUse]] = []

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """As many as fit; quit is always there."""
        runs: list[Run] = []
        self._ends = []
        used = 0
        shown = [use for use in self.uses if use.label]
        last = shown[-1] if shown else None
        reserved = len(last.shown + last.label) if last is not None else 0
        for use in shown:
            size = len(use.shown) + len(use.label) + 1
            if used + size + (-1 if use is last else reserved) > width:
                continue
            allowed = refusal(use, self.role) is None
            runs += [(use.shown, "key" if allowed else "dim"), (use.label, "key-name" if allowed else "dim"), (" ", "")]
            used += size
            self._ends.append((used, use))
        return [self.look.strip(runs, width)]

    def on_click(self, event: events.Click) -> None:
        """Press the key that was clicked."""
        for end, use in self._ends:
            if event.x < end:
                self.post_message(self.Pressed(use))
                return


class Sentence(Pane):
    """All that is shown on a terminal that is too small for anything else."""

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """As much of it as fits."""
        from fluxsched.screen.look import HEIGHT_MIN, WIDTH_MIN, wrapped

        text = printable(f"too small: {width}x{height}; from {WIDTH_MIN}x{HEIGHT_MIN} on there is a screen. q quits")
        return [self.look.strip([(line, "")], width) for line in wrapped(text, width)]


# ---- readers of long texts


class Sheet(NamedTuple):
    """One of the texts: its name, and its lines for a width."""

    name: str
    lines: Callable[[int], Sequence[Sequence[Run]]]
    from_end: bool = False
    """True to show the end first, as of an output that grows."""


class ReaderPane(Pane):
    """Shown over the panes until Esc, q or Enter."""

    def __init__(self, look: TerminalLook, closed: Callable[[], None], *, id: str) -> None:
        super().__init__(look, id=id, can_focus=True)
        self.title = ""
        self.sheets: Sequence[Sheet] = ()
        self._when_closed = closed
        self._at = 0
        self._top: int | None = 0
        """The first line shown; None: as many as fit, from the end."""

    def open(self, title: str, sheets: Sequence[Sheet]) -> None:
        """Show these sheets under the title."""
        self.title, self.sheets = title, sheets
        self._turn_to(0)

    @property
    def sheet(self) -> str:
        """The name of the sheet shown."""
        return self.sheets[self._at].name if self.sheets else ""

    def _turn_to(self, at: int) -> None:
        self._at = at % max(1, len(self.sheets))
        self._top = None if self.sheets and self.sheets[self._at].from_end else 0
        self.redraw()

    def on_key(self, event: events.Key) -> None:
        """Scroll, turn to another sheet, close."""
        page = max(1, self.size.height - 2)
        steps = {"up": -1, "down": 1, "j": 1, "k": -1, "pageup": -page, "pagedown": page, "space": page, "b": -page}
        turns = {"left": -1, "right": 1, "tab": 1, "shift+tab": -1, "h": -1, "l": 1}
        event.stop()
        event.prevent_default()
        if event.key in steps:
            self._scroll(steps[event.key])
        elif event.key in turns:
            self._turn_to(self._at + turns[event.key])
        elif event.key in ("home", "g"):
            self._top = 0
            self.redraw()
        elif event.key in ("end", "G"):
            self._top = None
            self.redraw()
        elif event.character and event.character.isdigit() and 0 < int(event.character) <= len(self.sheets):
            self._turn_to(int(event.character) - 1)
        elif event.key in ("escape", "q", "enter", "f10", "f1", "question_mark"):
            self._when_closed()

    def on_mouse_scroll_down(self) -> None:
        """Scroll down by three lines."""
        self._scroll(3)

    def on_mouse_scroll_up(self) -> None:
        """Scroll up by three lines."""
        self._scroll(-3)

    def on_click(self, event: events.Click) -> None:
        """Turn to the sheet whose name is clicked."""
        if event.y == 0:
            left = len(self.title) + 3
            for at, sheet in enumerate(self.sheets):
                right = left + len(sheet.name) + 4
                if left <= event.x < right:
                    self._turn_to(at)
                left = right

    def _scroll(self, by: int) -> None:
        last = self._last_top(self.size.width, self.size.height)
        top = last if self._top is None else self._top
        at = max(0, min(top + by, last))
        self._top = None if at == last and self.sheets[self._at].from_end else at
        self.redraw()

    def _last_top(self, width: int, height: int) -> int:
        return max(0, len(self.sheets[self._at].lines(width)) - max(1, height - 2)) if self.sheets else 0

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """Return the sheets' names, and the lines of the one that is shown."""
        if not self.sheets:
            return []
        runs: list[Run] = [(f" {self.title} ", "bold"), (" ", "")]
        if len(self.sheets) > 1:
            for at, sheet in enumerate(self.sheets):
                mark = "title-focused" if at == self._at else "dim"
                runs.append((f"[{sheet.name}] " if at == self._at else f" {sheet.name}  ", mark))
        lines = list(self.sheets[self._at].lines(width))
        last = max(0, len(lines) - max(1, height - 2))
        top = last if self._top is None else min(self._top, last)
        shown = lines[top : top + max(1, height - 2)]
        strips = [self.look.strip(runs, width), self.look.strip([(self.look.sign("─", "-") * width, "dim")], width)]
        strips += [self.look.strip([(" ", ""), *line], width) for line in shown]
        return strips


# ---- prompts

FIELD_CHARS_MAX = 1000
"""More than this is pasted by mistake."""

CarryOut = Callable[[str], Awaitable[str]]


class OfferedChoice(NamedTuple):
    """One of several: a key, what is shown, what it means."""

    key: str
    label: str
    value: str


class Question(NamedTuple):
    """Question to the user. Without a field and without choices: yes or no."""

    title: str
    perform: CarryOut
    """Given the text of the field, the value of the choice, or "y"; returns what to say. A FluxschedError is shown."""
    lines: Sequence[str] = ()
    field: str | None = None
    initial: str = ""
    choices: Sequence[OfferedChoice] = ()


class QuestionBox(Pane):
    """Shown above the last line while something is asked; `said` gets what became of it."""

    def __init__(self, look: TerminalLook, said: Callable[[str], None], closed: Callable[[], None], *, id: str) -> None:
        super().__init__(look, id=id, can_focus=True)
        self.question: Question | None = None
        self.fault = ""
        self.text = ""
        self._at = 0
        self._said = said
        self._when_closed = closed
        self._is_performing = False

    def open(self, question: Question) -> None:
        """Ask this question, in place of any other."""
        self.question, self.fault, self._is_performing = question, "", False
        self.text = question.initial
        self._at = len(self.text)

    def close(self) -> None:
        """Close the box without an answer."""
        self.question = None
        self._when_closed()

    # -- keys ---------------------------------------------------------------------------------------------------

    async def on_key(self, event: events.Key) -> None:
        """Everything typed belongs to the box."""
        event.stop()
        event.prevent_default()
        question = self.question
        if question is None or self._is_performing:
            return
        if event.key in ("escape", "ctrl+c", "ctrl+g") or event.key.startswith("alt+"):
            self.close()  # Esc and a key that arrive together, as over a slow line, are one key with Alt
        elif question.choices:
            await self._choose(question, event)
        elif question.field is not None:
            if event.key == "enter":
                await self._perform(question, self.text.strip())
            else:
                self._edit(event)
                self.redraw()
        elif event.character in ("y", "Y") or event.key == "enter":
            await self._perform(question, "y")
        elif event.character in ("n", "N", "q"):
            self.close()

    def on_paste(self, event: events.Paste) -> None:
        """Insert the first line of the pasted text."""
        event.stop()
        if self.question is not None and self.question.field is not None and event.text:
            self._insert(event.text.splitlines()[0])
            self.redraw()

    async def _choose(self, question: Question, event: events.Key) -> None:
        for choice in question.choices:
            if event.character == choice.key:
                await self._perform(question, choice.value)
                return

    async def _perform(self, question: Question, text: str) -> None:
        self._is_performing = True
        try:
            said = await question.perform(text)
        except FluxschedError as error:
            self.fault = str(error)
            self.screen.post_message(events.Resize(self.screen.size, self.screen.size))
            self.redraw()
        else:
            if self.question is question:
                self.close()
            self._said(said)
        finally:
            self._is_performing = False

    def _edit(self, event: events.Key) -> None:
        key, at, text = event.key, self._at, self.text
        if key == "left":
            self._at = max(0, at - 1)
        elif key == "right":
            self._at = min(len(text), at + 1)
        elif key in ("home", "ctrl+a"):
            self._at = 0
        elif key in ("end", "ctrl+e"):
            self._at = len(text)
        elif key in ("backspace", "ctrl+h"):
            self.text, self._at = text[: max(0, at - 1)] + text[at:], max(0, at - 1)
        elif key == "delete":
            self.text = text[:at] + text[at + 1 :]
        elif key == "ctrl+u":
            self.text, self._at = text[at:], 0
        elif key == "ctrl+w":
            kept = text[:at].rstrip().rpartition(" ")
            self.text, self._at = kept[0] + kept[1] + text[at:], len(kept[0] + kept[1])
        elif event.character is not None and event.is_printable:
            self._insert(event.character)

    def _insert(self, typed: str) -> None:
        typed = printable(typed)[: FIELD_CHARS_MAX - len(self.text)]
        self.text = self.text[: self._at] + typed + self.text[self._at :]
        self._at += len(typed)

    # -- drawing ------------------------------------------------------------------------------------------------

    def lines_wanted(self, width: int) -> int:
        """Return the number of lines that the question takes."""
        return len(self._runs(width))

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """Return the last ones, if there are too many: the field is there."""
        return [self.look.strip(runs, width) for runs in self._runs(width)[-height:]]

    def _runs(self, width: int) -> list[list[Run]]:
        question = self.question
        if question is None:
            return []
        lines: list[list[Run]] = [[((" " + printable(question.title) + " ").ljust(width), "title-focused")]]
        lines += [[(f"  {line}", "")] for text in question.lines for line in wrapped(text, width - 4)]
        lines += [[(f" {choice.key} ", "key-name"), (f" {choice.label}", "")] for choice in question.choices]
        lines += [[(f"  {line}", "bad")] for line in (wrapped(self.fault, width - 4) if self.fault else ())]
        if question.field is not None:
            lines.append(self._field(question.field, width))
            lines.append([("  Enter: go ahead   Esc: go back", "dim")])
        elif question.choices:
            lines.append([("  Esc: go back", "dim")])
        else:
            lines.append([("  y", "key"), (": yes   ", "dim"), ("n", "key"), (": no", "dim")])
        return lines

    def _field(self, label: str, width: int) -> list[Run]:
        runs: list[Run] = [(f"  {label}: ", "key")]
        room = max(4, width - len(label) - 6)
        before, after = self.text[: self._at], self.text[self._at :] or " "
        while cell_len(before) > room - 1:
            before = before[1:]
        rest = max(0, room - cell_len(before) - 1)
        return [*runs, (before, ""), (after[0], "cursor"), (set_cell_size(after[1:], rest) if rest else "", "")]
