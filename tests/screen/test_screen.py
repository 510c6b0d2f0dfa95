"""The screen, by Textual's pilot: each pane, key and action, against a follower that says what the test wants."""

from __future__ import annotations

import errno
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fluxsched.errors import InvalidValue, RPCError

from .fakes import FakeFollower, job, jobs_body, machine_body

pytest.importorskip("textual")

from textual import _ansi_sequences
from textual.pilot import Pilot

from fluxsched.screen.app import TopApp, part_esc_and_digits
from fluxsched.screen.commands import SORT_KEYS
from fluxsched.screen.look import NOTICE_LINES_MAX, ScreenSettings, TerminalLook
from fluxsched.screen.table import JOB_COLUMNS

WAITS = {"sched": {"reason_pending": "needs 8 nodes; 2 are free", "t_estimate": 4_000_000_000.0}}
ROWS = (
    job(1 << 30, name="[red]x[/]", queue="batch"),
    job(2 << 30, "SCHED", name="solver\x1b[31m", annotations=WAITS, queue="batch"),
    job(3 << 30, "SCHED", name="held", urgency=0, queue="debug"),
)
WAIT = {"bounds": [1.0, 60.0], "counts": [1, 3, 0]}
FIGURES = {
    "jobs": {"submitted": 10, "started": 8, "ended": {"completed": 5}, "wait": WAIT},
    "queues": [{"name": "batch", "pending": 1, "running": 1}, {"name": "debug", "pending": 1, "running": 0}],
}
QUEUES = {
    "batch": {"enable": True, "start": True, "group": "default", "policy": "easy"},
    "debug": {"enable": True, "start": False, "start_reason": "maintenance", "group": "default"},
}


def wholes() -> dict[str, Any]:
    return {
        "machine": machine_body(64, allocated="0-19", drained="30", lost="31"),
        "jobs": jobs_body(*ROWS, left_out=7),
        "figures": FIGURES,
        "job": {"job": ROWS[0], "why": {"summary": "it [b]runs[/b]"}, "events": [{"timestamp": 1.0, "name": "submit"}],
                "output": [["stdout", "first\nsecond \x1b[31mred\n"], ["stderr", "[red]x[/]\n"]]},
    }  # fmt: skip


def parse_filter(text: str) -> dict[str, Any]:
    if "wrong" in text:
        raise InvalidValue("filter: no such option: wrong")
    return {"constraint": {"text": text}} if text else {}


@asynccontextmanager
async def screen(
    width: int = 130, height: int = 30, *, colour: bool = True, **more: Any
) -> AsyncIterator[tuple[Pilot[None], FakeFollower]]:
    """The screen, drawn once."""
    answers = {"job-manager.queue-list": {"queues": ["batch", "debug"]},
               "job-manager.queue-status": lambda payload: QUEUES[payload["name"]], **more}  # fmt: skip
    follower = FakeFollower(wholes(), answers)
    settings = ScreenSettings(TerminalLook(colour, True), parse_filter, int)
    app = TopApp(follower, settings)
    async with app.run_test(size=(width, height)) as pilot:
        await drawn(pilot)
        yield pilot, follower


async def drawn(pilot: Pilot[None]) -> None:
    """What has arrived is on the screen."""
    await pilot.pause()
    app = pilot.app
    assert isinstance(app, TopApp)
    app.draw()
    await pilot.pause()


def text(pilot: Pilot[None]) -> str:
    """What is on the screen."""
    height = pilot.app.size.height
    lines = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line) for line in lines[:height])


async def press(pilot: Pilot[None], *keys: str) -> str:
    await pilot.press(*keys)
    await drawn(pilot)
    return text(pilot)


async def test_the_first_look_says_where_the_machine_stands() -> None:
    async with screen() as (pilot, _):
        shown = text(pilot)
        for words in ("64 targets", "20 allocated", "1 drained", "1 lost", "31.2% of 512", "1 running", "2 waiting",
                      "Machine", "by group", "3 of 10", "needs 8 nodes; 2 are free", "held", "F1Help",
                          "F10Quit"):  # fmt: skip
            assert words in shown, words


