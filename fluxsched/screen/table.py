"""Tables of rows with a cursor, tags and an order; and the columns of jobs, queues and groups.

Columns leave when the pane is narrow.

Law: the cursor and the tags stay with their row, by its key, wherever it moves, and the cursor on its line of the
screen; what left the table leaves the tags.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from textual import events
from textual.message import Message
from textual.strip import Strip

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.screen.look import Pane, Run, TerminalLook, cell
from fluxsched.views.jobs import PENDING, RUNNING, JobRow, queue_reason
from fluxsched.views.words import span_text, user_name

HEAD_LINES = 2
"""A title and the columns' headings."""


ON_REQUEST = 1_000_000
"""Width from which on a column is shown that is shown only where a person chooses it."""


class TableColumn(NamedTuple):
    """One column: its heading, its cells, and how wide they are."""

    heading: str
    text: Callable[[Any], str]
    width: int
    align: str = "<"
    style: Callable[[Any], str] = lambda row: ""
    order: Callable[[Any], Any] | None = None
    """Function that returns the sort key of a row when this column is chosen; None: it cannot be chosen."""
    shown_from: int = 0
    """The width of the pane from which the column is shown."""
    share: int = 0
    """Share of the remaining width that the column gets, beside the others that grow."""
    fits: bool = False
    """True if the column is as wide as its widest cell, up to `width`."""
    droppable: bool = False
    """True if the column is left out when all its cells are empty."""


