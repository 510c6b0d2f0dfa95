"""A health check that drains all failing hosts or none, and prints the drained targets with their reasons."""

import sys

import fluxsched


def sick_hosts(hosts: list[str]) -> list[str]:
    """Stand-in for a real check: every third host has a bad fan."""
    return hosts[::3]


with fluxsched.connect_sync() as h:
    status = h.rpc("resource.status")
    hosts = list(fluxsched.ResourceSet.parse(status["R"]).nodelist)
    sick = str(fluxsched.Hostlist.of(sick_hosts(hosts)))
    try:
        h.drain(sick, "fan speed below limit")
    except fluxsched.RPCError as error:
        sys.exit(f"not drained: {error}")  # the error names every offender; none was drained
    for targets, line in h.rpc("resource.status")["drain"].items():
        print(f"{targets:8} {line['state']:8} {line['user']:8} {line['reason']}")
