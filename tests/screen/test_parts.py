"""What the screen is made of, without a terminal: places, rates, limits, texts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fluxsched.errors import Refused, RPCError
from fluxsched.views.jobs import JobRow

from .fakes import FakeFollower, job, machine_body

pytest.importorskip("textual", reason="the screen is an extra: fluxsched[tui]")

from rich.cells import cell_len
from textual.app import App

from fluxsched.core.idset import Idset
from fluxsched.screen import app, commands, panes
from fluxsched.screen import picture as follow
from fluxsched.screen.app import TopApp
from fluxsched.screen.look import ScreenSettings, TerminalLook, cell, places
from fluxsched.screen.panes import (
    BAR_WIDTH_MAX,
    FIELD_CHARS_MAX,
    LOG_LINES_MAX,
    Amount,
    FiguresBar,
    InstanceFigures,
    LogLine,
    LogPane,
    MachinePane,
    Question,
    QuestionBox,
)
from fluxsched.screen.picture import Picture
from fluxsched.screen.table import JOB_COLUMNS, TablePane, start_shown
from fluxsched.views.machine import LiveMachine

LOOK = TerminalLook(True, True)


def rows(count: int, **more: Any) -> list[JobRow]:
    return [JobRow({**job((at + 1) << 30, **more), "id": (at + 1) << 30}, 0.0) for at in range(count)]


@pytest.mark.parametrize("width", [40, 60, 80, 149, 150, 300])
@pytest.mark.parametrize("height", [10, 15, 24, 35, 36, 100])
@pytest.mark.parametrize("zoomed", [None, "machine", "log"])
@pytest.mark.parametrize("notices", [0, 1, 9])
def test_places_are_on_the_terminal_and_none_covers_another(
    width: int, height: int, zoomed: str | None, notices: int
) -> None:
    found = places(
        width, height, table="queues", zoomed=zoomed, machine_lines=lambda _, most: most, queues=9, groups=4,
        notices=notices,
    )  # fmt: skip
    seen = set()
    for rect in found.values():
        assert rect.width > 0
        assert rect.height > 0
        cells = {(x, y) for x in range(rect.x, rect.x + rect.width) for y in range(rect.y, rect.y + rect.height)}
        assert not seen & cells
        seen |= cells
    assert all(0 <= x < width and 0 <= y < height for x, y in seen)
    assert (zoomed or "queues") in found
    assert ("notices" in found) == bool(notices)


@pytest.mark.parametrize("text", ["plain", "日本語日本語日本語", "\x1b[31m", "a\u202eb", "e\u0301" * 9, "[b]", ""])
@pytest.mark.parametrize("width", [1, 2, 5, 9])
def test_a_cell_has_its_width_and_no_escape(text: str, width: int) -> None:
    for align in "<>":
        shown = cell(text, width, align)
        assert cell_len(shown) == width
        assert "\x1b" not in shown
        assert "\u202e" not in shown


def test_rates_are_means_and_begin_anew_with_another_instance() -> None:
    picture = Picture(lambda style, text: None)

    def told(now_s: float, submitted: int) -> Any:
        jobs = {"submitted": submitted, "started": submitted, "ended": {"completed": submitted}}
        picture.take_figures("whole", {"jobs": jobs, "queues": []}, now_s)
        return picture.figures(0.0).rates

    assert told(0.0, 1000) is None
    assert told(2.0, 3000).submitted == 1000.0
    assert told(4.0, 3000).started == 500.0
    assert told(100.0, 3000).ended == 0.0
    assert told(101.0, 5) is None


def test_the_log_tells_of_drains_and_their_end() -> None:
    told: list[str] = []
    picture = Picture(lambda style, text: told.append(text))
    picture.take_machine("whole", machine_body(8))
    picture.take_machine("change", {"drains": {"2-3": {"reason": "fan", "user": "kim"}}})
    picture.take_machine("change", {"drains": {"3": {"reason": "fan", "user": "kim"}}})
    picture.take_machine("change", {"parts": [{"targets": "1", "cores": "4-7", "reason": "dimm"}]})
    picture.take_machine("change", {"parts": []})
    assert told == [
        "node[2-3]: drained by kim: fan", "node2: returned to service",
        "node1: cores 4-7 drained: dimm", "node1: cores 4-7 returned to service",
    ]  # fmt: skip


def test_the_log_tells_of_an_added_reason_and_not_of_one_that_is_lifted() -> None:
    told: list[str] = []
    picture = Picture(lambda style, text: told.append(text))
    picture.take_machine("whole", machine_body(8))
    disk = {"reason": "disk", "user": "kim", "timestamp": 1.0}
    kernel = {"reason": "kernel", "user": "fluxsched:upd", "timestamp": 2.0}
    both = {**disk, "reason": "disk; also: kernel", "reasons": [disk, kernel]}
    picture.take_machine("change", {"drains": {"1-2": disk}})
    picture.take_machine("change", {"drains": {"1": disk, "2": both, "3": kernel}})
    assert told == ["node[1-2]: drained by kim: disk",
                    "node3: drained by upd: kernel", "node2: drained by kim, upd: disk; also: kernel"]  # fmt: skip
    del told[:]
    picture.take_machine("change", {"drains": {"1": disk, "2-3": kernel}})
    assert told == []


def test_the_log_keeps_its_limit() -> None:
    pane = LogPane(LOOK, id="log")
    for at in range(LOG_LINES_MAX + 5):
        pane.add(LogLine(0.0, "", str(at)))
    assert len(pane.held) == LOG_LINES_MAX
    assert pane.held[0].text == "5"


def test_a_bar_is_no_longer_than_it_is_useful() -> None:
    pane = FiguresBar(LOOK, {}, id="figures")
    pane.figures = InstanceFigures(amounts=(Amount("Cores", 64, 64),))
    line = pane.make_lines(300, 3)[1].text
    assert len(line.rstrip()) == BAR_WIDTH_MAX


async def test_a_field_takes_no_more_than_its_limit() -> None:
    box = QuestionBox(LOOK, lambda said: None, lambda: None, id="box")

    async def perform(text: str) -> str:
        return ""

    box.open(Question("?", perform, field="Text"))
    box._insert("x" * (FIELD_CHARS_MAX + 10))
    box._insert("y")
    assert box.text == "x" * FIELD_CHARS_MAX


async def test_questions_and_refusals_name_a_few_jobs_and_count_the_rest() -> None:
    async def ask(topic: str, payload: dict[str, Any]) -> dict[str, Any]:
        raise RPCError("it has ended", 22)

    question = commands.cancelling(ask, rows(commands.NAMED_MAX + 2))
    assert "and 2 more" in question.lines
    with pytest.raises(Refused, match=r"0 of 6 done; .*and 3 more") as refused:
        await question.perform("")
    assert str(refused.value).count("it has ended") == commands.REFUSED_NAMED_MAX


async def test_the_urgency_stays_within_its_bounds() -> None:
    asked = []

    async def ask(topic: str, payload: dict[str, Any]) -> dict[str, Any]:
        asked.append(payload["urgency"])
        return {}

    await commands.urgency_moved(ask, rows(1, state="SCHED", urgency=commands.URGENCY_MAX), 1).perform("y")
    await commands.urgency_moved(ask, rows(1, state="SCHED", urgency=0), -1).perform("y")
    assert asked == [commands.URGENCY_MAX, commands.URGENCY_HOLD]


def test_a_job_that_waits_shows_the_start_that_its_scheduler_said_when_asked() -> None:
    [row] = rows(1, state="SCHED", estimate=90.0)
    assert start_shown(row) == "~1m30s"
    [held] = rows(1, state="SCHED", estimate=90.0, urgency=0)
    assert start_shown(held) == ""


def test_an_urgency_of_zero_is_shown() -> None:
    [held] = rows(1, state="SCHED", urgency=0)
    [urgency] = [column.text(held) for column in JOB_COLUMNS if column.heading == "URG"]
    assert urgency == "0"


async def test_what_is_asked_is_bounded() -> None:
    names = [f"q{at}" for at in range(app.QUEUES_MAX + 5)]
    follower = FakeFollower({"machine": machine_body(2)}, {"job-manager.queue-list": {"queues": names},
                                                           "job-manager.list": {"jobs": []}})  # fmt: skip
    screen = TopApp(follower, ScreenSettings(LOOK, lambda text: {}, int))
    async with screen.run_test(size=(80, 24)) as pilot:
        await pilot.press("1", "enter")
        await pilot.pause()
        assert len(screen.picture.queues) == app.QUEUES_MAX
    assert ("jobs", {"max_entries": app.ROWS_MAX}) in follower.subscribed
    listed = [payload for topic, payload in follower.asked if topic == "job-manager.list"]
    assert [payload["max_entries"] for payload in listed] == [commands.JOBS_ON_MAX]


async def test_no_more_tagged_targets_are_marked_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panes, "MARKS_MAX", 2)
    machine = LiveMachine()
    machine.apply(machine_body(8))
    pane = MachinePane(LOOK, id="machine")
    pane.show(machine, is_rebuilt=True)
    pane.tagged = Idset.parse("0-3")
    async with App[None]().run_test():
        strips = pane.make_lines(80, 3)
    marked = [segment for strip in strips[1:] for segment in strip if segment.style and segment.style.underline]
    assert len(marked) == 2


async def test_the_cursor_stays_on_its_job_and_on_its_line() -> None:
    table = TablePane(LOOK, JOB_COLUMNS, lambda row: row.info["id"], id="jobs", title="Jobs")
    jobs = rows(50)
    table.fill(jobs[20:])
    async with App[None]().run_test():
        table._at = 5  # `move` draws, and there is no screen
        before = [strip.text for strip in table.make_lines(120, 12)]
        table.fill(jobs)
        assert [strip.text for strip in table.make_lines(120, 12)][2:] == before[2:]
        table.fill(jobs[24:])
        assert table.current is jobs[25]
        assert [strip.text for strip in table.make_lines(120, 12)].index(before[7]) == 2 + 1


async def test_names_that_have_no_room_are_said_to_need_some() -> None:
    machine = LiveMachine()
    machine.apply({**machine_body(8), "groups": [{"name": f"g{at}", "targets": str(at)} for at in range(8)]})
    pane = MachinePane(LOOK, id="machine")
    pane.show(machine, is_rebuilt=True)
    async with App[None]().run_test():
        titles = [pane.make_lines(80, lines)[0].text for lines in (10, 17)]
    assert ["by group: no room for 8 names, z makes some" in title for title in titles] == [True, False]


async def test_what_is_costly_to_draw_is_drawn_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    spent_s = 0.0
    drawn = 0

    def draw(done: Any) -> None:
        nonlocal spent_s, drawn
        spent_s += 0.06
        drawn += 1
        done()

    monkeypatch.setattr(follow.SystemClock, "cpu_s", lambda: spent_s)
    monkeypatch.setattr(follow, "DRAWN_EVERY_S", 0.001)
    pacer = follow.Pacer(draw)
    pacer._pause_s = 0.001
    pacer.wake()
    pacer.wake()
    while not drawn:
        await asyncio.sleep(0.001)
    assert drawn == 1
    assert pacer._pause_s == pytest.approx((0.001 + 0.06 / follow.DRAWING_SHARE) / 2)
    pacer.stop()
