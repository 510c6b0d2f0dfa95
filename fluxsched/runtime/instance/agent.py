"""An agent: stands for the targets of one machine, as `fluxsched agent`."""

from __future__ import annotations

import sys
from typing import Any

from fluxsched.core.resources import ResourceSet
from fluxsched.runtime.client.blocking import Handle
from fluxsched.runtime.inventory.discovery import discover


def agent(uri: str, *, host: str | None, ranks: str | None, heartbeat_s: float | None) -> int:
    """Stand for this machine's targets until killed; 1 when the instance goes away."""
    topology = discover()
    name = host or topology.host
    resources = replace_host(topology.resources(), name)
    with Handle(uri) as handle:
        hello: dict[str, Any] = {"host": name, "R": resources.to_json(), "heartbeat_s": heartbeat_s or 0.0}
        if ranks is not None:
            hello["ranks"] = ranks
        welcome = handle.rpc("agent.hello", hello)
        sys.stderr.write(f"agent of {name}: reports targets {welcome['targets']}\n")
        if name != topology.host:
            sys.stderr.write(f"agent of {name}: they are made up: tasks on them run on {topology.host}\n")
        sequence = 0
        while True:
            handle.rest(heartbeat_s or float(welcome["interval_s"]))
            sequence += 1
            handle.tell("agent.heartbeat", {"seq": sequence})


def replace_host(resources: ResourceSet, host: str) -> ResourceSet:
    """The same resources under another host name (for agents that report for a made-up host)."""
    found = resources.to_json()
    found["execution"]["nodelist"] = [host]
    return ResourceSet.parse(found)

