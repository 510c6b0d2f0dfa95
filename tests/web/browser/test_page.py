"""What all views share in a real browser: accessibility, keys, colours, a phone, a lost instance."""

from __future__ import annotations

from typing import Any

from selenium.webdriver.common.keys import Keys

from fluxsched.views.words import duration_text

from .conftest import PHONE

WATCH_LOST = """
const lost = document.getElementById('lost');
window.said = [];
new MutationObserver(() => window.said.push(lost.textContent)).observe(lost, {childList: true, subtree: true});
"""
OF_COLOURS = ["color-contrast", "link-in-text-block"]
VIEWS = ("machine", "jobs", "timeline", "groups", "shares", "history")


def paths(jobs: dict[str, str]) -> list[str]:
    return [*(f"/{view}" for view in VIEWS), f"/jobs/{jobs['waits']}"]


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


def test_durations_are_written_as_everywhere_else(browser: Any, jobs: dict[str, str]) -> None:
    durations_s = [0.0, 0.004, 0.25, 9.99, 12.5, 59.9, 90.0, 3600.0, 8388.0, 86399.0, 400_000.0, 9e7]
    browser.open("/jobs")
    found = browser.driver.execute_async_script(
        "const [all, done] = arguments; import('/static/base/words.js').then(w => done(all.map(w.duration)))",
        durations_s,
    )
    assert found == [duration_text(duration_s) for duration_s in durations_s]


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
    browser.until("document.body.dataset.view === 'machine'")
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
    before = int(browser.until("one('[data-figure=waiting]')?.textContent"))
    jobid = browser.site.submit("more", ["true"], nodes=64, cores_per_task=4, duration_s=600.0)
    browser.until("one('[data-figure=waiting]').textContent === arguments[0]", str(before + 1))
    browser.site.cancel(jobid)


def test_a_page_whose_instance_restarts_says_so_and_comes_back(quiet_browser: Any, jobs: dict[str, str]) -> None:
    browser = quiet_browser
    browser.open("/jobs")
    browser.driver.execute_script(WATCH_LOST)
    browser.site("restart")
    browser.until("window.said.some(t => t.includes('does not answer'))")
    browser.until("one('#lost').hidden && isLive()")
    browser.said("#jobs-table tbody", "runs")
