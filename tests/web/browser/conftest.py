"""One chromium, one instance and one page for all tests in a real browser; skipped where there is no chromium."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Callable, Iterator
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import JavascriptException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from fluxsched.client.blocking import Handle
from fluxsched.core.jobid import format_f58, parse_jobid
from fluxsched.core.jobspec import Jobspec
from fluxsched.web.standalone import standalone
from tests.prepared.caller import prepared

from .chromium import NEEDED, headless, is_installed

WAIT_S = 30.0  # only a machine under load needs as much
LOOK_S = 0.02
ANOTHER_PAGE = (StaleElementReferenceException,)
"""What is found may be of a page that is just being left."""
DESKTOP, PHONE = (1280, 800), (390, 844)
MARKUP = "<script>alert(1)</script>"
NOW_S = 1_800_000_000.0
"""The time of given data."""
STYLES = ("style.css", "views.css")
Show = Callable[..., None]
GRAVE = ("serious", "critical")
SHORT = """
const one = selector => document.querySelector(selector), all = selector => [...document.querySelectorAll(selector)];
const focused = () => document.activeElement, isLive = () => one('#connection').dataset.state === 'live';
const map = () => one('canvas').map;
const place = rank => {
  const [x, y, size] = map().where(map().cells.index[rank]), box = one('canvas').getBoundingClientRect();
  return [x + size / 2 - box.width / 2, y + size / 2 - box.height / 2].map(Math.round);
};
const button = (words, within) => all(within + ' button').find(b => b.textContent.trim() === words && b.offsetParent);
"""
"""What the expressions of tests may use."""
KEEP_FILES = """
URL.createObjectURL = blob => (window.kept = blob, 'about:blank');
HTMLAnchorElement.prototype.click = function() { window.keptName = this.download; };
"""


class WebSite:
    """An instance of 64 nodes of 4 cores with a few jobs, its page, and commands to it."""

    def __init__(self, runtime: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FLUX")}
        self._env = {**kept, "XDG_RUNTIME_DIR": str(runtime), "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
        self.uri = ""
        self.uri = self("start", "--daemon", "--fake", "64x4", "--scheduler", "easy").splitlines()[0]
        self._page = subprocess.Popen(
            [*self._words("web"), "--bind", "127.0.0.1:0"], env=self._env, stdout=subprocess.PIPE, text=True
        )
        assert self._page.stdout is not None
        self.address = self._page.stdout.readline().strip()
        self.root = self.address.split("/?")[0]

    def _words(self, *words: object) -> list[str]:
        command, *more = map(str, words)
        where = [f"--uri={self.uri}"] if self.uri else []
        return [f"{prepared().programs}/fluxsched", *command.split(), *where, *more]

    def __call__(self, *words: object) -> str:
        """What a command prints."""
        done = subprocess.run(self._words(*words), env=self._env, check=False, stdout=subprocess.PIPE, text=True)
        return done.stdout.strip()

    def rpc(self, topic: str, **payload: Any) -> Any:
        """An answer of the instance, over a connection of its own: it may have restarted."""
        with Handle(self.uri) as handle:
            return handle.rpc(topic, payload)

    def submit(self, name: str, command: list[str], urgency: int = 16, **more: Any) -> str:
        """The id of a job of one task, unless `more` says otherwise."""
        with Handle(self.uri) as handle:
            return format_f58(handle.submit(Jobspec.from_command(command, name=name, **more), urgency))

    def cancel(self, jobid: str) -> None:
        self.rpc("job-manager.cancel", id=parse_jobid(jobid))

    def after(self, jobid: str, event: str) -> None:
        """Wait until an event is in a job's log."""
        with Handle(self.uri) as handle:
            for answer in handle.stream("job-manager.eventlog", {"id": parse_jobid(jobid), "follow": True}):
                if event in [each["name"] for each in answer["events"]]:
                    return

    def close(self) -> None:
        self._page.terminate()
        self._page.communicate()
        self("stop")


