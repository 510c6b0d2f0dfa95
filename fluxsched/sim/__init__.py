"""The simulator: a trace through the production scheduler on virtual time (rfc/simulator.md).

result = fluxsched.sim.run("KTH-SP2.swf.gz", "easy")
result.to_csv("jobs.csv"); result.summary.slowdown.mean
"""

from __future__ import annotations

from fluxsched.sim.conformance import examine
from fluxsched.sim.plugin_conformance import PluginSite, examine_plugin
from fluxsched.sim.result import Result
from fluxsched.sim.simulation import run
from fluxsched.sim.synthetic import generate
from fluxsched.sim.traces import Ask, Machine, Trace, TraceJob, read_trace, write_trace

__all__ = [
    "Ask", "Machine", "PluginSite", "Result", "Trace", "TraceJob", "examine", "examine_plugin", "generate",
    "read_trace", "run", "write_trace",
]  # fmt: skip
