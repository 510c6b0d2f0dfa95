"""Requests of the YuniKorn scheduler interface: what resource managers send to the machine, and its bytes.

One input is a list of steps: a request by its class, with its fields as protobuf's JSON, or seconds that pass.
"""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format

from fluxsched.yunikorn import messages
from fluxsched.yunikorn.machine import SIMachine
from fluxsched.yunikorn.service import decode
from tests.fuzz.target import Shape, Target, json_seeds
from tests.fuzz.targets.files import SI_CONFIG
from tests.yunikorn.machine.rms import World

STEPS_MAX = 24
SECONDS_MAX = 10_000.0
CALLS: dict[str, Any] = {
    "RegisterResourceManagerRequest": lambda machine, request, now_s: machine.register(request, now_s),
    "UpdateConfigurationRequest": SIMachine.update_configuration,
    "AllocationRequest": SIMachine.update_allocation,
    "ApplicationRequest": SIMachine.update_application,
    "NodeRequest": SIMachine.update_node,
}


def _machine(data: bytes) -> None:
    world = World()
    try:
        steps = json.loads(data)
    except (ValueError, RecursionError):  # the input's, not ours
        return
    for step in steps[:STEPS_MAX] if isinstance(steps, list) else ():
        if isinstance(step, int | float):
            if 0 <= step <= SECONDS_MAX:
                world.run(float(step))
        elif isinstance(step, dict):
            for name, fields in step.items():
                _call(world, name, fields)
    json.dumps(world.machine.state_dump(None))


def _call(world: World, name: str, fields: Any) -> None:
    call = CALLS.get(name)
    if call is None or not isinstance(fields, dict):
        return
    try:
        request = json_format.ParseDict(fields, getattr(messages, name)(), ignore_unknown_fields=True)
    except (
        json_format.Error,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
        SystemError,
        OverflowError,
    ):  # protobuf's own, not ours
        return
    try:
        messages.check(request, type(request))
        call(world.machine, request, world.now_s)
    finally:
        world.run()


def _bytes(data: bytes) -> None:
    name, _, body = data.partition(b"\n")
    shape: Any = getattr(messages, name.decode("ascii", "replace"), None)
    if hasattr(shape, "FromString"):
        request = decode(shape, body)
        assert shape.FromString(request.SerializeToString()) == request


REGISTER = {"RegisterResourceManagerRequest": {"rmID": "rm", "version": "1"}}
NODE = {
    "NodeRequest": {
        "rmID": "rm",
        "nodes": [
            {
                "nodeID": "n1",
                "action": "CREATE",
                "attributes": {"x": "y"},
                "schedulableResource": {"resources": {"vcore": {"value": 10}, "memory": {"value": 1000}}},
            }
        ],
    }
}
APPLICATION = {
    "ApplicationRequest": {
        "rmID": "rm",
        "new": [
            {
                "applicationID": "app",
                "queueName": "root.default",
                "partitionName": "default",
                "ugi": {"user": "ann", "groups": ["g"]},
                "tags": {"namespace": "a"},
                "executionTimeoutMilliSeconds": 1000,
                "placeholderAsk": {"resources": {"vcore": {"value": 2}}},
            }
        ],
    }
}
ASK = {
    "AllocationRequest": {
        "rmID": "rm",
        "asks": [
            {
                "allocationKey": "a",
                "applicationID": "app",
                "maxAllocations": 2,
                "priority": 1,
                "placeholder": True,
                "taskGroupName": "g",
                "resourceAsk": {"resources": {"vcore": {"value": 2}}},
                "preemptionPolicy": {"allowPreemptSelf": True},
            }
        ],
    }
}
REAL = {
    "AllocationRequest": {
        "rmID": "rm",
        "asks": [
            {
                "allocationKey": "b",
                "applicationID": "app",
                "taskGroupName": "g",
                "resourceAsk": {"resources": {"vcore": {"value": 2}}},
            }
        ],
    }
}
RELEASE = {
    "AllocationRequest": {
        "rmID": "rm",
        "releases": {
            "allocationsToRelease": [
                {"partitionName": "default", "applicationID": "app", "UUID": "u1", "terminationType": "STOPPED_BY_RM"}
            ],
            "allocationAsksToRelease": [{"applicationID": "app", "allocationKey": "a"}],
        },
    }
}
EXISTING = {
    "NodeRequest": {
        "rmID": "rm",
        "nodes": [
            {
                "nodeID": "n2",
                "action": "CREATE",
                "schedulableResource": {"resources": {"vcore": {"value": 10}}},
                "existingAllocations": [
                    {
                        "UUID": "x",
                        "allocationKey": "k",
                        "applicationID": "app",
                        "nodeID": "n2",
                        "resourcePerAlloc": {"resources": {"vcore": {"value": 1}}},
                    }
                ],
            },
            {"nodeID": "n1", "action": "DRAIN_NODE"},
            {"nodeID": "n2", "action": "DECOMISSION"},
        ],
    }
}
END = {"ApplicationRequest": {"rmID": "rm", "remove": [{"applicationID": "app", "partitionName": "default"}]}}
CONFIGURE = {"UpdateConfigurationRequest": {"rmID": "rm", "config": SI_CONFIG}}
STEPS = (
    [REGISTER, NODE, APPLICATION, ASK, 1, REAL, 5, RELEASE, 100, END],
    [REGISTER, APPLICATION, EXISTING, ASK, RELEASE, 1000],
    [
        {"RegisterResourceManagerRequest": {"rmID": "rm", "policyGroup": "g", "config": SI_CONFIG}},
        NODE,
        CONFIGURE,
        APPLICATION,
        ASK,
        9,
    ],
    [REGISTER, NODE, APPLICATION, ASK, REGISTER, NODE, RELEASE],
)


def _byte_seeds() -> list[bytes]:
    found = []
    for step in (step for steps in STEPS for step in steps if isinstance(step, dict)):
        for name, fields in step.items():
            request = json_format.ParseDict(fields, getattr(messages, name)())
            found.append(name.encode() + b"\n" + request.SerializeToString())
    return found


TARGETS = (
    Target(
        "si-machine",
        _machine,
        lambda: json_seeds(STEPS),
        Shape.JSON,
        words=(
            "rm",
            "app",
            "u1",
            "n1",
            "n2",
            "root.default",
            "root.a",
            "CREATE",
            "UPDATE",
            "DRAIN_NODE",
            "DECOMISSION",
            "vcore",
            "PREEMPTED_BY_SCHEDULER",
            "PLACEHOLDER_REPLACED",
            "TIMEOUT",
            "yunikorn.apache.org/app-placeholder-timeout",
            "namespace.resourcequota",
            "9223372036854775807",
            "-9223372036854775808",
        ),
    ),
    Target("si-bytes", _bytes, _byte_seeds),
)
