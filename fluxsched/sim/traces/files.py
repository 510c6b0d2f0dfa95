"""Trace files: the format is detected from the content, plain or gzipped, whatever the name.

Law: a file whose first character that is not a space is `{` is our own JSON-lines trace, any other one is SWF.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from fluxsched.errors import InvalidValue
from fluxsched.sim.traces.json_lines import print_lines, read_lines
from fluxsched.sim.traces.swf import print_swf, read_swf
from fluxsched.sim.traces.trace import Trace

_GZIP = b"\x1f\x8b"


def read_trace(path: Path | str) -> Trace:
    """The trace in a file. Raises InvalidValue when it cannot be read, or has no job that can be simulated."""
    path = Path(path)
    name = path.name.removesuffix(".gz")
    try:
        with path.open("rb") as file:  # once: a pipe can be read only once
            packed = file.peek(2)[:2] == _GZIP
            with io.TextIOWrapper(gzip.GzipFile(fileobj=file) if packed else file, "utf-8", "replace") as lines:
                trace = _read(lines, name)
    except (OSError, EOFError, zlib.error) as fault:
        raise InvalidValue(f"trace {path} cannot be read: {getattr(fault, 'strerror', None) or fault}") from fault
    if not trace.jobs:
        first = f": line {trace.faults[0].line}: {trace.faults[0].why}" if trace.faults else ""
        raise InvalidValue(f"trace {path} has no job that can be simulated{first}")
    return trace


def write_trace(trace: Trace, path: Path) -> None:
    """SWF if the name says so (`.swf`, `.swf.gz`), else JSON lines; gzipped if it ends in `.gz`."""
    lines = print_swf(trace) if path.name.removesuffix(".gz").endswith(".swf") else print_lines(trace)
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.name.endswith(".gz") else text)


def _read(lines: Iterable[str], name: str) -> Trace:
    source = iter(lines)
    skipped: list[str] = []
    for line in source:
        skipped.append(line)
        if line.strip():
            break
    is_json = bool(skipped) and skipped[-1].lstrip().startswith("{")
    return (read_lines if is_json else read_swf)(_chained(skipped, source), name)


def _chained(first: list[str], rest: Iterator[str]) -> Iterator[str]:
    yield from first
    yield from rest
