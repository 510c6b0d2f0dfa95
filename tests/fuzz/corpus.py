"""The kept inputs of each target: a text file each, an input a line as a JSON string, bytes that are no UTF-8 escaped.

Law: what is kept is small and each input of it runs a line or a turn of the code that none before it does, so that the
suite replays in seconds what hours have found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.judge import judge
from tests.fuzz.target import Target

KEPT = Path(__file__).with_name("corpus")
INPUTS_MAX = 60
"""Kept for a target."""
INPUT_BYTES_MAX = 2048
"""A larger input is not kept: a test that needs one makes it."""


def read(target: Target) -> list[bytes]:
    """The kept inputs of a target."""
    file = KEPT / f"{target.name}.txt"
    if not file.exists():
        return []
    return [json.loads(line).encode("utf-8", "surrogateescape") for line in file.read_text().splitlines()]


def write(target: Target, inputs: Iterable[bytes]) -> None:
    """Keep these inputs of a target, and no others."""
    lines = sorted({json.dumps(data.decode("utf-8", "surrogateescape"), ensure_ascii=True) for data in inputs})
    (KEPT / f"{target.name}.txt").write_text("".join(f"{line}\n" for line in lines))


def distilled(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """Of many inputs a few, the shortest first, that run the same turns of the code as all of them."""
    seen: set[Any] = set()
    kept: list[bytes] = []
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        if len(data) > INPUT_BYTES_MAX or len(kept) == INPUTS_MAX:
            break
        turns = _turns(target, data)
        if not turns <= seen:
            seen |= turns
            kept.append(data)
    return kept


def _turns(target: Target, data: bytes) -> set[Any]:
    """Which lines of fluxsched follow each other in this run."""
    found: set[Any] = set()

    def in_function(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if "/fluxsched/" not in code.co_filename:
            return None
        last = frame.f_lineno

        def on_line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            found.add((code, last, frame.f_lineno))
            last = frame.f_lineno
            return on_line

        return on_line

    former = sys.gettrace()
    sys.settrace(in_function)
    try:
        judge(target, data)
    finally:
        sys.settrace(former)
    return found
