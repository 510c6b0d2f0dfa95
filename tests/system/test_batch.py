"""Nested instances: `batch`, `alloc`, what stock Flux's batch hands in, and how one finds the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fluxsched.core.jobspec import Jobspec

STOCK = "#!/bin/sh\necho $0 $*\nfluxsched resource list -n -o '{state} {nnodes} {ncores}'\nexit 7\n"


def stock_jobspec(user: Any, script: str, *args: str, **resources: Any) -> dict[str, Any]:
    """The jobspec that `flux batch` 0.88 hands in."""
    jobspec = Jobspec.from_command(
        ["flux", "broker", "{{tmpdir}}/script", *args],
        cwd=str(user.directory), environment=user.environment, output="flux-{{id}}.out", name="job.sh", **resources,
    ).to_json()  # fmt: skip
    system = jobspec["attributes"]["system"]
    system["shell"]["options"] |= {"per-resource": {"type": "node"}, "mpi": "none", "exit-timeout": "none"}
    system["files"] = {
        "script": {"mode": 0o100700, "size": len(script), "encoding": "utf-8", "data": script},
    }
    return jobspec


def test_a_jobspec_of_stock_flux_batch_runs_as_a_nested_instance(site: Any) -> None:
    with site.connect() as handle:
        jobid = handle.submit(stock_jobspec(site, STOCK, "one", ntasks=4, nodes=2))
        assert handle.wait(jobid)["status"] == 7 << 8
    [output] = site.directory.glob("flux-*.out")
    first, *rest = output.read_text().splitlines()
    assert first.endswith("/files/script one")
    assert [line.split() for line in rest] == [["free", "2", "4"], ["allocated", "0", "0"], ["down", "0", "0"]]
    assert not Path(first.split()[0]).exists()