async def test_text_of_users_is_shown_as_it_is_and_does_nothing() -> None:
    async with screen() as (pilot, _):
        assert "[red]x[/]" in text(pilot)
        assert "solver\\x1b[31m" in text(pilot)
        assert "\x1b" not in text(pilot)
        assert "[red]x[/]" in await press(pilot, "f9")  # in a question, too
        assert "[red]x[/]" in await press(pilot, "escape", "enter")
        output = await press(pilot, "4")
        assert "\\x1b[31mred" in output
        assert "[red]x[/]" in output


@pytest.mark.parametrize(("width", "height"), [(80, 24), (300, 100), (40, 10), (10, 3), (1, 1)])
async def test_every_size_has_a_picture_that_fits(width: int, height: int) -> None:
    async with screen(width, height) as (pilot, _):
        lines = text(pilot).split("\n")
        assert len(lines) == height
        if width < 40:
            assert "too" in text(pilot) or width == 1
        else:
            assert "F1Help" in lines[-1]
            assert "Machine" in text(pilot)


async def test_resized_to_nothing_and_back_it_goes_on() -> None:
    async with screen() as (pilot, _):
        before = text(pilot)
        await pilot.press("f9")  # whatever is open
        for size in ((10, 3), (300, 100), (1, 1), (130, 30)):
            await pilot.resize_terminal(*size)
            await drawn(pilot)
        assert "Cancel 1 job" in text(pilot)
        assert before.split("\n")[0][:40] == (await press(pilot, "escape")).split("\n")[0][:40]


async def test_without_colour_signs_say_it() -> None:
    async with screen(colour=False) as (pilot, _):
        shown = text(pilot)
        assert "A" * 20 in shown.replace(" ", "")
        assert "L 1 lost" in shown
        for line in pilot.app.screen._compositor.render_strips():
            for segment in line:
                colours = (segment.style.color, segment.style.bgcolor) if segment.style else ()
                assert all(colour is None or colour.is_default for colour in colours)


async def test_tab_and_numbers_go_through_the_panes() -> None:
    async with screen() as (pilot, _):
        assert " stopped " in await press(pilot, "tab")
        assert "maintenance" in text(pilot)
        assert "sched-easy" in await press(pilot, "tab")
        assert "nothing has happened" in await press(pilot, "tab")
        assert "node0" in await press(pilot, "tab")  # the machine: the status line names the target
        assert "[red]x[/]" in await press(pilot, "2")
        zoomed = await press(pilot, "z")
        assert "Machine" not in zoomed
        assert "Machine" in await press(pilot, "z")


async def test_the_cursor_of_the_machine_finds_targets_and_says_what_they_are() -> None:
    async with screen(**{"job-manager.list": {"jobs": []}}) as (pilot, follower):
        part = {"targets": "30", "cores": "4-7", "reason": "dimm"}
        outage = {"name": "upd", "targets": "30-31", "from": 0.0, "until": 60.0, "reason": "firmware"}
        news = {"drains": {"30": {"reason": "fan [b]", "user": "kim"}}, "parts": [part], "outages": [outage]}
        follower.tell("machine", "change", news)
        assert "rank 1 " in await press(pilot, "1", "right")
        assert "node30" in await press(pilot, "slash", *"node30", "enter")
        assert "drained by kim: fan [b]" in text(pilot)
        assert "outage upd" in text(pilot), "the machine's title has the next one"
        await press(pilot, "enter")
        assert "cores 4-7 drained: dimm" in text(pilot)
        assert "node[30-31]: outage upd" in await press(pilot, "right", "right")
        await press(pilot, "escape")
        assert "was not found" in await press(pilot, "2", "slash", *"nosuch", "enter") or "nosuch" in text(pilot)
        await press(pilot, "escape", "1")
        assert "nosuch" in await press(pilot, "slash", "ctrl+u", *"nosuch", "enter")
        assert "by property" in await press(pilot, "escape", "f5")


async def test_the_search_takes_the_sets_that_commands_take() -> None:
    """Groups and queues were unknown to it."""
    sets = {"group:lab": {"targets": "30"}, "queue:x": RPCError("queue 'x' does not exist", errno.ENOENT)}
    async with screen(**{"resource.targets": lambda payload: sets[payload["targets"]]}) as (pilot, follower):
        assert "node30" in await press(pilot, "1", "slash", *"group:lab", "enter")
        await press(pilot, "escape", "escape")
        assert "node30" in await press(pilot, "n"), "it is asked again"
        asked = [payload for topic, payload in follower.asked if topic == "resource.targets"]
        assert asked == [{"targets": "group:lab"}] * 2
        assert "queue 'x' does not exist" in await press(pilot, "slash", "ctrl+u", *"queue:x", "enter")


