"""The machine in a real browser: the map, its search and selection, the panel, and drains from all of them."""

from __future__ import annotations

from typing import Any

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from fluxsched.core.jobid import parse_jobid

REASON = "<b>fan</b> & <img src=x onerror=alert(1)>"
TOTAL = 64


def states(browser: Any) -> dict[str, str]:
    """The table of states: word to ranks."""
    rows = "all('#states-table tbody tr').map(r => [r.children[0].textContent, r.children[2].textContent])"
    return dict(browser.script(rows))


def test_a_cell_opens_its_target_which_is_drained_and_returned(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/machine")
    (job,) = browser.site.rpc("job-manager.list", ids=[parse_jobid(jobs["runs"])])["jobs"]
    rank = int(job["ranks"].split("-")[0])
    browser.click_cell(rank)
    browser.said(".panel", f"fake{rank}")
    browser.until("one('.panel a')?.textContent === arguments[0]", jobs["runs"])
    browser.said(".panel dl", "made-up")
    browser.said(".view-machine > .note", "All targets are made-up")
    browser.button("Drain…", ".panel").click()
    browser.agree(reason=REASON)
    browser.said("#drains-table tbody", REASON)
    browser.said(".panel dl", REASON)
    assert states(browser)["draining"] == str(rank)
    assert browser.site.rpc("resource.status")["drain"][str(rank)]["reason"] == REASON
    browser.button("Return to service…", ".panel").click()
    browser.agree()
    browser.until("one('#drains-section').hidden")
    browser.said(".panel .events", "undrain")
    browser.button("✕", ".panel").click()
    assert browser.script("focused().tagName") == "CANVAS"


def test_several_targets_are_chosen_by_mouse_and_by_search_and_drained(browser: Any) -> None:
    browser.open("/machine")
    browser.click_cell(60, Keys.SHIFT)
    browser.click_cell(62, Keys.SHIFT)
    assert "2 targets selected: 60,62" in browser.find(".chosen").text
    browser.find("[data-search]").send_keys("fake[60-63]", Keys.ENTER)
    browser.until("one('.found').textContent.startsWith('4 targets')")
    browser.button("Select these").click()
    assert "4 targets selected: 60-63" in browser.find(".chosen").text
    browser.button("Drain…", ".chosen").click()
    browser.agree(reason="new cables")
    browser.said("#drains-table tbody", "new cables")
    assert states(browser)["drained"] == "60-63"
    browser.site.rpc("resource.undrain", targets="60-63")
    browser.until("one('#drains-section').hidden")


def test_search_finds_ranks_hosts_and_jobs_and_says_what_it_does_not_find(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/machine")
    for typed, said in (
        ("3,7-9", "4 targets of 3,7-9"),
        ("fake1*", "11 targets of fake1*"),
        (jobs["runs"], f"2 targets of job {jobs['runs']}"),
        (jobs["waits"], f"job {jobs['waits']} (waiting) has no targets"),
        ("99", "there is no target of rank 99"),
        ("gpu7", "no target is called gpu7"),
        ("fake[3", "is not closed"),
        ("fake[0-9999][0-9999]", "is more than 4194304 hosts"),
    ):
        field = browser.find("[data-search]")
        field.clear()
        field.send_keys(typed, Keys.ENTER)
        browser.said(".found", said)


def test_the_legend_filters_and_the_map_zooms_and_keeps_its_place(browser: Any) -> None:
    browser.open("/machine")
    browser.find(".legend .state-free").click()
    kept, free = browser.script("[map().kept.reduce((a, b) => a + b), one('.legend .state-free .value').textContent]")
    assert 0 < kept == int(free) <= TOTAL
    browser.find(".legend .state-free").click()
    assert browser.script("map().kept") is None
    fitted = browser.script("map().scale")
    canvas = browser.find("canvas")
    ActionChains(browser.driver, duration=0).scroll_from_origin(origin(canvas), 0, -600).perform()
    assert browser.until("map().scale > arguments[0]", fitted)
    browser.button("⤢").click()
    assert browser.script("map().scale") == fitted


def origin(element: Any) -> Any:
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    return ScrollOrigin.from_element(element)


def test_the_map_is_walked_by_keys_which_say_where_one_is(browser: Any) -> None:
    browser.open("/machine")
    browser.script("one('canvas').focus()")
    browser.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    said = browser.until("document.getElementById('announce').textContent")
    assert "fake1 · rank 1" in said
    browser.keys(Keys.SHIFT + Keys.ARROW_RIGHT)
    assert "2 targets selected: 1-2" in browser.find(".chosen").text
    browser.keys(Keys.NULL, Keys.ENTER)
    assert browser.until("focused().id === 'panel-heading' && focused().textContent") == "fake2"
    browser.keys(Keys.ESCAPE)
    assert browser.script("focused().tagName") == "CANVAS"


def test_what_the_instance_refuses_is_said_beside_the_button(quiet_browser: Any) -> None:
    browser = quiet_browser
    browser.open("/machine")
    browser.find("#change-section input[name=targets]").send_keys("99")
    browser.find("#change-section input[name=reason]").send_keys("test")
    browser.button("Drain…", "#change-section").click()
    browser.agree()
    said = browser.until("one('#change-section .answer.failed')?.textContent")
    assert "99" in said


def test_without_script_a_form_drains_after_a_page_that_asks(browser: Any) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open("/machine", is_live=False)
        assert "free" in browser.find("#states-table").text
        browser.find("#change-section input[name=targets]").send_keys("50")
        browser.find("#change-section input[name=reason]").send_keys(REASON)
        browser.find("#change-section button").click()
        browser.find("#confirm-heading")
        assert REASON in browser.find("main").text
        browser.find("main button.primary").click()
        browser.find("#states-table")  # to load the page before would take the form back
        browser.reload_until("#drains-table", REASON)  # the page is at most 0.1 s behind the instance
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        browser.site.rpc("resource.undrain", targets="50")
