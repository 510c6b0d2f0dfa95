"""A trace with schedules that others computed, where it lies beside the repository; and small machines."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from fluxsched.core.resources import ResourceSet
from fluxsched.sim import Ask, Trace, TraceJob, read_trace

TRACES = Path(__file__).parents[3] / "shared" / "traces"


class Known(NamedTuple):
    """A trace and, column by column, when others start each of its jobs."""

    trace: Trace
    starts: dict[str, list[float]]


def known(trace: Path, starts: Path) -> Known:
    with gzip.open(starts, "rt") as file:
        rows = list(csv.DictReader(file))
    columns = [name for name in rows[0] if name.startswith("start_")]
    return Known(read_trace(trace), {name: [float(row[name]) for row in rows] for name in columns})


@pytest.fixture(scope="session")
def kth() -> Known:
    trace, starts = TRACES / "KTH-SP2-sc15-filtered.swf.gz", TRACES / "KTH-SP2-starts.csv.gz"
    if not trace.exists() or not starts.exists():
        pytest.skip(f"the KTH-SP2 trace and its known starts are not in {TRACES.name}/ beside the repository")
    return known(trace, starts)


@pytest.fixture(scope="session")
def lublin() -> Known:
    """A trace by a model, and its starts by pyss; see lublin/README.md."""
    folder = Path(__file__).parent / "lublin"
    return known(folder / "lublin-2000.swf.gz", folder / "starts.csv.gz")


@pytest.fixture(scope="session")
def trace_of() -> Callable[..., Trace]:
    """trace_of((submit, run, limit, slots), ...): jobs 1, 2, ... of one-core slots, or of what an Ask says."""

    def build(*rows: tuple[float, float, float | None, int | Ask]) -> Trace:
        jobs = [
            TraceJob(at, submit, run, limit, ask if isinstance(ask, Ask) else Ask(ask))
            for at, (submit, run, limit, ask) in enumerate(rows, 1)
        ]
        return Trace.of(jobs)

    return build


@pytest.fixture(scope="session")
def four_nodes() -> ResourceSet:
    """n0 to n3 of two cores, a GPU on the last two."""
    return ResourceSet.parse({
        "version": 1,
        "execution": {
            "R_lite": [
                {"rank": "0-1", "children": {"core": "0-1"}},
                {"rank": "2-3", "children": {"core": "0-1", "gpu": "0"}},
            ],
            "starttime": 0.0,
            "expiration": 0.0,
            "nodelist": ["n[0-3]"],
            "properties": {"gpu": "2-3"},
        },
    })  # fmt: skip


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """Plain loops for the same schedules."""
    spec = importlib.util.spec_from_file_location("sim_reference", Path(__file__).with_name("reference.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and NamedTuples look their module up there
    spec.loader.exec_module(module)
    return module
