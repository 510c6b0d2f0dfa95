"""Jobs in a real browser: the live table, its filters and order, one job, and what is done to it."""

from __future__ import annotations

from typing import Any

from selenium.webdriver.common.keys import Keys

from .conftest import MARKUP

NAMES = "all('#jobs-table tbody tr').map(r => r.children[3].textContent)"


def test_names_are_text_and_each_job_that_waits_says_why(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/jobs")
    browser.until(f"{NAMES}.length === 3")
    assert set(browser.script(NAMES)) == {"runs", "held", MARKUP}
    row = f"#jobs-table tr[data-key='{jobs['waits']}']"
    assert "needs 64 nodes" in browser.text(f"{row} .reason") or "starts in" in browser.text(f"{row} .reason")
    assert browser.text(f"#jobs-table tr[data-key='{jobs['held']}'] .reason") == "held"
    assert browser.script("all('main script').length") == 0


def test_the_table_follows_row_by_row_and_keeps_the_focus(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/jobs")
    row = f"#jobs-table tr[data-key='{jobs['runs']}']"
    browser.find(f"{row} a")
    browser.script(f'(one("{row}").mine = true, one("{row} a").focus())')
    jobid = browser.site.submit("comes", ["sleep", "600"], duration_s=3600.0)
    browser.until(f"{NAMES}.includes('comes')")
    assert browser.script(f'one("{row}").mine && focused().textContent') == jobs["runs"]
    browser.site.cancel(jobid)
    browser.until(f"!{NAMES}.includes('comes')")


def test_filters_and_order_are_kept_in_the_address(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/jobs")
    browser.until(f"{NAMES}.length >= 3")
    browser.find("th[data-sort=name] button").click()
    names = browser.script(NAMES)
    assert names == sorted(names)
    browser.find("input[name=text]").send_keys("hel*", Keys.ENTER)
    browser.until(f"{NAMES}.join() === 'held'")
    assert browser.driver.current_url.endswith("/jobs?text=hel*#sort=name")
    browser.open("/jobs?states=inactive&text=ended")
    browser.until(f"{NAMES}.join() === 'ended'")
    assert "failed" in browser.text("#jobs-table tbody")


def test_a_job_shows_its_record_events_and_output_as_text(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/jobs?states=active,inactive")
    browser.find(f"tr[data-key='{jobs['ended']}'] a").click()
    browser.said("#output .stderr", "err")
    assert f"out {MARKUP}" in browser.text("#output")
    assert "3" in browser.script("all('#record div').find(d => d.textContent.startsWith('exit'))?.textContent")
    assert "submit" in browser.text("#events")
    assert browser.script("all('#job-actions button').length") == 0


def test_a_job_is_held_released_given_an_urgency_and_canceled(browser: Any, jobs: dict[str, str]) -> None:
    jobid = browser.site.submit("acted-on", ["true"], nodes=64, cores_per_task=4, duration_s=600.0)
    browser.open(f"/jobs/{jobid}")
    assert "ahead of it in the queue" in browser.until("one('#why-said').textContent")
    browser.button("Hold…").click()
    browser.agree()
    browser.button("Release…").click()
    assert "urgency 0" in browser.text("#job-answer")
    browser.agree()
    browser.button("Urgency…").click()
    browser.agree(urgency="31")
    browser.said("#record", "31")
    browser.button("Cancel…").click()
    browser.find("dialog")
    browser.keys(Keys.ESCAPE)
    browser.until("!one('dialog')")
    browser.button("Cancel…").click()
    browser.agree()
    browser.until("one('#job-state').textContent === 'canceled'")
    browser.said("#events", "on the page")
