"""An exporter that cannot be started, or ends, is tried again, ever more seldom, and ends nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fluxsched.runtime.config.operations import MetricsSettings
from fluxsched.runtime.instance.parts import exporter as module
from fluxsched.runtime.instance.parts.exporter import AGAIN_MAX_S, AGAIN_S, Exporter


class Waits:
    """Turns that note delays, and run what is due when they are told to."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []
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
    exporter = Exporter(turns, MetricsSettings("b"), "u", tmp_path)
    for _ in range(8):
        assert turns.due()
    assert turns.delays_s == [AGAIN_S * 2**n for n in range(6)] + [AGAIN_MAX_S] * 3
    exporter.close()
    assert not turns.due()


def test_without_an_address_nothing_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "ChildProcess", None)
    turns: Any = Waits()
    Exporter(turns, MetricsSettings(), "u", tmp_path).close()
    assert turns.delays_s == []
