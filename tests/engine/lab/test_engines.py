"""What real engines answer when they are asked for hosts, and that a keeper's input and report pass through them."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.engine.lab.hosts import Lab, until

ASK = """
import json, os, subprocess, sys
from fluxsched.config.values import EngineSettings
from fluxsched.core.hostlist import Hostlist
from fluxsched.engine.engines import chosen_engine
keeper = "sh", "-c", 'echo "report of $(hostname)"; read secret; echo "$(hostname) was told $secret"', "sh"
engine = chosen_engine(EngineSettings(kind=sys.argv[1], hosts=sys.argv[2]), os.environ, keeper)
held = engine.allocation()
said = []
for command in engine.commands(Hostlist.parse(sys.argv[3])):
    done = subprocess.run(command.words, env=command.environment, input="it\\n", capture_output=True, text=True)
    said += [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("srun: ")]
print(json.dumps([engine.identity, str(held.hosts), held.expiration_s, said, [engine.is_down(h) for h in held.hosts]]))
"""
ENGINES = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("slurm", "flux", "ssh")]
TOLD = ["report of %s", "%s was told it"]


def asked(lab: Lab, kind: str, hosts: str) -> list[Any]:
    """Return what an engine answers on n1, and what its keepers on these hosts print."""
    within = ["salloc", "-Q", "-N4", "-t5", "--no-kill"] if kind == "slurm" else []
    program = [sys.executable, "-c", ASK, kind, "n[1-4]" if kind == "ssh" else "", hosts]
    found: list[Any] = json.loads(lab.run("n1", *within, *program).splitlines()[-1])
    return found


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_holds_the_hosts_and_passes_reports_and_input(lab: Lab, kind: str) -> None:
    identity, hosts, expiration_s, said, down = asked(lab, kind, "n[1-4]")
    assert identity.startswith(f"{kind}:")
    assert hosts == "n[1-4]"
    assert (expiration_s > 0) == (kind == "slurm")
    assert sorted(said) == sorted(line % name for name in lab.names for line in TOLD)
    assert down == [None if kind == "ssh" else False] * 4


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_starts_a_keeper_on_one_of_its_hosts(lab: Lab, kind: str) -> None:
    assert sorted(asked(lab, kind, "n3")[3]) == sorted(line % "n3" for line in TOLD)


@pytest.mark.slurm
def test_slurm_says_that_a_node_is_down(lab: Lab) -> None:
    lab.run("n1", "scontrol", "update", "nodename=n4", "state=down", "reason=test")
    try:
        ask = (
            f"{sys.executable} -c 'import os; from fluxsched.engine.engines import SlurmEngine as S; "
            'e = S(os.environ, ()); print(e.is_down("n3"), e.is_down("n4"))\''
        )
        assert lab.run("n1", "salloc", "-Q", "-wn[1-3]", "-N3", "sh", "-c", ask).split() == ["False", "True"]
    finally:
        lab.run("n1", "scontrol", "update", "nodename=n4", "state=resume")
        until(lambda: "idle" in lab.run("n1", "sinfo", "-h", "-n", "n4", "-o", "%T"), "n4 is idle")