async def test_enter_shows_details_of_what_is_under_the_cursor() -> None:
    async with screen(**{"job-manager.list": {"jobs": [{**ROWS[0], "id": 1 << 30}]}}) as (pilot, follower):
        record = await press(pilot, "enter")
        assert "jobid" in record
        assert ("job", {"id": str(1 << 30)}) in follower.subscribed
        assert "it [b]runs[/b]" in await press(pilot, "right")
        assert "submit" in await press(pilot, "right")
        assert "second" in await press(pilot, "right")
        follower.tell("job", "change", {"output": [["stdout", "third\n"]]})
        assert "third" in await press(pilot)
        await press(pilot, "escape")
        assert "job" not in [topic for topic, _ in follower.open]
        assert "16 of 8" not in await press(pilot, "1", "enter")
        assert "group" in text(pilot)
        assert "[red]x[/] on node[0-1]" in await press(pilot, "2")
        assert "maintenance" in await press(pilot, "escape", "3", "down", "enter")
        assert "typed" in await press(pilot, "escape", "4", "enter")


async def test_arrows_turn_through_the_queues() -> None:
    async with screen() as (pilot, follower):
        app = pilot.app
        app.picture.queues = [{"name": "batch"}, {"name": "debug"}]
        seen = [str(follower.subscribed[-1][1].get("constraint")) for key in ("right", "right", "right", "left")
                if await press(pilot, key)]  # fmt: skip
        assert ["batch" in one for one in seen] == [True, False, False, False]
        assert ["debug" in one for one in seen] == [False, True, False, True]


async def test_escape_that_arrives_with_another_key_closes_a_question() -> None:
    async with screen() as (pilot, _):
        assert "Filter the jobs" in await press(pilot, "f4")
        assert "Filter the jobs" not in await press(pilot, "alt+d")


async def test_a_filter_is_asked_of_the_instance_and_a_wrong_one_is_said() -> None:
    async with screen() as (pilot, follower):
        assert "no such option: wrong" in await press(pilot, "f4", *"wrong", "enter")
        shown = await press(pilot, "ctrl+u", *"-f failed", "enter")
        assert "filter: -f failed" in shown
        assert follower.subscribed[-1] == ("jobs", {"constraint": {"text": "-f failed"}, "max_entries": 200})
        await press(pilot, "u", "ctrl+u", *"kim", "enter")
        assert follower.subscribed[-1][1]["constraint"] == {"text": "-f failed -u kim"}
        await press(pilot, "u", "ctrl+u", "enter", "a")
        assert follower.subscribed[-1][1]["constraint"] == {"text": "-a -f failed"}
        assert "filter" not in await press(pilot, "a", "escape")
        assert [topic for topic, _ in follower.open].count("jobs") == 1


async def test_sorting_keeps_the_cursor_on_its_job() -> None:
    async with screen() as (pilot, _):
        app = pilot.app
        assert isinstance(app, TopApp)
        await press(pilot, "down")
        assert "JOBID" in await press(pilot, "f6")
        await press(pilot, "4", "I")  # by name, the other way round
        assert [row.info["name"] for row in app.jobs.rows] == ["solver\x1b[31m", "held", "[red]x[/]"]
        assert app.jobs.current.info["id"] == 2 << 30  # type: ignore[union-attr]
        assert "▼" in text(pilot)
        await press(pilot, "f6", "0", "slash", *"HELD", "enter")
        assert app.jobs.current.info["id"] == 3 << 30  # type: ignore[union-attr]


async def test_columns_are_chosen() -> None:
    async with screen() as (pilot, _):
        keys = {column.heading: SORT_KEYS[at] for at, column in enumerate(JOB_COLUMNS)}
        for column, is_shown in (("JOBID", True), ("BANK", False)):
            assert (column in text(pilot)) is is_shown
            assert (column in await press(pilot, "c", keys[column])) is not is_shown
        assert "JOBID" in await press(pilot, "c", keys["JOBID"])
        app = pilot.app
        assert isinstance(app, TopApp)
        for index in {index for index, _ in app.jobs._widths(160)}:
            app.jobs.toggle(index)
        await drawn(pilot)
        assert "JOBID" in text(pilot), "one column is left"