class TablePane(Pane):
    """A table; what is under the cursor is chosen with Enter or a click."""

    class Chosen(Message):
        """Enter, or a click on the row with the cursor."""

        def __init__(self, pane: TablePane) -> None:
            super().__init__()
            self.pane = pane

    class Moved(Message):
        """Message that the cursor has moved to another row."""

    def __init__(
        self, look: TerminalLook, columns: Sequence[TableColumn], key: Callable[[Any], Hashable], *, id: str, title: str
    ) -> None:
        super().__init__(look, id=id, can_focus=True)
        self.columns = tuple(columns)
        self.title = title
        self.note = ""
        """Text behind the title: number of rows, filters, the order."""
        self.empty_text = "none"
        self.rows: list[Any] = []
        self.tags: set[Hashable] = set()
        self.sorted_by: int | None = None
        self.is_reversed = False
        self._chosen: dict[int, bool] = {}
        """Columns that a person has shown or hidden, whatever the width of the pane."""
        self._key = key
        self._unsorted: Sequence[Any] = ()
        self._at = 0
        self._top = 0
        self._strips: dict[tuple[Hashable, str, int], Strip] = {}
        """Drawn rows, by key, style and width: moving the cursor draws two."""

    # -- rows ---------------------------------------------------------------------------------------------------

    def fill(self, rows: Sequence[Any]) -> None:
        """Show these rows; `redraw` is the caller's."""
        before = self.current_key
        self._unsorted = rows
        self._strips.clear()
        self.rows = self._in_order(rows)
        keys = [self._key(row) for row in self.rows]
        self.tags &= set(keys)
        if before is not None and before in keys:
            at = keys.index(before)
            if self._at or self._top:  # the cursor stays on its line, too: rows pass above it, not it through the rows
                self._top = max(0, self._top + at - self._at)
            self._at = at
        self._at = max(0, min(self._at, len(self.rows) - 1))

    def sort(self, column: int | None, *, is_reversed: bool = False) -> None:
        """Sort by a column; None: as they came."""
        self.sorted_by, self.is_reversed = column, is_reversed
        self.fill(self._unsorted)
        self.redraw()

    def toggle(self, column: int) -> None:
        """Hide a column that is shown, or show it."""
        shown = {index for index, _ in self._widths(self.size.width)}
        self._chosen[column] = column not in shown
        self._strips.clear()
        self.redraw()

    def _in_order(self, rows: Sequence[Any]) -> list[Any]:
        order = None if self.sorted_by is None else self.columns[self.sorted_by].order
        if order is None:
            return list(reversed(rows)) if self.is_reversed else list(rows)
        found = order

        def place(row: Any) -> tuple[bool, Any]:
            value = found(row)
            return value is None or value == "", value

        missing = [row for row in rows if place(row)[0]]
        return sorted((row for row in rows if not place(row)[0]), key=found, reverse=self.is_reversed) + missing

    @property
    def current(self) -> Any | None:
        """The row under the cursor."""
        return self.rows[self._at] if self.rows else None

    @property
    def current_key(self) -> Hashable | None:
        """Return the key of the current row."""
        row = self.current
        return None if row is None else self._key(row)

    @property
    def meant(self) -> list[Any]:
        """The rows that are tagged; without tags that under the cursor."""
        tagged = [row for row in self.rows if self._key(row) in self.tags]
        return tagged or ([] if self.current is None else [self.current])

    def tag(self) -> None:
        """Tag the row under the cursor, or take its tag away, and go on to the next."""
        key = self.current_key
        if key is not None:
            self.tags ^= {key}
            self.move(1)

    def find(self, text: str, *, go_on: bool) -> bool:
        """Move to the next row that has `text` in a cell; whether there is one."""
        wanted = text.casefold()
        count = len(self.rows)
        for step in range(1 if go_on else 0, count + (1 if go_on else 0)):
            at = (self._at + step) % count
            if any(wanted in column.text(self.rows[at]).casefold() for column in self.columns):
                self.go_to(at)
                return True
        return False

    # -- moving -------------------------------------------------------------------------------------------------

    def move(self, by: int) -> None:
        """Move the cursor by some rows."""
        self.go_to(self._at + by)

    def go_to(self, at: int) -> None:
        """Put the cursor on a row."""
        self._at = max(0, min(at, len(self.rows) - 1))
        self.redraw()
        self.post_message(self.Moved())

    @property
    def page(self) -> int:
        """Return the number of rows that are shown."""
        return max(1, self.size.height - HEAD_LINES)

    def on_key(self, event: events.Key) -> None:
        """Handle the cursor's keys, and those of less and vi."""
        steps = {
            "up": -1, "down": 1, "j": 1, "pageup": -self.page, "pagedown": self.page,
            "home": -len(self.rows), "end": len(self.rows), "g": -len(self.rows), "G": len(self.rows),
            "upper_g": len(self.rows),
        }  # fmt: skip
        if event.key in steps:
            event.stop()
            self.move(steps[event.key])
        elif event.key == "enter":
            event.stop()
            self.post_message(self.Chosen(self))

    def on_mouse_scroll_down(self) -> None:
        """Three rows at a time, as in a browser."""
        self.move(3)

    def on_mouse_scroll_up(self) -> None:
        """Three rows at a time, as in a browser."""
        self.move(-3)

    def on_click(self, event: events.Click) -> None:
        """Give a row the cursor, or choose it if it has it; a heading sorts."""
        at = self._top + event.y - HEAD_LINES
        if event.y == 1:
            self._sort_at(event.x)
        elif event.y - HEAD_LINES >= 0 and at < len(self.rows):
            if at == self._at and self.has_focus and event.chain > 1:
                self.post_message(self.Chosen(self))
            else:
                self.go_to(at)

    def _sort_at(self, x: int) -> None:
        left = 1
        for index, width in self._widths(self.size.width):
            if left <= x <= left + width and self.columns[index].order is not None:
                self.sort(index, is_reversed=self.sorted_by == index and not self.is_reversed)
                return
            left += width + 1

    # -- drawing ------------------------------------------------------------------------------------------------

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """Return the lines of the table: title, headings, rows."""
        widths = self._widths(width)
        shown = max(0, height - HEAD_LINES)
        self._top = max(0, min(self._top, self._at, max(0, len(self.rows) - shown)))
        if shown and self._at >= self._top + shown:
            self._top = self._at - shown + 1
        lines = [self._title(width), self._headings(widths, width)]
        lines += [
            self._row(self.rows[at], at, widths, width)
            for at in range(self._top, min(self._top + shown, len(self.rows)))
        ]
        if not self.rows:
            lines.append(self.look.strip([(f" {self.empty_text}", "dim")], width))
        return lines

    def _title(self, width: int) -> Strip:
        style = "title-focused" if self.has_focus else "title"
        tagged = f"  {len(self.tags)} tagged" if self.tags else ""
        return self.look.strip([(f" {self.title} ", style), (f" {self.note}", "dim"), (tagged, "tagged")], width)

    def _headings(self, widths: list[tuple[int, int]], width: int) -> Strip:
        runs: list[Run] = [(" ", "head")]
        for index, size in widths:
            column = self.columns[index]
            mark = (
                (self.look.sign("▼", "v") if self.is_reversed else self.look.sign("▲", "^"))
                if (index == self.sorted_by)
                else ""
            )
            runs.append((cell(column.heading + mark, size, column.align) + " ", "head"))
        return self.look.strip(runs, width)

    def _row(self, row: Any, at: int, widths: list[tuple[int, int]], width: int) -> Strip:
        is_current, is_tagged = at == self._at, self._key(row) in self.tags
        over = ("cursor" if self.has_focus else "cursor-away") if is_current else "tagged" if is_tagged else None
        mark = "*" if is_tagged else (">" if is_current and self.has_focus else " ")
        drawn = self._strips.get((self._key(row), f"{mark}{over}", width))
        if drawn is not None:
            return drawn
        runs: list[Run] = [(mark, over or "")]
        for index, size in widths:
            column = self.columns[index]
            runs.append((cell(column.text(row), size, column.align) + " ", over or column.style(row)))
        strip = self._strips[self._key(row), f"{mark}{over}", width] = self.look.strip(runs, width, over or "")
        return strip

    def _is_dropped(self, column: TableColumn) -> bool:
        return column.droppable and not any(map(column.text, self.rows))

    def _widths(self, width: int) -> list[tuple[int, int]]:
        """Return the columns shown in a pane of this width, by index, and how wide each is."""
        shown = [
            (index, column) for index, column in enumerate(self.columns)
            if self._chosen.get(index, width >= column.shown_from and not self._is_dropped(column))
        ]  # fmt: skip
        shown = shown or [(0, self.columns[0])]
        sizes = {
            index: min(column.width, max([len(column.heading) + 1, *(len(column.text(row)) for row in self.rows)]))
            if column.fits else column.width
            for index, column in shown
        }  # fmt: skip
        left = width - 1 - sum(sizes.values()) - len(sizes)
        shares = sum(column.share for _, column in shown)
        if left > 0 and shares:
            for index, column in shown:
                sizes[index] += left * column.share // shares
        return [(index, sizes[index]) for index, _ in shown]


