"""Jobs in a real browser: the live table, its filters and order, one job, and what is done to it."""

from __future__ import annotations

from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from .conftest import MARKUP, NOW_S

NAMES = "all('#jobs-table tbody tr').map(r => r.children[3].textContent)"


def test_names_are_text_and_each_job_that_waits_says_why(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/jobs")
    browser.until(f"{NAMES}.length === 3")
    assert set(browser.script(NAMES)) == {"runs", "held", MARKUP}
    row = f"#jobs-table tr[data-key='{jobs['waits']}']"
    reason = browser.until("one(arguments[0])?.textContent", f"{row} .reason")  # the answer to a question of the page
    assert "needs 64 nodes" in reason or "starts in" in reason
    browser.said(f"#jobs-table tr[data-key='{jobs['held']}'] .reason", "held")
    assert browser.script("all('main script').length") == 0


def test_the_table_follows_row_by_row_and_keeps_its_elements(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/jobs")
    row = f"#jobs-table tr[data-key='{jobs['runs']}']"
    browser.find(f"{row} a")
    browser.script(f'one("{row}").mine = true')
    jobid = browser.site.submit("comes", ["sleep", "600"], duration_s=3600.0)
    browser.until(f"{NAMES}.includes('comes')")
    assert browser.script(f'one("{row}").mine')
    browser.site.cancel(jobid)
    browser.until(f"!{NAMES}.includes('comes')")


PLACES = "all('#jobs-table tbody tr').map(r => [r.dataset.key, r.getBoundingClientRect().top].join())"


def rest_on(browser: Any, selector: str) -> None:
    webdriver.ActionChains(browser.driver, duration=0).move_to_element(browser.find(selector)).perform()


def test_rows_hold_still_under_a_pointer_and_while_one_is_ticked(browser: Any, jobs: dict[str, str]) -> None:
    leaves = browser.site.submit("leaves", ["sleep", "600"], duration_s=3600.0)
    browser.open("/jobs")
    browser.until(f"{NAMES}.includes('leaves')")
    rest_on(browser, f"#jobs-table tr[data-key='{jobs['runs']}'] .name")
    before = browser.script(PLACES)
    comes = browser.site.submit("comes", ["sleep", "600"], duration_s=3600.0)
    browser.site.cancel(leaves)
    browser.said(".jobs-said .news", "1 new job: show")
    browser.until("one(arguments[0])?.classList.contains('gone')", f"#jobs-table tr[data-key='{leaves}']")
    assert browser.script(PLACES) == before
    assert browser.script("one(arguments[0]).disabled", f"#jobs-table tr[data-key='{leaves}'] input")
    browser.find(f"#jobs-table tr[data-key='{jobs['runs']}'] input").click()
    rest_on(browser, "h1, .brand")
    assert browser.script(PLACES) == before
    browser.find(".jobs-said .news").click()
    browser.until(f"{NAMES}.includes('comes') && !{NAMES}.includes('leaves')")
    assert browser.script("one(arguments[0]).checked", f"#jobs-table tr[data-key='{jobs['runs']}'] input")
    browser.find(f"#jobs-table tr[data-key='{jobs['runs']}'] input").click()
    browser.site.cancel(comes)
    rest_on(browser, ".brand")
    browser.until(f"!{NAMES}.includes('comes')")


def test_a_refused_filter_is_said_by_its_field_and_changes_nothing(quiet_browser: Any, jobs: dict[str, str]) -> None:
    browser = quiet_browser
    browser.open("/jobs")
    browser.until(f"{NAMES}.length >= 3")
    field = browser.find("input[name=targets]")
    field.send_keys("fake[0-3]]x", Keys.ENTER)
    browser.said("#filter-fault", "one pair of brackets")
    assert browser.script("[...document.querySelectorAll('[aria-invalid=true]')].map(f => f.name)") == ["targets"]
    assert browser.script("isLive() && one('#lost').hidden && location.search === ''")
    comes = browser.site.submit("still-live", ["sleep", "600"], duration_s=3600.0)
    browser.until(f"{NAMES}.includes('still-live')")
    browser.site.cancel(comes)
    field.send_keys(Keys.BACKSPACE, Keys.BACKSPACE, Keys.ENTER)
    browser.until("location.search.includes('fake')")
    assert browser.script("one('#filter-fault').hidden && !one('[aria-invalid=true]')")
    browser.open("/jobs?targets=node%5B", is_live=False)
    browser.find("main a[href='/jobs']").click()
    browser.until("one('#filters')")


def test_what_runs_is_first_and_what_waits_has_its_size_and_limit(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/jobs?max_entries=2")
    browser.said("#jobs-note", "1–2 of ")
    assert browser.script(f"{NAMES}[0]") == "runs"
    browser.open("/jobs")
    browser.until(f"{NAMES}.length >= 3")
    row = f"#jobs-table tr[data-key='{jobs['waits']}']"
    cells = browser.script("[...one(arguments[0]).cells].slice(7, 12).map(c => c.textContent)", row)
    assert [cells[0], cells[1], cells[3], cells[4]] == ["64", "256", "", "10m"]
    assert cells[2], "how long it has waited"
    assert browser.script("one(arguments[0]).classList.contains('asks')", row)


def test_filters_and_order_are_kept_in_the_address(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/jobs")
    browser.until(f"{NAMES}.length >= 3")
    browser.find("th.name button").click()
    browser.until("one('th.name').getAttribute('aria-sort') === 'ascending'")
    names = browser.script(NAMES)
    assert names == sorted(names)
    browser.find("input[name=text]").send_keys("hel*", Keys.ENTER)
    browser.until(f"{NAMES}.join() === 'held'")
    assert browser.driver.current_url.endswith("/jobs?order=name&text=hel*")
    browser.script("one('#jobs-csv').addEventListener('click', event => event.preventDefault())")
    browser.find("#jobs-csv").click()
    rows = browser.script("fetch(one('#jobs-csv').href).then(answer => answer.text())").splitlines()
    assert [row.split(",")[3] for row in rows] == ["name", "held"]
    browser.open("/jobs")
    browser.find("details.more summary").click()
    browser.find("input[name=ids]").send_keys(jobs["held"], Keys.ENTER)
    browser.until(f"{NAMES}.join() === 'held'")
    browser.open("/jobs?states=inactive&text=ended")
    browser.until(f"{NAMES}.join() === 'ended'")
    assert "failed" in browser.text("#jobs-table tbody")


def test_the_instance_sorts_all_jobs_and_gives_a_page_of_them(browser: Any, jobs: dict[str, str]) -> None:
    all_names = sorted(["runs", "held", MARKUP])
    browser.open("/jobs?max_entries=1&order=-name")
    browser.until(f"{NAMES}.join() === arguments[0]", all_names[2])
    assert not browser.script("button('‹ Previous')")
    browser.button("Next ›").click()
    browser.until(f"{NAMES}.join() === arguments[0] && location.search.includes('start=1')", all_names[1])
    browser.said("#jobs-note", "job 2 of 3 shown")
    browser.find("#jobs-table tbody input").click()
    browser.button("Next ›").click()
    browser.until(f"{NAMES}.join() === arguments[0]", all_names[0])
    assert not browser.script("button('Next ›')")
    browser.button("‹ Previous").click()
    browser.until(f"{NAMES}.join() === arguments[0]", all_names[1])
    browser.find("th.cores button").click()
    browser.until("one('th.cores').getAttribute('aria-sort') === 'ascending'")
    assert browser.script("location.search") == "?max_entries=1&order=ncores"
    browser.open("/jobs?start=3")
    browser.said("#view .empty", "No job is on this page any more")
    browser.button("‹ Previous").click()
    browser.until(f"{NAMES}.length === 3 && location.search === ''")
    browser.open("/jobs?start=5000&max_entries=2&order=-name")
    browser.said("#jobs-note", "0 of 3 jobs shown")
    browser.button("‹ Previous").click()
    browser.until(f"{NAMES}.join() === arguments[0] && location.search.includes('start=2')", all_names[0])


def test_a_job_shows_its_record_events_and_output_as_text(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/jobs?states=active,inactive")
    browser.find(f"tr[data-key='{jobs['ended']}'] a").click()
    browser.said("#output .stderr", "err")
    browser.said("#output", f"out {MARKUP}")
    browser.until("all('#record div').find(d => d.textContent.startsWith('exit')).textContent.includes('3')")
    browser.said("#events", "submit")
    assert browser.script("all('#job-actions button').length") == 0


def test_a_job_that_has_just_ended_does_not_run(quiet_browser: Any, jobs: dict[str, str]) -> None:
    """Its record is asked for again a moment after its events have come."""
    browser = quiet_browser
    job = {
        "jobid": jobs["runs"], "name": "runs", "user": "root", "state": "RUN", "status": "RUN", "word": "running",
        "urgency": 16, "ntasks": 1, "t_submit": NOW_S - 20, "t_run": NOW_S - 10, "duration": 60.0,
    }  # fmt: skip
    cdp = browser.driver.execute_cdp_cmd
    cdp("Network.enable", {})
    cdp("Network.setBlockedURLs", {"urls": ["*/events*"]})
    try:
        browser.open(f"/jobs/{jobs['runs']}", is_live=False)
        browser.driver.execute_async_script(
            "const [job, done] = arguments;"
            "const source = {whole: deed => (window.whole = deed), change: deed => (window.change = deed)};"
            "const root = document.getElementById('view');"
            "import('/static/job.js').then(view => (view.show(root, source), whole({job}), done()))",
            job,
        )
        for name, word in (("start", "running"), ("finish", "ending"), ("clean", "ended")):
            event = {"name": name, "timestamp": NOW_S - 4}
            browser.script("change({events: [arguments[0]]})", event)
            assert browser.text("#job-state") == word
        assert "runtime6s" in browser.script("all('#record div').map(row => row.textContent)")
        assert not browser.script("button('Cancel…', '#job-actions')")
    finally:
        cdp("Network.setBlockedURLs", {"urls": []})


def test_output_has_colours_and_the_last_of_lines_written_anew_and_its_tasks(browser: Any) -> None:
    text = r"\033[1;31mred\033[0m plain\n10%%\r100%%\n\033[2Ktitle\033]0;x\007 <b>\n"
    jobid = browser.site.submit("colours", ["printf", text], ntasks=2, duration_s=60.0)
    browser.site.after(jobid, "clean")
    browser.open(f"/jobs/{jobid}")
    lines = browser.until(
        "all('#output .line').length === 6 && all('#output .line').map(l => l.dataset.task + l.textContent)"
    )
    assert sorted(lines) == [f"{task}{line}\n" for task in "01" for line in ("100%", "red plain", "title <b>")]
    assert browser.script("one('#output .bold.c1').textContent") == "red"
    assert browser.script("one('h2 a[download]').pathname").endswith("/output")
    used = browser.until("all('#usage tbody tr[data-key]').map(row => [row.dataset.key, row.children[1].textContent])")
    assert [name for name, _ in used] == ["cores", "CPU time", "memory", "time"]
    assert (used[0][1], used[3][1]) == ("2", "1m")
    assert "not known" not in browser.text("#usage tbody")


def test_several_jobs_are_held_and_canceled_at_once(browser: Any, jobs: dict[str, str]) -> None:
    for number in range(3):
        urgency = 16 if number else 20
        browser.site.submit(f"several{number}", ["true"], urgency, nodes=64, cores_per_task=4, duration_s=600.0)
    browser.open("/jobs?text=several")
    browser.until(f"{NAMES}.length === 3")
    assert not browser.script("button('Cancel…', '#jobs-actions')")
    boxes = browser.driver.find_elements("css selector", "#jobs-table tbody input")
    for box in boxes[:2]:
        box.click()
    browser.said("#jobs-chosen", "2 jobs chosen")
    browser.button("Hold…", "#jobs-actions").click()
    browser.agree()
    browser.said("#jobs-actions .answer", "held 2 jobs")
    browser.until("all('#jobs-table tbody tr').filter(row => row.textContent.includes('held')).length === 2")
    browser.until("all('#jobs-table input:checked').length === 0")
    browser.button("Undo", "#jobs-actions").click()
    browser.said("#jobs-actions .answer", "undone")
    browser.until("all('#jobs-table tbody tr').every(row => !row.textContent.includes('held'))")
    urgencies = browser.until("all('#jobs-table tbody tr').map(row => row.cells[12].textContent)")
    assert sorted(urgencies) == ["16", "16", "20"]
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
    browser.said("#why-said", "ahead of it in the queue")
    browser.button("Hold…").click()
    browser.agree()
    browser.button("Release…").click()
    browser.said("#job-answer", "held")
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


@pytest.mark.slow
def test_a_tab_that_is_not_seen_notifies_of_the_end_of_its_job(browser: Any) -> None:
    """Seen or not, other tabs close their stream after 5 s (`HIDDEN_S`)."""
    jobid = browser.site.submit("tells", ["true"], urgency=0)
    browser.open(f"/jobs/{jobid}")
    browser.driver.execute_script(
        "window.told = []; window.Notification = class {"
        " static requestPermission() { return Promise.resolve(window.answer); }"
        " constructor(title, options) { told.push([title, options.body]); } }; window.answer = 'denied';"
    )
    browser.button("Tell me when it ends").click()
    browser.said("#job-answer", "does not let this page notify you")
    browser.driver.execute_script("window.answer = 'granted'")
    browser.button("Tell me when it ends").click()
    browser.until("button('Tell me when it ends', 'body').getAttribute('aria-pressed') === 'true'")
    browser.driver.execute_script(
        "Object.defineProperty(document, 'hidden', {get: () => true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange')); window.hiddenAt = performance.now()"
    )
    browser.until("performance.now() > hiddenAt + 5500")
    browser.site("cancel", jobid)
    assert browser.until("told.length && told") == [[f"{jobid} canceled", "tells"]]
    browser.until("one('#job-actions + button').hidden")


def test_the_form_says_when_jobs_of_some_sizes_would_start(browser: Any) -> None:
    browser.open("/jobs")
    browser.find("a[href='/when']").click()
    browser.find("input[name=nodes]").send_keys("1,100000:30m" + Keys.ENTER)
    browser.until("all('#starts tbody tr').length === 2")
    rows = browser.script("all('#starts tbody tr').map(r => r.innerText)")
    assert rows[0].startswith("1\tnone\t")
    assert "never" in rows[1] or "can never run" in rows[1]