Asked = list[tuple[str, dict[str, Any]]]
ACTIONS: list[tuple[str, list[str], Asked]] = [
    ("cancel", ["f9", *"why", "enter"], [("job-manager.cancel", {"id": 1 << 30, "note": "why"})]),
    ("cancel all tagged", ["space", "space", "k", "enter"],
     [("job-manager.cancel", {"id": id, "note": ""}) for id in (1 << 30, 2 << 30)]),
    ("hold", ["down", "h", "y"], [("job-manager.urgency", {"id": 2 << 30, "urgency": 0})]),
    ("release", ["end", "h", "y"], [("job-manager.urgency", {"id": 3 << 30, "urgency": 16})]),
    ("urgency", ["down", "r", "ctrl+u", *"20", "enter"], [("job-manager.urgency", {"id": 2 << 30, "urgency": 20})]),
    ("raise", ["down", "f8", "y"], [("job-manager.urgency", {"id": 2 << 30, "urgency": 17})]),
    ("lower", ["end", "f7", "y"], [("job-manager.urgency", {"id": 3 << 30, "urgency": 0})]),
    ("drain", ["1", "right", "d", *"fan", "enter"], [("resource.drain", {"targets": "1", "reason": "fan"})]),
    ("drain tagged", ["1", "space", "space", "d", "enter", "x", "enter"],
     [("resource.drain", {"targets": "0-1", "reason": "x"})]),
    ("drain of a job", ["d", "enter", *"fan", "enter"], [("resource.drain", {"targets": "0-1", "reason": "fan"})]),
    ("undrain", ["1", "slash", *"30", "enter", "U", "y"], [("resource.undrain", {"targets": "30"})]),
    ("no", ["f9", "escape", "down", "h", "n"], []),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "asked"), [one[1:] for one in ACTIONS], ids=[one[0] for one in ACTIONS])
async def test_an_action_asks_first_and_is_then_done(keys: list[str], asked: Asked) -> None:
    async with screen() as (pilot, follower):
        await pilot.press(*keys[:-1])
        assert follower.changes() == []
        await press(pilot, keys[-1])
        assert follower.changes() == asked


async def test_a_refusal_is_shown_in_the_words_of_the_instance_and_can_be_tried_again() -> None:
    answers: list[Any] = [RPCError("job ƒ1 belongs to [b]kim[/b]", 1), {}]
    async with screen(**{"job-manager.cancel": lambda payload: answers.pop(0)}) as (pilot, follower):
        assert "job ƒ1 belongs to [b]kim[/b]" in await press(pilot, "f9", "enter")
        assert "canceled 1 job" in await press(pilot, "enter")
        assert len(follower.changes()) == 2


async def test_some_refusals_keep_no_other_job_from_being_hit() -> None:
    def answer(payload: Any) -> Any:
        return RPCError("it has ended", 22) if payload["id"] == 1 << 30 else {}

    async with screen(**{"job-manager.cancel": answer}) as (pilot, follower):
        assert "1 of 2 done" in await press(pilot, "space", "space", "f9", "enter")
        assert len(follower.changes()) == 2


async def test_a_guest_is_told_which_keys_it_may_not_use() -> None:
    async with screen() as (pilot, follower):
        follower.tell("machine", "instance", {"instance": "there", "role": "guest", "uri": "x"})
        follower.tell("figures", "whole", {"refused": "instance.metrics is for admins"})
        await drawn(pilot)
        assert "drain needs the role admin; you are a guest" in await press(pilot, "d")
        assert "running" not in text(pilot).split("\n")[2]
        assert "trace needs the role owner" in await press(pilot, "5", "t")
        assert "in the pane" in await press(pilot, "f9")
        await press(pilot, "2", "f9", "enter")
        assert follower.changes()  # its own jobs: the instance decides


