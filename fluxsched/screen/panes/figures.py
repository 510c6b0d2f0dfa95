"""The lines on top: targets by state, cores in use, jobs and their rates.

Law: a number that this user may not ask, or that is not known yet, is left out, not shown as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rich.cells import cell_len
from textual.strip import Strip

from fluxsched.core.text import printable
from fluxsched.screen.panes.look import Run, TerminalLook
from fluxsched.screen.panes.pane import Pane
from fluxsched.views.words import duration_text, rounded

FIGURE_LINES = 3
BAR_WIDTH_MAX = 120
"""A longer bar says no more."""


class Amount(NamedTuple):
    """How much of something is in use."""

    name: str
    used: int
    total: int


class JobRates(NamedTuple):
    """Jobs a second."""

    submitted: float
    started: float
    ended: float


class InstanceFigures(NamedTuple):
    """What is known of the whole."""

    name: str = ""
    up_s: float | None = None
    targets: Mapping[str, int] | None = None
    amounts: tuple[Amount, ...] = ()
    running: int | None = None
    waiting: int | None = None
    rates: JobRates | None = None
    wait_median_s: float | None = None


class StateLook(NamedTuple):
    """How a state is shown in the list of states: its sign, and the style of it."""

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
        up = "" if said.up_s is None else f" up {duration_text(round(said.up_s))}"
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
        if not amounts:
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
            runs.append((f"   median wait {duration_text(said.wait_median_s)}", "dim"))
        return self.look.strip(runs, width)
