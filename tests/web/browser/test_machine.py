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
    rpc, other = browser.site.rpc, rank + 3
    rpc("resource.drain", targets=str(other), cores="2-3", reason="dimm")
    rpc("resource.drain", targets=str(other), cores="0", reason="mce")
    rpc("resource.outage-add", targets=f"{other}-{other + 1}", name="upd", **{"from": 4e9, "for": 60.0})
    browser.said("#outages-table tbody", "upd")
    rows = "all('#drains-table tbody tr').map(r => [...r.cells].map(c => c.textContent).filter((c, at) => at !== 4))"
    assert browser.until(f"({rows}).length === 2 && {rows}") == [
        [f"fake{other}", "1", "core 0", "drained", "", "root", "mce"],
        [f"fake{other}", "1", "cores 2-3", "drained", "", "root", "dimm"],
    ]  # fmt: skip
    assert browser.script("map().cells.drainedCores[map().cells.index[arguments[0]]]", other) == 3
    rpc("resource.drain", targets=str(other), cores="0", reason="cache", mode="add")
    assert browser.until(f"({rows}).length === 3")
    assert browser.script("map().cells.drainedCores[map().cells.index[arguments[0]]]", other) == 3
    browser.click_cell(other)
    browser.said(".panel dl", "dimm")
    browser.said(".panel dl", "outage upd")
    reserved = {"from": 4e9, "for": 60.0, "reservation": True, "users": ["0"], "name": "course"}
    rpc("resource.outage-add", targets=str(other), **reserved)
    browser.said("#outages-table tbody", "reservation")
    browser.said(".panel dl", "reservation course")
    browser.said(".panel dl", "for root")
    rpc("resource.outage-remove", name="course")
    browser.button(f"fake[{other}-{other + 1}]", "#outages-table").click()
    browser.said(".found", f"only fake[{other}-{other + 1}]")
    assert browser.script("map().kept.reduce((a, b) => a + b)") == 2
    ActionChains(browser.driver, duration=0).move_to_element(browser.find(".brand")).perform()  # rows are held below it
    rpc("resource.undrain", targets=str(other), cores="0,2-3")
    rpc("resource.outage-remove", name="upd")
    browser.until("one('#drains-section').hidden && one('#outages-section').hidden")


def test_several_targets_are_chosen_by_mouse_and_by_search_and_drained(browser: Any) -> None:
    browser.open("/machine")
    browser.click_cell(60, Keys.SHIFT)
    browser.click_cell(62, Keys.SHIFT)
    browser.said(".chosen", "2 targets selected: 60,62")
    browser.find("[data-search]").send_keys("fake[60-63]", Keys.ENTER)
    browser.until("one('.found').textContent.startsWith('4 targets')")
    browser.button("Select these").click()
    browser.said(".chosen", "4 targets selected: 60-63")
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
        ("fa", "64 targets of fa…"),  # which would be a job's id, too
        ("fzz", "there is no job fzz"),
        ("fake[3", "is not closed"),
        ("fake[0-9999][0-9999]", "is more than 4194304 hosts"),
    ):
        field = browser.find("[data-search]")
        field.clear()
        field.send_keys(typed, Keys.ENTER)
        browser.said(".found", said)


