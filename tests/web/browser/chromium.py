"""Debian's Chromium without a window, for tests, figures and pictures of the page."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

SWITCHES = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--disable-extensions",
    "--disable-features=SpareRendererForSitePerProcess,BackForwardCache,Translate,OptimizationHints,MediaRouter",
)  # fmt: skip
NEEDED = "Debian's packages chromium and chromium-driver"


def is_installed() -> bool:
    """Whether there is a browser and its driver."""
    return all(shutil.which(name) for name in ("chromium", "chromedriver"))


def headless(
    directory: str | Path, *switches: str, capabilities: Mapping[str, Mapping[str, str]] | None = None
) -> webdriver.Chrome:
    """A browser with a new profile in `directory`."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for name, value in (capabilities or {}).items():
        options.set_capability(name, value)
    for switch in (*SWITCHES, f"--user-data-dir={directory}", *switches):
        options.add_argument(switch)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