# ---- columns

TableEntry = Mapping[str, Any]

_STATUS_STYLES = {"R": "good", "C": "info", "F": "bad", "TO": "bad", "CA": "warn", "PR": "warn", "RT": "warn"}


def id_text(row: JobRow) -> str:
    """Return the id of a job, as f58 (RFC 19)."""
    return format_f58(row.info["id"], ascii=row.is_ascii)


def _narrow(duration_s: float) -> str:
    return span_text(duration_s).replace(" ", "")


def time_shown(row: JobRow) -> str:
    """Return the run time of a job; of a pending job the time until its estimated start, with a `~`."""
    if row.info["state"] in PENDING:
        return ""
    return _narrow(row.runtime_s())


def start_shown(row: JobRow) -> str:
    """In how long a job that waits starts by its scheduler's estimate."""
    estimate_s = row.estimate_s()
    return "" if not estimate_s else "~" + _narrow(max(0.0, round(estimate_s - row.now_s)))


def left_shown(row: JobRow) -> str:
    """Return the time that a running job has left, or the time limit of a pending one."""
    left_s = row.remaining_s() if row.info["state"] in RUNNING else row.info.get("duration") or 0.0
    return _narrow(left_s) if left_s else ""


def is_held(row: JobRow) -> bool:
    """Return whether the job is pending because its urgency is 0."""
    return row.info["state"] in PENDING and row.info["urgency"] == 0


def _status_style(row: JobRow) -> str:
    return "warn" if is_held(row) else _STATUS_STYLES.get(row.status_abbrev(), "")


def _of(key: str) -> Callable[[JobRow], str]:
    return lambda row: "" if row.info.get(key) is None else str(row.info[key])


def _row_style(row: JobRow) -> str:
    return "dim" if row.info["state"] == "INACTIVE" else ""


