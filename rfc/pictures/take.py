"""Takes the pictures of this folder from a real instance, its page and its screen.

    python rfc/pictures/take.py

The machine is made up, its jobs only let time pass. Needs Debian's packages chromium and chromium-driver, and
`fluxsched[dev]`.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

import fluxsched
from fluxsched.cli.top import parse_filter
from fluxsched.client.blocking import Handle
from fluxsched.core.jobspec import Jobspec
from fluxsched.instance import launch
from fluxsched.screen.app import TopApp
from fluxsched.screen.look import ScreenSettings, TerminalLook
from fluxsched.views.follower import Follower

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.web.browser.chromium import headless

HERE = Path(__file__).parent
SIZE = (1200, 700)
NAMES = ("fft", "climate", "md-run", "train", "render", "assembly", "cfd")
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
HOUR_S = 3600.0
LOOK_S = 1.0


def fill(handle: Handle) -> None:
    """Jobs of many sizes, more than fit; some targets out of service; a second group."""
    handle.rpc("resource.assign", {"targets": "448-511", "group": "lab"})
    jobs = []
    for number in range(150):
        nodes, cores = 1 + (7 * number) % 23, (16, 16, 4, 12, 16)[number % 5]
        duration_s = HOUR_S * (0.3 + (number * 37 % 50) / 10)
        name = NAMES[number * number % len(NAMES)]
        jobs.append(Jobspec.from_command(
            [f"./{name}"], name=f"{name}-{number % 9}", nodes=nodes, cores_per_task=cores, duration_s=duration_s,
            test_run_duration_s=duration_s,
        ))  # fmt: skip
    handle.drain("200-203", "new switch on Monday")
    handle.drain("310,460-463", "fan is noisy")
    handle.submit_many(jobs)
    handle.drain("37,114", "memory errors, ticket 4711")


def browser(directory: str) -> webdriver.Chrome:
    driver = headless(directory)
    metrics = {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    return driver


def take(driver: webdriver.Chrome, url: str, name: str, theme: str) -> None:
    """One picture, once the view is live."""
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    driver.get(url)
    live = "return document.getElementById('connection').dataset.state === 'live'"
    WebDriverWait(driver, 30).until(lambda _: driver.execute_script(live))
    time.sleep(LOOK_S)  # until all is drawn
    driver.save_screenshot(str(HERE / f"{name}.png"))


def page(uri: str) -> None:
    """Take the pictures of the page."""
    words = [sys.executable, "-m", "fluxsched", "web", "--uri", uri, "--bind", "127.0.0.1:0"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    with server, tempfile.TemporaryDirectory() as directory:
        driver = browser(directory)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            driver.get(address)
            root = address.split("/?")[0]
            take(driver, f"{root}/machine", "machine", "light")
            take(driver, f"{root}/jobs?states=pending,running", "jobs", "dark")
            take(driver, f"{root}/timeline", "timeline", "light")
        finally:
            driver.quit()
            server.terminate()


async def screen(uri: str) -> None:
    """Take the picture of `fluxsched top`."""
    settings = ScreenSettings(TerminalLook(is_colourful=True, is_unicode=True), parse_filter, int)
    async with Follower(uri) as follower:
        app = TopApp(follower, settings)
        async with app.run_test(size=(120, 34)) as pilot:
            await asyncio.sleep(3 * LOOK_S)
            await pilot.pause()
            drawn = app.export_screenshot(title="fluxsched top")
    (HERE / "screen.svg").write_text(FONTS.sub("", drawn))  # any monospaced font will do: nothing is loaded


def main() -> int:
    uri = launch.start_daemon(launch.StartOptions(fake="512x16+2", schedulers=("conservative",)))
    try:
        with fluxsched.connect_sync(uri) as handle:
            fill(handle)
        time.sleep(LOOK_S)  # until the scheduler has placed them
        page(uri)
        asyncio.run(screen(uri))
    finally:
        launch.stop(uri)
    return 0


if __name__ == "__main__":
    sys.exit(main())
