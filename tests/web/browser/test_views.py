"""Timeline, groups, shares, history and the page of a simulation in a real browser: what they draw, say and let choose.

Most tests show a view's own template, module and styles as a page of its own, with data that an instance would give;
the last ones follow a real instance.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluxsched.sim import generate, run
from fluxsched.sim.report import drawing
from fluxsched.web.standalone import standalone, study_page

from .conftest import DESKTOP, PHONE

MARKUP = "<script>alert(1)</script>"
NOW_S = 1_800_000_000.0
STYLES = ("style.css", "views.css")
GANTT = "one('canvas.gantt').gantt"

Show = Callable[..., None]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Show:
    """Opens a view on given data."""
    pytest.importorskip("jinja2", reason="the page is an extra: fluxsched[web]")
    from fluxsched.web.pages import templates

    def opened(view: str, data: dict[str, Any], phone: bool = False) -> None:
        template = templates().get_template(f"{view}.html")
        content = "".join(template.blocks["content"](template.new_context({"data": data})))
        page = standalone(view, f'<main><div id="view">{content}</div></main>', f"{view}.js", STYLES, data)
        open_file(browser, tmp_path, page, phone)

    return opened


def open_file(browser: Any, folder: Path, page: str, phone: bool = False) -> None:
    browser.size(PHONE if phone else DESKTOP)
    (folder / "page.html").write_text(page, encoding="utf-8")
    browser.driver.get((folder / "page.html").as_uri())


def timeline(**more: Any) -> dict[str, Any]:
    """Two jobs that run, one reserved, one forecast without targets."""
    bars = [
        ["fA", "0-3", NOW_S - 600, NOW_S + 600, "running", 16, "ann", "batch", MARKUP],
        ["fB", "4", NOW_S - 60, None, "running", 2, "bob", "debug", "endless"],
        ["fC", "0-7", NOW_S + 600, NOW_S + 1200, "reserved", 32, "ann", "batch", "next"],
        ["fD", "", NOW_S + 1200, NOW_S + 1800, "forecast", 4, "eve", "batch", "later"],
    ]
    starts = [
        {"jobid": bar[0], "start": bar[2], "end": bar[3], "targets": bar[1] or None, "ncores": bar[5],
         "promised": bar[4] == "reserved", "reason": "", "user": bar[6], "queue": bar[7], "name": bar[8]}
        for bar in bars[2:]
    ]  # fmt: skip
    return {
        "now": NOW_S, "begin": NOW_S - 900, "end": NOW_S + 2700, "ranks": "0-7", "states": {"allocated": "0-4"},
        "spans": [["7", "drained", NOW_S - 300, None, MARKUP]], "rows": None, "bars": bars, "left_out": 3,
        "starts": starts, "cores_per_target": 4, **more,
    }  # fmt: skip


def test_the_timeline_says_what_runs_and_what_comes(browser: Any, show: Show) -> None:
    show("timeline", timeline())
    browser.said(".note", "2 running · 1 reserved · 1 forecast · 3 smaller ones are not drawn")
    rows = browser.script("all('#starts tbody tr').map(r => [...r.children].map(c => c.textContent))")
    assert [row[:4] for row in rows] == [["fC", "in 10m", "reserved", "ann"], ["fD", "in 20m", "forecast", "eve"]]
    assert browser.script("all('.legend button').map(b => b.textContent)") == ["ann", "bob", "eve"]
    canvas = browser.find("canvas.gantt")
    canvas.send_keys("...")
    browser.said("#announce", "next fC")
    canvas.send_keys(",,")
    browser.said("#announce", f"{MARKUP} fA, ann in batch, running")
    before = browser.script(f"{GANTT}.window.end - {GANTT}.window.begin")
    canvas.send_keys("++")
    browser.until(f"{GANTT}.window.end - {GANTT}.window.begin < arguments[0]", before)
    browser.button("Show all").click()
    browser.until(f"{GANTT}.whole")
    assert browser.grave_faults() == []


def test_jobs_on_one_target_lie_beside_each_other(browser: Any, show: Show) -> None:
    bars = [[f"f{at}", "0", NOW_S, NOW_S + 60, "running", 1, "ann", "", ""] for at in range(4)]
    show("timeline", timeline(bars=bars, starts=[]))
    browser.until(f"{GANTT}.rectangles.count === 4")
    rows = browser.script(f"[...{GANTT}.rectangles.rows]")
    assert sorted(zip(rows[::2], rows[1::2], strict=True)) == [(0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1)]


def test_a_job_that_has_grown_is_drawn_where_it_was_when(browser: Any, show: Show) -> None:
    sizes = [["", NOW_S - 90, 0], ["2", NOW_S - 60, 4]]
    show("timeline", timeline(bars=[["fA", "0-1", NOW_S - 99, None, "running", 8, "ann", "", "", sizes]], starts=[]))
    browser.until(f"{GANTT}.rectangles.count === 2")
    assert browser.script(f"[...{GANTT}.rectangles.times].slice(0, 3)") == [NOW_S - 90, NOW_S - 60, NOW_S - 60]
    assert browser.script(f"[...{GANTT}.rectangles.rows]") == [2, 3, 0, 2]
    browser.find("canvas.gantt").send_keys(".")
    browser.said("#announce", "8 cores, targets 0-1, has changed its size 2 times")


def test_the_end_of_the_instance_is_shaded_and_said(browser: Any, show: Show) -> None:
    show("timeline", timeline(expires=NOW_S + 1500))
    browser.said(".note", "the instance ends")
    assert browser.script(f"{GANTT}.data.spans.at(-1)")[:3] == ["0-7", "", NOW_S + 1500]


def test_many_targets_are_summed(browser: Any, show: Show) -> None:
    rows = [{"ranks": f"{at * 256}-{at * 256 + 255}", "title": "", "cores": 1024, "steps": [[NOW_S - 900, 1024.0]]}
            for at in range(64)]  # fmt: skip
    show("timeline", timeline(rows=rows, bars=[], starts=[], ranks="0-16383"), phone=True)
    browser.said(".note", "too many jobs to draw each")
    browser.until(f"{GANTT}.raster.sums[3] > 0.9")  # how much of the first pixel is in use
    assert browser.script("document.documentElement.scrollWidth") <= 390
    assert not browser.find(".empty").get_attribute("hidden")


def test_groups_say_who_acquired_what_and_what_leaves(browser: Any, show: Show) -> None:
    groups = [
        {"name": "default", "targets": "0-9", "leaving": "8-9", "incoming": "", "acquired": True, "dialect": "typed",
         "acquirer": MARKUP},
        {"name": "lab", "targets": "10", "leaving": "", "incoming": "8-9", "acquired": False},
    ]  # fmt: skip
    queues = [{"name": "batch", "group": "default", "enabled": True, "started": False, "waiting": 7, "running": 3}]
    holders = {"default": [["fA", "8", 0, "ann", MARKUP], ["fB", "9", NOW_S + 90, "bob", "short"]]}
    show("groups", {"now": NOW_S, "groups": groups, "queues": queues, "holders": holders})
    browser.said("[data-key=default]", f"8 targets2 leavingAcquired by{MARKUP}Dialecttyped")
    browser.said("[data-key=default]", "3 running, 7 waiting, stopped")
    browser.said("[data-key=default]", f"Leaves when these end: {MARKUP} (ann, no limit)")
    browser.said("[data-key=default]", "short (bob, at most 1.5m more)")
    browser.said("[data-key=lab]", "2 awaited")
    assert browser.grave_faults() == []


def test_shares_are_a_tree_of_accounts(browser: Any, show: Show) -> None:
    def account(path: list[str], user: bool, usage: float, share: float) -> dict[str, Any]:
        return {"path": path, "user": user, "active": True, "weight": 1.0, "fair_usage": share, "usage": usage,
                "signal": usage, "cap": None, "waiting": 2, "running": 1, "preempted": 0}  # fmt: skip

    accounts = [account(["phys"], False, 60, 50), account(["phys", MARKUP], True, 60, 25)]
    accounts.append(account(["bio"], False, 0, 50))
    settings = {"signal": "usage", "half_life": 7200.0, "shares": "active", "capacity": 100.0}
    show("shares", {"accounts": accounts, "group": "default", "groups": ["default"], **settings})
    rows = browser.until("all('#accounts tbody tr').length === 3 && all('#accounts tbody tr').map(r => r.textContent)")
    assert [row[:4] for row in rows] == ["bio1", "phys", MARKUP[:4]]
    labels = browser.script("all('#accounts .bar').map(b => b.getAttribute('aria-label'))")
    assert labels[2] == "uses 60% of the machine, its share is 25%"
    assert browser.grave_faults() == []
    show("shares", {"accounts": None, "why": "easy keeps no accounts", "group": "", "groups": []})
    browser.said("#shares-note", "easy keeps no accounts")


def history(steps: int) -> dict[str, Any]:
    t = [NOW_S - 60 * (steps - at) for at in range(steps)]
    row = {"name": MARKUP, "jobs": 5, "results": {"completed": 4, "failed": 1}, "core_seconds": 7200.0,
           "gpu_seconds": 0.0, "wait_mean": 61.0, "wait_p50": None, "wait_p95": 90.0}  # fmt: skip
    return {
        "now": NOW_S, "since": NOW_S - 60 * steps, "until": NOW_S,
        "samples": {
            "step": 60, "t": t, "observed": [60.0] * steps,
            "cores": {"allocated": [96.0] * steps, "free": [0.0] * steps, "drained": [32.0] * steps},
            "pending": {"": [4.0] * steps}, "running": {"": [2.0] * steps}, "submitted": [1] * steps,
            "started": [1] * steps, "ended": {"completed": [1] * steps, "failed": [0] * steps},
            "wait_p50": [None] * steps, "wait_p95": [125.0] * steps,
        },
        "intervals": [["3-10", "drained", NOW_S - 600, None, MARKUP]], "observed": [],
        "report": {"by": "user", "rows": [row], "left_out": 0},
    }  # fmt: skip


def test_the_history_is_charts_and_tables(browser: Any, show: Show) -> None:
    show("history", history(30))
    titles = browser.until("all('.panel-chart .title').length && all('.panel-chart .title').map(t => t.textContent)")
    assert titles == ["Cores in use", "Jobs waiting", "Jobs running", "Wait of started jobs", "Jobs per 1m"]
    browser.said(".panel-chart .value", "96 · 96")
    assert browser.script("all('.panel-chart:first-child .shade').length") == 1
    assert "last 96" in browser.script("one('.panel-chart svg').getAttribute('aria-label')")
    browser.find(".panels").send_keys("\ue012")
    browser.until("one('.cursor').getAttribute('visibility') === 'visible'")
    report = browser.script("[...one('#report tbody tr').children].map(c => c.textContent)")
    assert report == [MARKUP, "5", "2.0", "", "0", "1.02m", "–", "1.5m", "1"]
    browser.said("#outages tbody", "3-108drained")
    assert browser.script("all('#steps tbody tr').length") == 30
    assert browser.grave_faults() == []


def test_a_guest_of_private_jobs_sees_the_own_report(browser: Any, show: Show) -> None:
    show("history", history(1) | {"samples": None, "intervals": None})
    browser.said(".note", "not shown to guests")
    assert browser.script("one('#steps').hidden && one('#outages').hidden && !one('#report').hidden")


def test_the_timeline_follows_an_instance(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/timeline")
    browser.until(f"{GANTT}?.bars().some(bar => bar[0] === arguments[0] && bar[4] === 'running')", jobs["runs"])
    browser.said("#starts tbody", jobs["waits"])


def test_messages_are_followed_and_paused(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/groups")
    browser.said("[data-key=default]", "acquired")
    browser.button("Follow").click()
    browser.until("all('.messages li').length")  # the page's own questions, each second
    browser.button("Pause").click()
    browser.until("button('Resume', 'body')")
    kept = browser.script("all('.messages li').length")
    assert browser.grave_faults() == []
    assert browser.script("all('.messages li').length") == kept
    browser.button("Resume").click()
    browser.until("all('.messages li').length > arguments[0]", kept)
    browser.button("Follow").click()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_simulation_is_a_page_of_its_own(browser: Any, tmp_path: Path, theme: str) -> None:
    trace = generate(jobs=60, procs=16, seed=3, load=1.1)
    results = [run(trace, policy, placements=True) for policy in ("fifo", "easy")]
    results[0].label = MARKUP
    browser.theme(theme)
    open_file(browser, tmp_path, study_page(drawing(trace, results)))
    browser.until("all('canvas.gantt').length === 2 && all('.waits svg').length === 3")
    assert browser.script("all('#figures thead th').map(h => h.textContent)") == ["Figure", MARKUP, "easy"]
    counts = browser.script("all('canvas.gantt').map(c => new Set(c.gantt.rectangles.owner).size)")
    assert counts == [60, 60]
    browser.find("canvas.gantt").send_keys("+")
    browser.until("!all('canvas.gantt')[1].gantt.whole")
    browser.script("one('.slider input').value = 100, one('.slider input').dispatchEvent(new Event('input'))")
    browser.said(".machine .note", "in use")
    assert browser.grave_faults() == []