def test_a_late_answer_does_not_replace_a_newer_search(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/machine")
    browser.script(
        "void (window.real = fetch, window.fetch = async (...asked) => {"
        " const answer = await real(...asked); await new Promise(done => window.answer = done); return answer; })"
    )
    field = browser.find("[data-search]")
    field.send_keys(jobs["runs"], Keys.ENTER)
    browser.until("Boolean(window.answer)")
    field.clear()
    field.send_keys("3-4", Keys.ENTER)
    browser.said(".found", "2 targets of 3-4")
    said = browser.driver.execute_async_script(
        "const done = arguments[0]; answer(); setTimeout(() => done(document.querySelector('.found').textContent), 200)"
    )
    assert said == "2 targets of 3-4"


def test_what_is_open_and_searched_is_in_the_address(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/machine")
    browser.find("[data-search]").send_keys("fake[3-4]")  # without Enter
    browser.said(".found", "2 targets of fake[3-4]")
    browser.click_cell(7)
    browser.said(".panel", "fake7")
    assert browser.script("location.hash") == "#find=fake%5B3-4%5D&target=7"
    browser.driver.refresh()
    browser.said(".panel", "fake7")
    browser.said(".found", "2 targets of fake[3-4]")
    browser.find(".panel a[href$='states=inactive&targets=7']")
    browser.button("✕", ".panel").click()
    assert browser.script("location.hash") == "#find=fake%5B3-4%5D"
    browser.open(f"/jobs/{jobs['runs']}")
    browser.find("#job-places a[href*=machine]").click()
    browser.said(".found", f"2 targets of job {jobs['runs']}")


def test_the_legend_filters_and_the_map_zooms_and_keeps_its_place(browser: Any) -> None:
    browser.open("/machine")
    browser.find(".legend .state-free").click()
    free = "Number(one('.legend .state-free .value').textContent)"
    kept = browser.until(f"map().kept.reduce((a, b) => a + b) === {free} && {free}")
    assert 0 < kept <= TOTAL
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


def test_the_map_has_its_colours_where_those_of_the_system_are_forced(browser: Any) -> None:
    colours = (
        "const done = arguments[0]; import('/static/map/colours.js').then("
        "({Colours}) => { const it = new Colours(['drained', 'free'], document.body); done([it.states, it.ground]) })"
    )
    browser.open("/machine")
    before = browser.driver.execute_async_script(colours)
    forced = {"features": [{"name": "forced-colors", "value": "active"}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", forced)
    assert browser.script("matchMedia('(forced-colors: active)').matches")
    assert browser.driver.execute_async_script(colours) == before
    browser.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "forced-colors", "value": "none"}]}
    )


def test_the_map_is_walked_by_keys_which_say_where_one_is(browser: Any) -> None:
    browser.open("/machine")
    browser.script("one('canvas').focus()")
    browser.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    browser.said("#announce", "fake1 · rank 1")
    browser.keys(Keys.SHIFT + Keys.ARROW_RIGHT)
    browser.said(".chosen", "2 targets selected: 1-2")
    browser.keys(Keys.NULL, Keys.ENTER)
    browser.until("focused().id === 'panel-heading' && focused().textContent === 'fake2'")
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


def test_what_is_chosen_on_the_map_stays_in_the_address(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/machine")
    browser.find(".legend [data-key=free]").click()
    browser.until("location.hash === '#state=free'")
    browser.driver.refresh()
    browser.until("one('.legend [data-key=free]')?.getAttribute('aria-pressed') === 'true'")
    browser.find("[data-search]").send_keys(f"0-3{Keys.ENTER}")
    browser.until("location.hash === '#find=0-3'")
    browser.click_cell(9)
    browser.until("location.hash === '#find=0-3&target=9'")
    browser.driver.refresh()
    browser.said(".panel h2", "fake9")
    browser.said(".found", "4 targets of 0-3")
    browser.button("✕", ".panel").click()
    browser.until("location.hash === '#find=0-3'")


def test_the_map_shows_a_time_in_the_past(browser: Any, jobs: dict[str, str]) -> None:
    """Before the instance began nothing ran; what is pointed at and counted is of then, and the panel stays closed."""
    browser.open("/machine")
    browser.until("map().cells.counts().length && one('.legend [data-key=allocated]')")
    browser.click_cell(0)
    browser.said(".panel", "fake0")
    moved = "one('.past input').value = arguments[0], one('.past input').dispatchEvent(new Event('input'))"
    browser.script(moved, -86_400)
    browser.said(".past output", "no instance ran")
    browser.until("!one('.legend [data-key=allocated]') && one('.looks-back')")
    assert states(browser) == {"free": f"0-{TOTAL - 1}"}
    assert browser.script("one('.panel').hidden")
    assert browser.script("location.hash").startswith("#at=")
    assert browser.script("map().cells.busy.every(cores => cores === 0)")
    browser.click_cell(0)
    assert browser.script("one('.panel').hidden")
    browser.driver.refresh()
    browser.said(".past output", "no instance ran")
    browser.until("one('.looks-back')")
    browser.script(moved, 0)
    browser.until("one('.past output').textContent === 'now' && one('.legend [data-key=allocated]')")
    assert browser.script("location.hash") == ""