class WebBrowser:
    """Chromium on the page: opens views, waits for what is seen, and keeps its console."""

    def __init__(self, driver: webdriver.Chrome, site: WebSite) -> None:
        self.driver, self.site = driver, site
        driver.get(site.address)

    def open(self, path: str, size: tuple[int, int] = DESKTOP, theme: str = "light", is_live: bool = True) -> None:
        """Open a view; by default until its data are live."""
        self.size(size)
        self.theme(theme)
        self.driver.get(self.site.root + path)
        if is_live:
            self.until("isLive()")

    def size(self, size: tuple[int, int]) -> None:
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def theme(self, theme: str) -> None:
        """Colours at once: what moves is between two of them for a while."""
        wanted = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
        media = {"features": [{"name": name, "value": value} for name, value in wanted.items()]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def script(self, text: str, *values: object) -> Any:
        """The value of an expression on the page."""
        return self.driver.execute_script(f"{SHORT} return ({text})", *values)

    def until(self, text: str, *values: object) -> Any:
        """Wait until an expression holds; its value. Elements that it names may have to come first."""
        return WebDriverWait(self.driver, WAIT_S, LOOK_S, (JavascriptException,)).until(
            lambda _: self.script(text, *values), text
        )

    def find(self, selector: str) -> WebElement:
        """Wait for an element that can be seen."""

        def seen(_: object) -> WebElement | None:
            found = self.driver.find_elements(By.CSS_SELECTOR, selector)
            return next((each for each in found if each.is_displayed()), None)

        return WebDriverWait(self.driver, WAIT_S, LOOK_S, ANOTHER_PAGE).until(seen, selector)

    def button(self, words: str, within: str = "body") -> WebElement:
        """A button by its words."""
        return self.until("button(arguments[0], arguments[1])", words, within)

    def said(self, selector: str, words: str) -> None:
        """Wait until an element's text has these words."""
        self.until("one(arguments[0])?.textContent.includes(arguments[1])", selector, words)

    def text(self, selector: str) -> str:
        return str(self.script("one(arguments[0])?.textContent ?? ''", selector))

    def reload_until(self, selector: str, words: str) -> None:
        """Load the page anew until an element that can be seen has these words: what one does without script."""

        def seen(_: object) -> bool:
            self.driver.refresh()
            found = self.driver.find_elements(By.CSS_SELECTOR, selector)
            return any(words in each.text for each in found)

        WebDriverWait(self.driver, WAIT_S, 0.1, ANOTHER_PAGE).until(seen, words)

    def keys(self, *keys: str) -> None:
        """Press keys where the focus is."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def agree(self, **fields: str) -> None:
        """Fill the dialog that asks, and confirm it."""
        dialog = self.find("dialog")
        for name, value in fields.items():
            field = dialog.find_element(By.NAME, name)
            field.clear()
            field.send_keys(value)
        dialog.find_element(By.CSS_SELECTOR, "button[value=yes]").click()

    def click_cell(self, rank: int, *held: str) -> None:
        """Click the middle of a target's cell in the map."""
        x, y = self.until("place(arguments[0])", rank)
        actions = webdriver.ActionChains(self.driver, duration=0)
        for key in held:
            actions.key_down(key)
        actions.move_to_element_with_offset(self.find("canvas"), x, y).click()
        for key in held:
            actions.key_up(key)
        actions.perform()

    def saved(self, selector: str) -> tuple[str, list[list[str]]]:
        """The name and the lines of the file that a button gives."""
        self.driver.execute_script(KEEP_FILES)
        self.find(selector).click()
        text = self.driver.execute_async_script("window.kept.text().then(arguments[0])")
        return self.script("window.keptName"), list(csv.reader(StringIO(text)))

    def grave_faults(self, rules: list[str] | None = None) -> list[str]:
        """What axe-core finds serious or critical, by all that it checks by default or by some rules."""
        if not self.script("'axe' in window"):
            self.driver.execute_script((files("axe_core_python") / "axe.min.js").read_text())
        found = self.driver.execute_async_script(
            "const [rules, done] = arguments, only = rules ? {runOnly: {type: 'rule', values: rules}} : {};"
            "axe.run({resultTypes: ['violations'], ...only}).then(r => done(r.violations))",
            rules,
        )
        return [
            f"{each['id']} ({each['impact']}): {each['help']}: {[node['html'][:160] for node in each['nodes'][:3]]}"
            for each in found if each["impact"] in GRAVE
        ]  # fmt: skip

    def console(self) -> list[str]:
        """What the browser has complained of since the last call."""
        return [f"{line['level']}: {line['message']}" for line in self.driver.get_log("browser")]


@pytest.fixture(scope="package")
def chromium() -> None:
    """Skips where there is none."""
    if not is_installed():
        pytest.skip(f"no real browser here: install {NEEDED}")


@pytest.fixture(scope="package")
def web_site(chromium: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebSite]:
    site = WebSite(tmp_path_factory.mktemp("w"))
    yield site
    site.close()


@pytest.fixture(scope="package")
def web_browser(chromium: None, web_site: WebSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebBrowser]:
    console = {"goog:loggingPrefs": {"browser": "ALL"}}
    driver = headless(tmp_path_factory.mktemp("chromium"), capabilities=console)
    try:
        yield WebBrowser(driver, web_site)
    finally:
        driver.quit()


@pytest.fixture
def browser(web_browser: WebBrowser) -> Iterator[WebBrowser]:
    """The browser; a test in which its console complains fails."""
    web_browser.console()
    yield web_browser
    complaints = web_browser.console()
    assert complaints == []


@pytest.fixture
def quiet_browser(web_browser: WebBrowser) -> Iterator[WebBrowser]:
    """The browser for a test that provokes refusals, of which the console tells."""
    yield web_browser
    web_browser.console()


@pytest.fixture(scope="package")
def jobs(web_site: WebSite) -> dict[str, str]:
    """A job that runs, two that wait, and one that has ended, by name."""
    command = ["sh", "-c", f"echo 'out {MARKUP}'; echo err >&2; exit 3"]
    ended = web_site.submit("ended", command)
    runs = web_site.submit("runs", ["sleep", "600"], nodes=2, duration_s=3600.0)
    waits = web_site.submit(MARKUP, ["true"], nodes=64, cores_per_task=4, duration_s=600.0)
    held = web_site.submit("held", ["true"], urgency=0)
    web_site.after(ended, "clean")
    web_site.after(runs, "start")
    return {"runs": runs, "ended": ended, "waits": waits, "held": held}


@pytest.fixture
def show(browser: WebBrowser, tmp_path: Path) -> Show:
    """Opens a view on given data."""
    pytest.importorskip("jinja2", reason="the page is an extra: fluxsched[web]")
    from fluxsched.web.pages import templates

    def opened(view: str, data: dict[str, Any], phone: bool = False) -> None:
        template = templates().get_template(f"{view}.html")
        content = "".join(template.blocks["content"](template.new_context({"data": data})))
        page = standalone(view, f'<main><div id="view">{content}</div></main>', f"{view}.js", STYLES, data)
        open_file(browser, tmp_path, page, phone)

    return opened


def open_file(browser: WebBrowser, folder: Path, page: str, phone: bool = False) -> None:
    browser.size(PHONE if phone else DESKTOP)
    (folder / "page.html").write_text(page, encoding="utf-8")
    browser.driver.get((folder / "page.html").as_uri())
