"""Timeline, groups, shares, history and the page of a simulation in a real browser: what they draw, say and let choose.

Most tests show a view's own template, module and styles as a page of its own, with data that an instance would give;
the last ones follow a real instance.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fluxsched.sim import generate, run
from fluxsched.sim.report import drawing
from fluxsched.sim.result import queue_steps
from fluxsched.web.standalone import study_page

from .conftest import MARKUP, NOW_S, PHONE, Show, open_file

GANTT = "one('canvas.gantt').gantt"


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


def test_jobs_of_one_user_are_coloured_by_what_tells_them_apart(browser: Any, show: Show) -> None:
    bars = [[f"f{at}", str(at), NOW_S, NOW_S + 60, "running", 1, "ann", "", name] for at, name in enumerate("abc")]
    show("timeline", timeline(bars=bars))
    browser.until("all('.legend button').map(b => b.textContent).join() === 'a,b,c'")
    assert "name" in browser.script("all('.filters select').map(s => s.value)")


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
         "acquirer": MARKUP, "states": {"allocated": 7, "drained": 3}},
        {"name": "lab", "targets": "10", "leaving": "", "incoming": "8-9", "acquired": False, "states": {}},
    ]  # fmt: skip
    queues = [{"name": "batch", "group": "default", "enabled": True, "started": False, "waiting": 7, "running": 3}]
    holders = {"default": [["fA", "8", 0, "ann", MARKUP], ["fB", "9", NOW_S + 90, "bob", "short"]]}
    show("groups", {"now": NOW_S, "groups": groups, "queues": queues, "holders": holders})
    browser.said("[data-key=default]", f"10 targets7 allocated3 drained2 leavingAcquired by{MARKUP}")
    widths = "all('[data-key=default] .flow i').map(each => each.className + ' ' + each.style.width)"
    assert browser.script(widths) == ["state-allocated 70%", "state-drained 30%"]
    browser.said("[data-key=default]", "3 running, 7 waiting, stopped")
    browser.said("[data-key=default]", f"Leaves when these end: {MARKUP} (ann, no limit)")
    browser.said("[data-key=default]", "short (bob, at most 1m 30s more)")
    browser.said("[data-key=lab]", "2 awaited")
    assert browser.grave_faults() == []


def test_shares_are_a_tree_of_accounts(browser: Any, show: Show) -> None:
    def account(path: list[str], user: bool, usage: float, share: float) -> dict[str, Any]:
        return {"path": path, "user": user, "active": True, "weight": 1.0, "fair_usage": share, "usage": usage,
                "signal": usage, "cap": 80 if user else None, "firm_usage": usage / 2, "budget_left": None,
                "waiting": 2, "running": 1, "preempted": 0}  # fmt: skip

    accounts = [account(["phys"], False, 60, 50), account(["phys", MARKUP], True, 60, 25)]
    accounts.append(account(["bio"], False, 0, 50))
    settings = {"signal": "usage", "half_life": 7200.0, "shares": "active", "capacity": 100.0}
    show("shares", {"accounts": accounts, "group": "default", "groups": ["default"], **settings})
    rows = browser.until("all('#accounts tbody tr').length === 3 && all('#accounts tbody tr').map(r => r.textContent)")
    assert [row[:4] for row in rows] == ["bio1", "phys", MARKUP[:4]]
    labels = browser.script("all('#accounts .bar').map(b => b.getAttribute('aria-label'))")
    assert labels[2] == ("uses 60% of the machine, its share is 25%, jobs that cannot be preempted use 30% of 80%")
    assert browser.script("all('#accounts td.cap').map(cell => cell.textContent)") == ["", "", "30% of 80%"]
    assert browser.script("getComputedStyle(one('#accounts th.budget')).display") == "none"
    assert browser.grave_faults() == []
    show("shares", {"accounts": None, "why": "easy keeps no accounts", "group": "", "groups": []})
    browser.said("#shares-note", "easy keeps no accounts")


def history(steps: int) -> dict[str, Any]:
    t = [NOW_S - 60 * (steps - at) for at in range(steps)]
    row = {"name": MARKUP, "jobs": 5, "results": {"completed": 4, "failed": 1}, "core_seconds": 7200.0,
           "gpu_seconds": 0.0, "gpu_busy_seconds": 900.0,
           "gpu_sampled_seconds": 3600.0, "wait_mean": 61.0, "wait_p50": None, "wait_p95": 90.0}  # fmt: skip
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
    browser.said(".panel-chart figcaption", "Cores in usein use 96usable 96")
    assert browser.script("all('.panel-chart:first-child .shade').length") == 1
    assert "last 96" in browser.script("one('.panel-chart svg').getAttribute('aria-label')")
    assert browser.script("all('.panel-chart .key.dotted').map(key => key.firstChild.textContent).join()") == "usable"
    top = (
        "Math.min(...all('.panel-chart')[3].querySelector('.line.hue-2').getAttribute('d').match(/(?<=[V ])[0-9.]+/g))"
    )
    assert browser.script(top) > browser.script(
        "Number(all('.panel-chart')[3].querySelector('.cursor').getAttribute('y1'))"
    )
    browser.find(".panels").send_keys("\ue012")
    browser.until("one('.cursor').getAttribute('visibility') === 'visible'")
    assert ":" in browser.text(".panel-chart .when")
    report = browser.script("[...one('#report tbody tr').children].map(c => c.textContent)")
    assert report == [MARKUP, "5", "2.0", "", "0", "25%", "1m 1s", "", "1m 30s", "1"]
    browser.said("#outages tbody", "3-108drained")
    assert browser.script("all('#steps tbody tr').length") == 30
    keys = "all('.panel-chart:first-child .key').map(key => key.getBoundingClientRect().top)"
    assert browser.script(f"new Set({keys}).size") == 1, "one line"
    assert browser.grave_faults() == []


def test_a_part_of_nothing_is_not_known_and_sorted_last(browser: Any, show: Show) -> None:
    shown = history(2)
    [row] = shown["report"]["rows"]
    shown["report"]["rows"] = [
        {**row, "name": "none", "gpu_busy_seconds": 0.0, "gpu_sampled_seconds": 0.0}, row,
        {**row, "name": "idle", "gpu_busy_seconds": 0.0},
    ]  # fmt: skip
    show("history", shown)
    busy = "all('#report tbody tr').map(row => row.children[5].textContent).join()"
    browser.until(f"{busy} === ',25%,0%'")
    browser.script("all('#report th button')[4].click()")
    browser.until(f"one('#report th:nth-child(6)').ariaSort === 'ascending' && {busy} === '0%,25%,'")


COLOURS_OF_PICTURE = """
const [selector, done] = arguments, make = URL.createObjectURL;
HTMLAnchorElement.prototype.click = () => {};
URL.createObjectURL = blob => (createImageBitmap(blob).then(picture => {
  const context = new OffscreenCanvas(picture.width, picture.height).getContext('2d');
  context.drawImage(picture, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, picture.width, picture.height).data.buffer);
  done([picture.width, picture.height, new Set(pixels).size]);
}), make.call(URL, blob));
document.querySelector(selector).click();
"""


def test_hours_of_many_days_are_coloured_cells(browser: Any, show: Show) -> None:
    steps = 60
    shown = history(steps)
    shown["samples"]["t"] = [NOW_S - 3600.0 * (steps - at) for at in range(steps)]
    shown["samples"]["cores"]["allocated"] = [float(at) for at in range(steps)]
    shown["samples"]["cores"]["free"] = [96.0 - at for at in range(steps)]
    show("history", shown)
    browser.find("#heat summary").click()
    browser.until("all('#heat tbody td[title]').length === arguments[0]", steps)
    assert browser.script("all('#heat thead th').length") == 25
    last = browser.script("[...all('#heat tbody tr:first-child td[title]')].at(-1).title")
    assert last.endswith(": 46%")  # 59 of 128 cores
    width, height, colours = browser.driver.execute_async_script(COLOURS_OF_PICTURE, "#heat .picture")
    assert width >= browser.script("one('#hours').clientWidth") > 0 < height
    assert colours > steps / 2, "each cell has the colour that is seen"
    name, lines = browser.saved("#heat .csv")
    assert (name, lines[0][:2]) == ("hours.csv", ["Day", "00:00"])
    assert "46%" in lines[1]
    browser.script("one('#heat select').value = 'drained', one('#heat select').dispatchEvent(new Event('change'))")
    browser.said("#heat .note", "Cores drained, of all: from nothing to 100%")
    assert (
        browser.script("new Set(all('#heat td[title]').map(cell => cell.style.getPropertyValue('--level'))).size") == 1
    )
    assert browser.grave_faults() == []


def test_days_of_queues_are_coloured_cells(browser: Any, show: Show) -> None:
    """From the first day with any use; of the last one what has passed of it; queues that are gone are left out."""
    shown, days = history(1), [NOW_S - 86_400.0 * at for at in (3.5, 2.5, 1.5, 0.5)]
    row = {**shown["report"]["rows"][0], "name": MARKUP, "cores": 10, "days": [0.0, 86_400.0, 864_000.0, 216_000.0]}
    gone = {**row, "name": "gone", "cores": None}
    shown["report"] = {"by": "queue", "rows": [row, gone], "days": days, "until": NOW_S, "left_out": 0}
    show("history", shown)
    browser.find("#heat summary").click()
    browser.script("one('#heat select').value = 'queue', one('#heat select').dispatchEvent(new Event('change'))")
    browser.said("#heat .note", "Cores in use, by queue: from nothing to 100%")
    assert browser.script("all('#heat tbody tr').map(row => [...row.cells].map(cell => cell.textContent))") == [
        [MARKUP, "10%", "100%", "50%"]
    ]
    assert browser.script("all('#heat td').map(cell => cell.title)")[1].endswith(": 100%")
    assert browser.script("location.hash") == "#heat=queue"
    assert browser.grave_faults() == []


def test_charts_are_saved_as_pictures_in_their_colours(browser: Any, show: Show) -> None:
    show("history", history(30))
    browser.until("all('.panel-chart svg').length === 5")
    text = browser.driver.execute_async_script(
        "const done = arguments[0], make = URL.createObjectURL;"
        "URL.createObjectURL = blob => (blob.text().then(done), make.call(URL, blob));"
        "document.querySelector('.picture').click();"
    )
    root = ElementTree.fromstring(text)
    assert next(each.text for each in root.findall("{*}text")) == "Cores in use · in use · usable"
    lines = [each for each in root.iter("{http://www.w3.org/2000/svg}path") if each.get("fill") == "none"]
    assert lines
    assert all(each.get("stroke").startswith("rgb(") for each in lines)
    assert len(root.findall("{*}svg")) == 5


def test_the_timeline_is_saved_as_a_picture_and_its_window_stays_in_the_address(browser: Any, show: Show) -> None:
    show("timeline", timeline())
    browser.until(f"{GANTT}.bars().length")
    size = browser.driver.execute_async_script(
        "const done = arguments[0], make = URL.createObjectURL;"
        "URL.createObjectURL = blob => (createImageBitmap(blob).then(one => done([one.width, one.height])),"
        "make.call(URL, blob));"
        "document.querySelector('.picture').click();"
    )
    assert size == browser.script("[one('canvas.gantt').width, one('canvas.gantt').height]")
    browser.script(f"{GANTT}.zoom(0.5)")
    hash_ = browser.until("location.hash.startsWith('#window=') && location.hash")
    window = browser.script(f"{GANTT}.window")
    assert [float(part) for part in hash_.partition("=")[2].replace("%2C", ",").split(",")][:2] == [
        pytest.approx(window["begin"], abs=1), pytest.approx(window["end"], abs=1)
    ]  # fmt: skip
    browser.driver.refresh()
    browser.until(f"{GANTT}.bars().length && !{GANTT}.whole")
    assert browser.script(f"{GANTT}.window.begin") == pytest.approx(window["begin"], abs=1)
    browser.script(f"{GANTT}.reset()")
    browser.until("location.hash === ''")


def test_of_short_jobs_the_time_about_now_is_shown_unless_another_is_chosen(browser: Any, show: Show) -> None:
    """All jobs of the last hours are shown on demand."""
    bars = [[f"f{at}", "0", NOW_S - 60 * at - 20, NOW_S - 60 * at, "ended", 1, "ann", "", "short"] for at in range(60)]
    show("timeline", timeline(bars=bars, begin=NOW_S - 3600, end=NOW_S + 14_400))
    window = browser.until(f"{GANTT}.bars().length && !{GANTT}.whole && {GANTT}.window")
    assert NOW_S - 1200 < window["begin"] < window["end"] < NOW_S + 1200
    browser.button("Show all").click()
    browser.until(f"{GANTT}.whole")


def test_phases_of_one_outage_are_one_row(browser: Any, show: Show) -> None:
    phases = [["3-10", "draining", NOW_S - 600, NOW_S - 540, "fan"], ["3-10", "drained", NOW_S - 540, None, "fan"]]
    show("history", history(30) | {"intervals": phases})
    browser.said("#outages tbody", "3-108draining, drained")
    assert browser.script("all('#outages tbody tr').length") == 1


def test_a_guest_of_private_jobs_sees_the_own_report(browser: Any, show: Show) -> None:
    show("history", history(1) | {"samples": None, "intervals": None})
    browser.said(".note", "not shown to guests")
    assert browser.script("one('#steps').hidden && one('#outages').hidden && !one('#report').hidden")


def test_the_timeline_follows_an_instance(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/timeline")
    browser.until(f"{GANTT}?.bars().some(bar => bar[0] === arguments[0] && bar[4] === 'running')", jobs["runs"])
    browser.said("#starts tbody", jobs["waits"])


def test_the_queues_follow_an_instance_and_hold_still(browser: Any, web_site: Any, jobs: dict[str, str]) -> None:
    browser.open("/queues")
    browser.said("#queues-table tbody", "held ")
    held = int(browser.script("/held (\\d+)/.exec(one('#queues-table tbody').textContent)[1]"))
    browser.said("#queues-table tbody", jobs["waits"])
    row = browser.until("all('#queues-table tbody tr').length === 1 && one('#queues-table tbody tr')")
    browser.driver.execute_script("arguments[0].querySelectorAll('a')[1].focus()", row)
    more = web_site.submit("more", ["true"], urgency=0)
    browser.said("#queues-table tbody", f"held {held + 1}")
    assert browser.script("one('#queues-table tbody tr') === arguments[0] && arguments[0].contains(focused())", row)
    web_site.cancel(more)
    browser.keys("g", "j")
    browser.until("document.body.dataset.view === 'jobs'")
    browser.keys("g", "q")
    browser.until("document.body.dataset.view === 'queues' && isLive()")
    browser.size(PHONE)
    assert browser.script("getComputedStyle(one('#queues-table td'), '::before').content") == '"Group"'
    assert browser.script("document.documentElement.scrollWidth") == PHONE[0]
    assert browser.grave_faults() == []


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
    trace.header["UnixStartTime"] = str(int(NOW_S))
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
    seen = browser.until("location.hash.startsWith('#window=') && all('canvas.gantt')[1].gantt.window")
    browser.driver.refresh()
    browser.until("all('.waits svg').length === 3")
    assert browser.script("all('canvas.gantt').map(c => c.gantt.window)") == [pytest.approx(seen, abs=0.01)] * 2
    steps = queue_steps(results[0].jobs)
    crowded = max(steps, key=lambda step: step[1])[0] / results[0].end_s
    assert abs(int(browser.script("one('.slider input').value")) / 1000 - crowded) < 0.05
    browser.script("one('.slider input').value = 100, one('.slider input').dispatchEvent(new Event('input'))")
    browser.said(".machine figcaption .note", "in use")
    assert browser.text(".slider output").startswith("Jan 15, 2027")
    assert browser.grave_faults() == []
