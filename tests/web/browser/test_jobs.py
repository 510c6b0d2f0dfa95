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
    reason = browser.until("one(arguments[0])?.textContent", f"{row} .reason")  # the answer to a question of the page
    assert "needs 64 nodes" in reason or "starts in" in reason
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
    browser.open("/jobs")
    browser.find("details.more summary").click()
    browser.find("input[name=ids]").send_keys(jobs["held"], Keys.ENTER)
    browser.until(f"{NAMES}.join() === 'held'")
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


def test_several_jobs_are_held_and_canceled_at_once(browser: Any, jobs: dict[str, str]) -> None:
    for number in range(3):
        browser.site.submit(f"several{number}", ["true"], nodes=64, cores_per_task=4, duration_s=600.0)
    browser.open("/jobs?text=several")
    browser.until(f"{NAMES}.length === 3")
    assert not browser.script("button('Cancel…', '#jobs-actions')")
    boxes = browser.driver.find_elements("css selector", "#jobs-table tbody input")
    for box in boxes[:2]:
        box.click()
    browser.said("#jobs-chosen", "2 jobs chosen")
    browser.button("Hold…", "#jobs-actions").click()
    browser.agree()
    browser.said("#jobs-actions .answer", "urgency 0 for 2 jobs")
    browser.until("all('#jobs-table tbody tr').filter(row => row.textContent.includes('held')).length === 2")
    assert browser.script("all('#jobs-table input:checked').length") == 0
    for box in boxes:
        box.click()
    browser.button("Cancel…", "#jobs-actions").click()
    browser.agree()
    browser.until(f"{NAMES}.length === 0")


def test_an_exception_is_raised(browser: Any, jobs: dict[str, str]) -> None:
    jobid = browser.site.submit("raised-on", ["true"], nodes=64, cores_per_task=4, duration_s=600.0)
    browser.open(f"/jobs/{jobid}")
    browser.button("Raise…").click()
    browser.agree(type="license", note="none is left")
    browser.until("one('#job-state').textContent === 'failed'")
    browser.said("#events", "none is left")


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
