"""The page in headless chromium on a large machine with many jobs: what one who opens it waits for, and what it costs.

    python benchmarks/page.py [--fake 131072x64] [--jobs 100000] [--runs 5] [--pauses 1 --pause-s 600]

First paint is from the start of the navigation until the map's cells are drawn (Jobs: until the rows are; Timeline:
until what runs and is planned is; other views: until their data are shown). A drain is timed from its request, by
another client, until the map has drawn it. Frames are those of zooming in and out by 200 small steps, one a frame.
Memory is of the tab: of script, and of its whole process. Needs Debian's chromium and chromium-driver, and
`fluxsched[dev]`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

import fluxsched
from fluxsched.core.jobspec import Jobspec
from fluxsched.instance import launch

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.web.browser.chromium import NEEDED, headless, is_installed

CELLS = "document.querySelector('canvas')?.map?.frames > 0"
ROWS = "document.querySelectorAll('#jobs-table tbody tr .pill').length > 0"
BARS = "document.querySelector('canvas')?.gantt?.data.end > 1"
LIVE = "document.querySelector('#view.live')"
VIEWS = {
    "machine": CELLS, "jobs": ROWS, "queues": LIVE, "timeline": BARS, "groups": LIVE, "shares": LIVE, "history": LIVE,
}  # fmt: skip
SLOWEST_FIRST = ("timeline", "history", "jobs", "machine", "shares", "queues", "groups")
ZOOM = """
const done = arguments[arguments.length - 1], map = document.querySelector('canvas').map, frames = [];
let step = 0, last = performance.now();
function next(now) {
  frames.push(now - last); last = now;
  if (step++ === 200) return done(frames.slice(1));
  map.zoom(step <= 100 ? 1.04 : 1 / 1.04, 400, 300);
  requestAnimationFrame(next);
}
requestAnimationFrame(next);
"""
DRAINED = """
return (m => m.cells.stateOf(m.cells.index[arguments[0]]).startsWith("drain") && m.frames > arguments[1])(
  document.querySelector("canvas").map);
"""
LOOK_S = 0.005
SETTLED_S = 3.0


async def submit(uri: str, jobs: int) -> None:
    """Submit jobs of several sizes, and return once as many run as can, and all others wait."""
    async with fluxsched.connect(uri) as user:
        shapes = [
            Jobspec.from_command(["sleep", "600"], nodes=1 << size, duration_s=3600.0, test_run_duration_s=3600.0)
            for size in range(8)
        ]
        for start in range(0, jobs, 1000):
            await asyncio.gather(
                *(user.submit(shapes[number % len(shapes)]) for number in range(start, min(start + 1000, jobs)))
            )
        before = -1
        while (now := await running(user)) != before:
            before = now
            await asyncio.sleep(SETTLED_S)


async def running(user: fluxsched.AsyncHandle) -> int:
    answer = await user.rpc("job-manager.running", {"max_entries": 1})
    return 1 + int(answer["left_out"])


def until(driver: webdriver.Chrome, text: str, *values: object) -> None:
    WebDriverWait(driver, 120, LOOK_S).until(lambda _: driver.execute_script(f"return {text}", *values), text)


def first_paint_s(driver: webdriver.Chrome, url: str, condition: str) -> float:
    """The page marks the time itself: a script that is there before all others looks each frame."""
    look = (
        f"const look = () => {condition} ? (window.painted = performance.now()) : requestAnimationFrame(look);"
        "document.addEventListener('DOMContentLoaded', look);"
    )
    added = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": look})
    driver.get(url)
    until(driver, "window.painted > 0")
    driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": added["identifier"]})
    return float(driver.execute_script("return window.painted")) / 1e3


async def drain_seen_s(driver: webdriver.Chrome, uri: str, rank: int) -> float:
    frames = driver.execute_script("return document.querySelector('canvas').map.frames")
    async with fluxsched.connect(uri) as admin:
        begin_s = time.perf_counter()
        await admin.drain(str(rank), "benchmark")
        while not driver.execute_script(DRAINED, rank, frames):
            await asyncio.sleep(LOOK_S)
        took_s = time.perf_counter() - begin_s
        await admin.undrain(str(rank))
    return took_s


def memory_mib(driver: webdriver.Chrome) -> tuple[float, float]:
    """Script's heap, and what the tab's process has resident of its own."""
    driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    driver.execute_cdp_cmd("Performance.enable", {})
    metrics = {each["name"]: each["value"] for each in driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
    return metrics["JSHeapUsedSize"] / 2**20, max(map(private_mib, renderers(driver)), default=0.0)


def renderers(driver: webdriver.Chrome) -> list[int]:
    """Processes of tabs below the driver."""
    found, todo = [], [driver.service.process.pid]
    while todo:
        pid = todo.pop()
        todo += [
            int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
        ]
        if b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found.append(pid)
    return found


def private_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty"))) / 1024


def measure(uri: str, address: str, runs: int, pauses: int, pause_s: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        driver = headless(directory, "--window-size=1280,800", "--enable-precise-memory-info")
        try:
            driver.get(address)
            root = address.split("/?")[0]
            for view, condition in VIEWS.items():
                times = [first_paint_s(driver, f"{root}/{view}", condition) * 1e3 for _ in range(runs)]
                tell(f"first paint of {view}", times, "1,000")
            for number in range(pauses):
                driver.get("about:blank")
                time.sleep(pause_s)
                for view in [*SLOWEST_FIRST[number % len(VIEWS) :], *SLOWEST_FIRST[: number % len(VIEWS)]]:
                    took_ms = first_paint_s(driver, f"{root}/{view}", VIEWS[view]) * 1e3
                    print(f"after a pause of {pause_s:g} s: {view} {took_ms:.1f} ms   (asked: 1,000)", flush=True)
            driver.get(f"{root}/machine")
            until(driver, CELLS)
            drains = [asyncio.run(drain_seen_s(driver, uri, 100 + at)) * 1e3 for at in range(4 * runs)]
            tell("a drain is drawn", drains, "200")
            driver.set_script_timeout(120)
            tell("frames while zooming", driver.execute_async_script(ZOOM), "-")
            heap, process = memory_mib(driver)
            print(f"{'memory of the tab':28} script {heap:.0f} MiB   process {process:.0f} MiB   (asked: 200)")
        finally:
            driver.quit()


def tell(name: str, times_ms: list[float], asked: str) -> None:
    p95 = sorted(times_ms)[int(0.95 * len(times_ms))]
    median = statistics.median(times_ms)
    first = times_ms[0]
    times = f"median {median:6.1f} ms   p95 {p95:6.1f} ms   first {first:6.1f} ms"
    print(f"{name:28} {times}   (asked: {asked})", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fake", default="131072x64")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--pauses", type=int, default=0, help="after each all views are opened, another one first")
    parser.add_argument("--pause-s", type=float, default=600.0)
    options = parser.parse_args()
    if not is_installed():
        print(f"skipped: needs {NEEDED}")
        return 0
    uri = launch.start_daemon(launch.StartOptions(fake=options.fake, schedulers=("easy",)))
    page = subprocess.Popen(
        [sys.executable, "-m", "fluxsched", "web", "--uri", uri, "--bind", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        asyncio.run(submit(uri, options.jobs))
        assert page.stdout is not None
        measure(uri, page.stdout.readline().strip(), options.runs, options.pauses, options.pause_s)
    finally:
        page.terminate()
        page.communicate()
        launch.stop(uri)
    return 0


if __name__ == "__main__":
    sys.exit(main())