async def test_a_lost_instance_is_a_banner_and_comes_back_by_itself() -> None:
    async with screen() as (pilot, follower):
        for topic in ("machine", "jobs", "figures"):
            follower.tell(
                topic, "instance", {"instance": "lost", "why": "the [b]connection[/b] is closed", "retry_s": 1}
            )
        await drawn(pilot)
        assert "INSTANCE LOST: the [b]connection[/b] is closed" in text(pilot)
        assert [line.strip() for line in text(pilot).split("\n")[1:3]] == [
            "", "Jobs not known while the instance is lost"
        ]  # fmt: skip
        assert "3 of 10" not in text(pilot)
        app = pilot.app
        assert isinstance(app, TopApp)
        times_s = [row.now_s for row in app.jobs.rows]
        app.fill()
        assert times_s == [row.now_s for row in app.jobs.rows], "run times stand still"
        for topic in ("machine", "jobs", "figures"):
            follower.tell(topic, "instance", {"instance": "there", "role": "owner", "uri": "x"})
        await drawn(pilot)
        assert "INSTANCE LOST" not in text(pilot)
        assert "the instance is back" in await press(pilot, "5")


async def test_the_log_tells_what_happens_to_targets_and_messages_when_asked() -> None:
    async with screen() as (pilot, follower):
        follower.tell("machine", "change", {"states": {"offline": "5"}})
        assert "node5: offline" in await press(pilot, "5")
        await press(pilot, "t", "ctrl+u", *"sched.", "enter")
        assert ("messages", {"topics": "sched."}) in follower.subscribed
        follower.tell("messages", "change", {"messages": [{"t": 1.0, "text": "> sched.hello [b]"}], "dropped": 0})
        assert "> sched.hello [b]" in await press(pilot)
        await press(pilot, "t")
        assert "messages" not in [topic for topic, _ in follower.open]


@pytest.mark.parametrize(("width", "height"), [(130, 30), (40, 10), (300, 100)])
async def test_notices_stand_on_top_and_in_the_log(width: int, height: int) -> None:
    async with screen(width, height) as (pilot, follower):
        texts = [f"[red]{at}[/] slow" for at in range(NOTICE_LINES_MAX + 2)]
        told = [{"id": at, "text": text, "user": "ops", "timestamp": 1.0} for at, text in enumerate(texts)]
        follower.tell("notices", "whole", {"notices": told})
        await drawn(pilot)
        await drawn(pilot)
        shown = [line for line in text(pilot).split("\n") if " ⚑ " in line]
        most = min(NOTICE_LINES_MAX, height // 10)
        assert [line[3:].split(" slow")[0] for line in shown] == [
            f"[red]{len(texts) - 1 - at}[/]" for at in range(most)
        ]
        assert shown[-1].rstrip().endswith(f"(and {len(texts) - most} more)")
        assert "Machine" in text(pilot)
        assert f"notice of ops: {texts[-1]}" in await press(pilot, "5")
        follower.tell("notices", "change", {"notices": []})
        await drawn(pilot)
        await drawn(pilot)
        assert " ⚑ " not in text(pilot)


async def test_the_help_names_every_key() -> None:
    async with screen(80, 60) as (pilot, _):
        shown = " ".join((await press(pilot, "f1")).split())
        for words in ("F4", "F9", "Drain", "Undrain", "Hold", "Quit", "role admin", "n: the next one", "Esc Escape"):
            assert words in shown
        assert "Machine" in await press(pilot, "escape")


async def test_the_mouse_moves_the_cursor_sorts_and_presses_keys() -> None:
    async with screen() as (pilot, _):
        app = pilot.app
        assert isinstance(app, TopApp)
        top = app.jobs.region.y
        await pilot.click(offset=(5, top + 3))
        assert app.jobs.current.info["id"] == 2 << 30  # type: ignore[union-attr]
        await pilot.click(offset=(3, top + 1))
        assert app.jobs.sorted_by == 0
        await pilot.click(offset=(5, app.machine.region.y + 1))
        await drawn(pilot)
        assert app.pane == "machine"
        await pilot.click(offset=(1, 29))
        assert "Shift-Tab" in await press(pilot)


def test_esc_and_a_digit_are_two_keys_as_long_as_textual_has_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {**_ansi_sequences.ANSI_SEQUENCES_KEYS, "\x1b1": "¡"}
    monkeypatch.setattr(_ansi_sequences, "ANSI_SEQUENCES_KEYS", table)
    part_esc_and_digits()
    assert "\x1b1" not in table
    monkeypatch.setitem(sys.modules, "textual._ansi_sequences", None)
    part_esc_and_digits()
