"""A companion that cannot be started, or ends, is tried again, ever more seldom, and ends nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fluxsched.runtime.config.operations import MetricsSettings, PageSettings
from fluxsched.runtime.instance.parts import companion as module
from fluxsched.runtime.instance.parts.companion import AGAIN_MAX_S, AGAIN_S, Companion, metrics_kind, page_kind


class Waits:
    """Turns that note delays, and run what is due when they are told to."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []
        self.now_s = 0.0
        self.clock = SimpleNamespace(monotonic_s=lambda: self.now_s)
        self._call: Any = None

    def after(self, delay_s: float, call: Any) -> Any:
        self.delays_s.append(delay_s)
        self._call = call
        return SimpleNamespace(cancel=lambda: setattr(self, "_call", None))

    def due(self) -> bool:
        call, self._call = self._call, None
        if call is not None:
            call()
        return call is not None


def test_it_is_tried_again_ever_more_seldom(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def start(command: list[str], log: Path, ended: Any) -> Any:
        assert command[3:] == ["fluxsched", "metrics", "--uri", "u", "--bind", "b", "--instance", command[-1]]
        raise OSError("no more processes")

    monkeypatch.setattr(module, "ChildProcess", start)
    turns: Any = Waits()
    kind = metrics_kind(MetricsSettings("b"))
    assert kind is not None
    exporter = Companion(turns, kind, "u", tmp_path)
    for _ in range(8):
        assert turns.due()
    assert turns.delays_s == [AGAIN_S * 2**n for n in range(6)] + [AGAIN_MAX_S] * 3
    exporter.close()
    assert not turns.due()


def test_after_a_long_run_it_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Child:
        def __init__(self, command: list[str], log: Path, ended: Any) -> None:
            pass

        def why_ended(self, said: str) -> str:
            return "killed"

    monkeypatch.setattr(module, "ChildProcess", Child)
    turns: Any = Waits()
    kind = metrics_kind(MetricsSettings("b"))
    assert kind is not None
    exporter = Companion(turns, kind, "u", tmp_path)
    for run_s in (0.0, 0.0, 0.0, AGAIN_MAX_S + 1, 0.0):
        turns.now_s += run_s
        exporter._ended()
        assert turns.due()
    assert turns.delays_s == [AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S, AGAIN_S, 2 * AGAIN_S]


async def test_the_address_of_before_a_restart_is_not_taken_for_the_one_of_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Child:
        def __init__(self, command: list[str], log: Path, ended: Any) -> None:
            pass

    monkeypatch.setattr(module, "ChildProcess", Child)
    turns: Any = Waits()
    kind = page_kind(PageSettings("127.0.0.1:0"), tmp_path, None)
    assert kind is not None
    assert kind.writes is not None
    kind.writes.write_text("http://old\n")
    page = Companion(turns, kind, "u", tmp_path)
    assert await page.written(-1.0) == "none: it is not served yet"
    (tmp_path / "draft").write_text("http://new\n")
    (tmp_path / "draft").replace(kind.writes)
    assert await page.written(-1.0) == "http://new"


def test_without_an_address_nothing_is_started(tmp_path: Path) -> None:
    assert metrics_kind(MetricsSettings()) is None
    assert page_kind(PageSettings(), tmp_path, None) is None


def test_the_page_is_told_all_that_the_configuration_says(tmp_path: Path) -> None:
    kind = page_kind(PageSettings("127.0.0.1:0", True, ("a.example",)), tmp_path, None)
    assert kind is not None
    options = ["--bind", "127.0.0.1:0", "--public", "--name", "a.example", "--address-file", f"{tmp_path}/web.address"]
    assert (kind.command, kind.options) == ("web", options)
