"""The simulator: a trace through the production scheduler on virtual time (rfc/simulator.md).

    result = fluxsched.sim.run("KTH-SP2.swf.gz", "easy")
    result.to_csv("jobs.csv"); result.summary.slowdown.mean
"""

from __future__ import annotations

from fluxsched.sim.conformance.hooked.plugin_site import PluginSite
from fluxsched.sim.conformance.hooked.plugin_suite import examine_plugin
from fluxsched.sim.conformance.suite import examine
from fluxsched.sim.engine.run import run
from fluxsched.sim.results.result import Result
from fluxsched.sim.traces.files import read_trace, write_trace
from fluxsched.sim.traces.lublin import generate
from fluxsched.sim.traces.trace import Ask, Machine, Trace, TraceJob

__all__ = [
    "Ask", "Machine", "PluginSite", "Result", "Trace", "TraceJob", "examine", "examine_plugin", "generate",
    "read_trace", "run", "write_trace",
]  # fmt: skip
