"""Tables in a real browser, whatever they show: order, columns, pages, files, rows that hold still, and a phone."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from selenium import webdriver

from .conftest import NOW_S, PHONE, Show

PAGE = 200
RANKS = "all('#outages tbody th').map(cell => cell.textContent)"


def outages(*intervals: list[Any]) -> dict[str, Any]:
    """A history of nothing but targets out of use."""
    return {
        "now": NOW_S,
        "since": NOW_S - 9e5,
        "until": NOW_S,
        "samples": None,
        "report": None,
        "intervals": [*intervals],
    }


def test_rows_are_sorted_by_what_they_mean_and_as_they_came(browser: Any, show: Show) -> None:
    lasts = {"10": 90.0, "9": 3600.0, "100": None}
    show(
        "history",
        outages(*[[ranks, "down", NOW_S - 4e3, last and NOW_S - 4e3 + last, ""] for ranks, last in lasts.items()]),
    )
    came = ["100", "9", "10"]
    assert browser.until(f"{RANKS}.length && {RANKS}") == came
    for heading, orders in {
        1: (["9", "10", "100"], ["100", "10", "9"]),
        5: (["10", "9", "100"], ["9", "10", "100"]),
    }.items():
        button = browser.find(f"#outages th:nth-child({heading}) button")
        for order, said in zip((*orders, came), ("ascending", "descending", None), strict=True):
            button.click()
            assert browser.script(RANKS) == order
            assert browser.script(f"one('#outages th:nth-child({heading})').getAttribute('aria-sort')") == said
    assert browser.script("location.hash") == ""


def test_order_and_columns_are_in_the_address_and_the_file_is_what_is_shown(browser: Any, show: Show) -> None:
    show(
        "history",
        outages(["1", "down", NOW_S - 60, NOW_S, '=1+1, "x"\x1b'], ["2-4", "down", NOW_S - 90, None, "\t=1+1"]),
    )
    browser.find("#outages th:nth-child(2) button").click()
    browser.find("#outages .menu summary").click()
    browser.find("#outages .menu input[value=state]").click()
    assert browser.script("location.hash") == "#outages=targets&outages-without=state"
    browser.driver.refresh()
    browser.until(f"{RANKS}.join() === '1,2-4'")
    assert browser.script("all('#outages th').filter(each => each.offsetParent).length") == 5 + 2
    name, (heading, first, second) = browser.saved("#outages .csv")
    assert name == "outages.csv"
    assert heading == ["Ranks", "Targets", "Since", "For [s]", "Reason"]
    assert [*first[:2], *first[3:]] == ["1", "1", "60", '\'=1+1, "x"\\x1b']
    assert re.fullmatch(r"\S+T\S+[+-]\d\d:\d\d", first[2])
    assert datetime.fromisoformat(first[2]).timestamp() == NOW_S - 60
    assert [*second[:2], *second[3:]] == ["2-4", "3", "", "'\t=1+1"]


def test_a_page_of_many_rows_is_followed_by_more_on_demand(browser: Any, show: Show) -> None:
    size = PAGE + 3
    show("history", outages(*[[str(rank), "down", NOW_S - rank, None, ""] for rank in range(size)]))
    browser.said("#outages .tools > .note", f"{PAGE} of {size} rows shown")
    assert browser.script(f"{RANKS}[0]") == str(size - 1)
    assert len(browser.saved("#outages .csv")[1]) == 1 + size
    browser.button(f"Show {PAGE} more", "#outages").click()
    assert len(browser.until(f"{RANKS}.length > {PAGE} && {RANKS}")) == size
    assert not browser.script(f"button('Show {PAGE} more', '#outages')")
    browser.find("#outages th:nth-child(1) button").click()
    assert browser.script(RANKS) == [str(rank) for rank in range(size)]


def test_a_table_without_a_stream_keeps_the_rows_of_the_server(quiet_browser: Any, jobs: dict[str, str]) -> None:
    browser = quiet_browser
    cdp = browser.driver.execute_cdp_cmd
    cdp("Network.enable", {})
    cdp("Network.setBlockedURLs", {"urls": ["*/events*"]})
    try:
        browser.open("/jobs", is_live=False)
        browser.until("one('#jobs-table th button') && !isLive()")
        browser.find("th.name button").click()
        names = browser.script("all('#jobs-table tbody .name').map(cell => cell.textContent)")
        assert {"runs", "held"} <= set(names)
    finally:
        cdp("Network.setBlockedURLs", {"urls": []})


def test_rows_of_any_table_hold_still_under_a_pointer(browser: Any, jobs: dict[str, str]) -> None:
    rpc = browser.site.rpc
    names = "all('#drains-table tbody tr:not(.gone) .wraps:last-child').map(cell => cell.textContent)"
    rpc("resource.drain", targets="40", reason="stays")
    rpc("resource.drain", targets="41", reason="leaves")
    browser.open("/machine")
    browser.until(f"{names}.length === 2")
    webdriver.ActionChains(browser.driver, duration=0).move_to_element(browser.find("#drains-table td")).perform()
    places = "all('#drains-table tbody tr').map(row => row.getBoundingClientRect().top)"
    before = browser.script(places)
    rpc("resource.drain", targets="39", reason="comes")
    rpc("resource.undrain", targets="41")
    browser.said("#drains-section .news", "1 new row: show")
    assert browser.until(f"{names}.length === 1 && {names}") == ["stays"]
    assert browser.script(places) == before
    assert browser.script("getComputedStyle(one('#drains-table .gone > *'), '::after').content") == '" gone"'
    browser.find("#drains-section .news").click()
    browser.until(f"{names}.length === 2 && {names}.includes('comes')")
    rpc("resource.undrain", targets="39-40")
    browser.until("one('#drains-section').hidden")


def test_a_table_of_the_server_alone_is_a_file_too(browser: Any, jobs: dict[str, str]) -> None:
    browser.open("/when?nodes=1,64", is_live=False)
    _, (heading, first, second) = browser.saved(".csv")
    assert [heading[1:3], first[0], second[0]] == [["Limit", "Start"], "1", "64"]


def test_on_a_phone_rows_are_blocks_whose_cells_fit(browser: Any, show: Show) -> None:
    show(
        "history", outages(["0-9,12", "drained", NOW_S - 90, NOW_S, "replaced the power supply of rack 7"]), phone=True
    )
    cells = browser.until(
        "all('#outages tbody tr > *').length && all('#outages tbody tr > *').map(c => [c.innerText, c.offsetWidth])"
    )
    assert max(width for _, width in cells) <= PHONE[0]
    assert browser.script("getComputedStyle(one('#outages td'), '::before').content") == '"Targets"'
    assert browser.script("one('#outages tbody tr').offsetHeight") < 120
