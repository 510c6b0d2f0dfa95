"""The simulator: a trace through the production scheduler on virtual time (rfc/simulator.md).

    result = fluxsched.sim.run("KTH-SP2.swf.gz", "easy")
    result.to_csv("jobs.csv"); result.summary.slowdown.mean
"""

from __future__ import annotations

from fluxsched.sim.conformance import examine
from fluxsched.sim.files import read_trace, write_trace
from fluxsched.sim.lublin import generate
from fluxsched.sim.result import Result
from fluxsched.sim.study import run
from fluxsched.sim.trace import Ask, Machine, Trace, TraceJob

__all__ = [
    "Ask", "Machine", "Result", "Trace", "TraceJob", "examine", "generate", "read_trace", "run", "write_trace",
]  # fmt: skip