JOB_COLUMNS = (
    TableColumn("JOBID", id_text, 14, ">", _row_style,
                lambda row: row.info["id"], fits=True),
    TableColumn("USER", lambda row: user_name(row.info["userid"]), 8, "<", _row_style,
                lambda row: user_name(row.info["userid"]), fits=True),
    TableColumn("QUEUE", _of("queue"), 10, "<", _row_style, _of("queue"), shown_from=72, fits=True,
                droppable=True),
    TableColumn("NAME", _of("name"), 10, "<", _row_style, _of("name"), share=1),
    TableColumn("ST", JobRow.status_abbrev, 2, "<", _status_style, JobRow.status_abbrev),
    TableColumn("URG", _of("urgency"), 3, ">", _row_style, lambda row: row.info["urgency"], shown_from=100),
    TableColumn("NODES", _of("nnodes"), 6, ">", _row_style, lambda row: row.info.get("nnodes"), fits=True),
    TableColumn("BANK", _of("bank"), 10, "<", _row_style, _of("bank"), shown_from=ON_REQUEST, fits=True),
    TableColumn("TASKS", _of("ntasks"), 6, ">", _row_style, lambda row: row.info.get("ntasks"), shown_from=ON_REQUEST),
    TableColumn("CORES", _of("ncores"), 8, ">", _row_style,
                lambda row: row.info.get("ncores"), shown_from=90, fits=True),
    TableColumn("TIME", time_shown, 6, ">", _row_style, JobRow.runtime_s),
    TableColumn("LEFT", left_shown, 6, ">", _row_style, lambda row: row.remaining_s() or None, shown_from=86),
    TableColumn("START", start_shown, 7, ">", lambda row: "info", JobRow.estimate_s,
                shown_from=66),
    TableColumn("REASON OR NODES", JobRow.reason, 10, "<", lambda row: "dim" if row.info["state"] in RUNNING else "",
                JobRow.reason, share=4),
)  # fmt: skip


def _yes(word: str, otherwise: str, key: str) -> Callable[[TableEntry], str]:
    return lambda entry: word if entry.get(key) else otherwise


def _closed_reason(entry: TableEntry) -> str:
    """Why a queue takes or starts nothing."""
    return "; ".join(filter(None, (str(entry.get("enable_reason") or ""), queue_reason(entry))))


QUEUE_COLUMNS = (
    TableColumn("QUEUE", lambda entry: str(entry["name"] or "(default)"), 16, "<", order=lambda entry: entry["name"],
                fits=True),
    TableColumn("SUBMIT", _yes("open", "closed", "enable"), 7, "<",
                lambda entry: "" if entry.get("enable") else "warn", fits=True),
    TableColumn("START", _yes("starts", "stopped", "start"), 8, "<",
                lambda entry: "" if entry.get("start") else "warn", fits=True),
    TableColumn("WAITING", lambda entry: _count(entry.get("pending")), 9, ">",
                order=lambda entry: entry.get("pending"), fits=True),
    TableColumn("RUNNING", lambda entry: _count(entry.get("running")), 9, ">",
                order=lambda entry: entry.get("running"), fits=True),
    TableColumn("GROUP", lambda entry: ",".join(entry.get("groups") or [entry.get("group") or "default"]), 12, "<",
                order=lambda entry: entry.get("group"), fits=True),
    TableColumn("POLICY", lambda entry: str(entry.get("policy") or ""), 14, "<", shown_from=66, fits=True),
    TableColumn("REASON", _closed_reason, 6, "<", share=1),
)  # fmt: skip


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def _size(key: str) -> Callable[[TableEntry], int]:
    return lambda entry: len(Idset.parse(entry.get(key) or ""))


def _acquired(entry: TableEntry) -> str:
    return str(entry.get("acquirer") or "yes") if entry.get("acquired") else "no scheduler"


GROUP_COLUMNS = (
    TableColumn("GROUP", lambda entry: str(entry["name"]), 16, "<", order=lambda entry: entry["name"], fits=True),
    TableColumn("TARGETS", lambda entry: _count(_size("targets")(entry)), 9, ">", order=_size("targets")),
    TableColumn("LEAVING", lambda entry: _count(_size("leaving")(entry) or None), 8, ">",
                lambda entry: "warn", _size("leaving")),
    TableColumn("COMING", lambda entry: _count(_size("incoming")(entry) or None), 8, ">",
                lambda entry: "warn", _size("incoming")),
    TableColumn("ACQUIRED BY", _acquired, 14, "<",
                lambda entry: "" if entry.get("acquired") or entry["name"] == "exclude" else "dim", _acquired),
    TableColumn("DIALECT", lambda entry: str(entry.get("dialect") or ""), 8, "<", shown_from=60),
    TableColumn("RANKS", lambda entry: str(entry.get("targets") or ""), 10, "<", share=1),
)  # fmt: skip
