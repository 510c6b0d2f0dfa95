"""What all views share in a real browser: accessibility, keys, colours, a phone, a lost instance."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from fluxsched.views.words import span_text

from .conftest import DESKTOP, MARKUP, PHONE

WATCH_LOST = """
const lost = document.getElementById('lost');
window.said = [];
new MutationObserver(() => window.said.push(lost.textContent)).observe(lost, {childList: true, subtree: true});
"""
OF_COLOURS = ["color-contrast", "link-in-text-block"]
VIEWS = ("machine", "jobs", "queues", "timeline", "groups", "shares", "history")


def paths(jobs: dict[str, str]) -> list[str]:
    return [*(f"/{view}" for view in VIEWS), f"/jobs/{jobs['waits']}"]


@pytest.mark.slow
def test_each_view_has_no_grave_fault_and_fits_a_phone(browser: Any, jobs: dict[str, str]) -> None:
    """Each is loaded once: a load takes longer than what is looked at."""
    found = {}
    for path in paths(jobs):
        browser.open(path)
        found[path, "light"] = browser.grave_faults()
        browser.theme("dark")
        found[path, "dark"] = browser.grave_faults(OF_COLOURS)  # all else is the same in both
        browser.size(PHONE)
        assert browser.script("document.documentElement.scrollWidth") == PHONE[0], path
    assert {at: faults for at, faults in found.items() if faults} == {}


OVERLAPPING = """[...document.querySelectorAll('.jobs tbody td')].filter(td =>
  td.scrollWidth > td.clientWidth + 1 && getComputedStyle(td).overflow === 'visible').map(each => each.className)"""


def test_on_a_phone_cells_of_jobs_do_not_overlap_and_the_present_view_is_seen(
    browser: Any, jobs: dict[str, str]
) -> None:
    browser.open("/jobs", PHONE)
    browser.until("all('.jobs tbody tr').length")
    assert browser.script(OVERLAPPING) == []
    browser.open("/history", PHONE)
    browser.until("one('nav a[aria-current]').getBoundingClientRect().right <= innerWidth")


def test_durations_are_written_as_by_the_server(browser: Any, jobs: dict[str, str]) -> None:
    durations_s = [
        0.0, 0.004, 0.25, 9.99, 12.4, 12.5, 59.9, 90.0, 90.5, 3599.6, 3600.0, 8388.0, 86399.0, 86399.6, 400_000.0, 9e7
    ]  # fmt: skip
    browser.open("/jobs")
    found = browser.driver.execute_async_script(
        "const [all, done] = arguments; import('/static/base/words.js').then(w => done(all.map(w.duration)))",
        durations_s,
    )
    assert found == [span_text(duration_s) for duration_s in durations_s]


def test_commands_are_written_as_a_shell_takes_them(browser: Any, jobs: dict[str, str]) -> None:
    words = ["sh", "-c", "echo 'a b'; exit 3", "", "--x=1", "./a", "~", "$y"]
    browser.open("/jobs")
    script = "const [words, done] = arguments; import('/static/base/words.js').then(w => done(w.commandLine(words)))"
    assert browser.driver.execute_async_script(script, words) == shlex.join(words)
    browser.open(f"/jobs/{jobs['ended']}")
    browser.said("#view", f"sh -c 'echo '\"'\"'out {MARKUP}")


def test_views_are_reached_by_keys(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/machine")
    browser.keys("g", "j")
    browser.until("document.body.dataset.view === 'jobs' && isLive()")
    browser.keys("/")
    assert browser.script("focused().name") == "text"
    browser.keys(Keys.ESCAPE, "?")
    assert "Keyboard" in browser.find("dialog").text
    browser.keys(Keys.ESCAPE)
    browser.until("!one('dialog')")
    browser.keys("g", "m")
    browser.until("document.body.dataset.view === 'machine' && isLive()")
    browser.keys(Keys.TAB)
    assert browser.script("focused().textContent") == "Skip to the content"
    browser.keys(Keys.ENTER)
    browser.until("location.hash === '#main'")


def test_colours_are_chosen_and_remembered(browser: Any) -> None:
    browser.open("/machine")
    light = browser.script("getComputedStyle(document.body).backgroundColor")
    browser.find("#theme").click()
    browser.find("#theme").click()
    dark = browser.script("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    browser.open("/jobs")
    assert browser.script("getComputedStyle(document.body).backgroundColor") == dark
    browser.find("#theme").click()
    assert browser.script("getComputedStyle(document.body).backgroundColor") == light


def test_figures_stand_in_the_bar_and_follow(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/jobs")
    before = sum(queue["pending"] for queue in browser.site.rpc("instance.metrics")["queues"])
    browser.until("one('[data-figure=waiting]').textContent === arguments[0]", str(before))
    jobid = browser.site.submit("more", ["true"], nodes=64, cores_per_task=4, duration_s=600.0)
    browser.until("one('[data-figure=waiting]').textContent === arguments[0]", str(before + 1))
    browser.site.cancel(jobid)


SHIFTS = """
window.shift = 0;
const sum = list => list.getEntries().forEach(each => (window.shift += each.value));
new PerformanceObserver(sum).observe({type: 'layout-shift'});
const style = new CSSStyleSheet();
style.replaceSync('#view > * { animation: none !important }');
document.adoptedStyleSheets = [style];
"""
"""Sums what has jumped; what waits for data waits for as long as it takes."""
SHIFT_MAX = 0.1  # more is felt: web.dev/cls
SEEN_MS = 700


GLIDES = """
window.glides = 0;
const animate = Element.prototype.animate;
Element.prototype.animate = function (...all) {
  window.glides += this.tagName === 'TR';
  return animate.apply(this, all);
};
"""


def test_rows_glide_when_a_job_comes(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/jobs")
    motion = {"name": "prefers-reduced-motion", "value": "no-preference"}  # all other tests are without
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [motion]})
    browser.until("document.querySelector('#view.live') && document.querySelectorAll('#jobs-table .pill').length > 1")
    browser.driver.execute_script(GLIDES)
    jobid = browser.site.submit("comes", ["sleep", "60"], urgency=31)
    browser.until("window.glides > 0")
    browser.site.cancel(jobid)


@pytest.mark.slow
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_nothing_jumps_while_a_view_is_loaded(browser: Any, jobs: dict[str, str], size: tuple[int, int]) -> None:
    script = browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SHIFTS})
    try:
        found = {}
        for path in paths(jobs):
            browser.open(path, size)
            browser.until("performance.now() > arguments[0]", SEEN_MS)
            found[path] = browser.script("window.shift")
    finally:
        browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    assert {path: shift for path, shift in found.items() if shift >= SHIFT_MAX} == {}


@pytest.mark.slow
def test_a_notice_is_a_banner_on_every_view_and_goes_when_it_is_removed(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/jobs")
    browser.site("notice", "--", MARKUP)
    try:
        browser.until("one('#notices[role=status] .notice')?.textContent === arguments[0]", MARKUP)
        assert browser.grave_faults() == []
        browser.open("/machine", PHONE)
        assert browser.find(".notice").text == MARKUP
        assert browser.script("document.documentElement.scrollWidth") == PHONE[0]
    finally:
        browser.site("notice", "--clear")
    browser.until("!one('.notice')")


@pytest.mark.slow
def test_a_page_whose_instance_restarts_says_so_and_comes_back(quiet_browser: Any, jobs: dict[str, str]) -> None:
    browser = quiet_browser
    browser.open("/jobs")
    browser.driver.execute_script(WATCH_LOST)
    browser.site("restart")
    browser.until("window.said.some(t => t.includes('does not answer'))")
    browser.until("one('#lost').hidden && isLive()")
    browser.said("#jobs-table tbody", "runs")


@pytest.mark.slow
def test_a_wall_has_figures_and_no_controls(browser: Any, jobs: dict[str, str]) -> None:
    seen = "all('button, input, select, nav').filter(each => each.offsetParent && !each.closest('.legend, thead'))"
    for view in VIEWS:
        browser.open(f"/{view}?wall")
        browser.find(".figures .value")
        assert browser.script(f"{seen}.length") == 0, view
        assert browser.script("location.search") == "?wall", view
        assert view != "machine" or browser.until("map().scale > 64")  # more than is wanted beside other things
        assert browser.grave_faults() == [], view
    browser.keys("g", "w")
    assert browser.script("location.search") == "?wall"
    browser.keys("w")
    browser.until("isLive() && !location.search && one('nav').offsetParent")
    browser.keys("w")
    browser.until("isLive() && location.search === '?wall=1' && !one('nav').offsetParent")


def test_the_address_of_a_view_is_copied(browser: Any, jobs: dict[str, str]) -> None:
    """Where the browser allows it, else shown in a field."""
    browser.open("/timeline?since=-900")
    browser.script(
        "void Object.defineProperty(navigator, 'clipboard', {value: {writeText: async t => (window.copied = t)}})"
    )
    browser.find("#link").click()
    browser.said("#announce", "copied")
    assert browser.script("window.copied === location.href && window.copied.endsWith('/timeline?since=-900')")
    browser.script("void (navigator.clipboard.writeText = async () => { throw new Error('no') })")
    browser.find("#link").click()
    assert str(browser.find("dialog input").get_attribute("value")).endswith("/timeline?since=-900")
    browser.button("Close", "dialog").click()
