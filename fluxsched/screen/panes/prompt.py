"""The box that asks: before anything is changed, for a text, or for a choice.

Law: what is refused is shown in the box in the words of the instance, and can be tried again; Esc leaves things as
they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from textual import events
from textual.strip import Strip

from fluxsched.core.text import printable
from fluxsched.errors import FluxschedError
from fluxsched.screen.panes.look import Run, TerminalLook, wrapped
from fluxsched.screen.panes.pane import Pane

FIELD_CHARS_MAX = 1000
"""More than this is pasted by mistake."""

CarryOut = Callable[[str], Awaitable[str]]


class OfferedChoice(NamedTuple):
    """One of several: a key, what is shown, what it means."""

    key: str
    label: str
    value: str


class Question(NamedTuple):
    """What is asked. Without a field and without choices: yes or no."""

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
        """Ask no more."""
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
        if event.key in ("escape", "ctrl+c", "ctrl+g"):
            self.close()
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
        """What is pasted is typed, its first line."""
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
        """How many lines the question takes."""
        return len(self._runs(width))

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """The last ones, if there are too many: the field is there."""
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
