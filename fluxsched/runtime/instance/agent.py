"""An agent: stands for the targets of hosts, as `fluxsched agent`."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from math import inf
from typing import Any

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import Disconnected, InvalidValue, RPCError
from fluxsched.runtime.client.blocking import Handle
from fluxsched.runtime.inventory.discovery import discover
from fluxsched.runtime.system.clock import SystemClock, sleep

TAKEN_S = 10.0
"""How long an instance may take to notice that the connection before is lost (seconds)."""
AGAIN_S = 0.2
"""How often its targets are asked for meanwhile (seconds)."""
HOSTS_MAX = 4096
"""Hosts of one agent: one message each."""


def agent(uri: str, *, host: str | None, ranks: str | None, heartbeat_s: float | None) -> int:
    """Stand for this machine's targets, or for those of all hosts in a hostlist, until killed.

    An instance that is lost is looked for as long as it may come back: Disconnected once it does not.
    """
    topology = discover()
    hosts = [*Hostlist.parse(host)] if host is not None else [topology.host]
    if len(hosts) > HOSTS_MAX:
        raise InvalidValue(f"--host {host} names {len(hosts)} hosts, above the limit of {HOSTS_MAX}: start more agents")
    if len(set(hosts)) < len(hosts) or not hosts:
        raise InvalidValue(f"--host {host!r} is to name hosts, each once")
    found = (topology if hosts == [topology.host] else topology.without_memory()).resources()
    hellos = [_hello(name, found, ranks, heartbeat_s) for name in hosts]
    is_new = True
    with Handle(uri) as handle:
        while True:
            try:
                interval_s = _begin(handle, hellos, patient=not is_new)
                if is_new and hosts != [topology.host]:
                    sys.stderr.write(f"agent of {host}: they are made up: tasks on them run on {topology.host}\n")
                is_new = False
                _beat(handle, heartbeat_s or interval_s)
            except Disconnected as fault:
                sys.stderr.write(f"agent of {host or topology.host}: {fault}: connecting again when it is back\n")
                handle.reconnect(within_s=inf, also_stopped=True)


def _hello(host: str, found: ResourceSet, ranks: str | None, heartbeat_s: float | None) -> dict[str, Any]:
    hello: dict[str, Any] = {"host": host, "R": replace_host(found, host).to_json(), "heartbeat_s": heartbeat_s or 0.0}
    return hello if ranks is None else {**hello, "ranks": ranks}


def _begin(handle: Handle, hellos: Sequence[dict[str, Any]], *, patient: bool) -> float:
    """Register all hosts; how often to send heartbeats (seconds). If `patient`, targets that still belong to the
    connection before are waited for.
    """
    until_s = SystemClock.monotonic_s() + TAKEN_S
    interval_s = 0.0
    for hello in hellos:
        while True:
            try:
                welcome = handle.rpc("agent.hello", hello)
                break
            except RPCError as fault:
                if fault.errnum != errno.EEXIST or not patient or SystemClock.monotonic_s() > until_s:
                    raise
                sleep(AGAIN_S)
        sys.stderr.write(f"agent of {hello['host']}: reports targets {welcome['targets']}\n")
        interval_s = float(welcome["interval_s"])
    return interval_s


def _beat(handle: Handle, interval_s: float) -> None:
    sequence = 0
    while True:
        handle.rest(interval_s)
        sequence += 1
        handle.tell("agent.heartbeat", {"seq": sequence})


def replace_host(resources: ResourceSet, host: str) -> ResourceSet:
    """The same resources under another host name (for agents that report for a made-up host)."""
    found = resources.to_json()
    found["execution"]["nodelist"] = [host]
    return ResourceSet.parse(found)
