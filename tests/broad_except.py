"""The few places that may catch every exception, each with its reason: `FILE:FUNCTION`."""

from __future__ import annotations

BROAD_EXCEPT = {
    "fluxsched/yunikorn/machine/machine.py:_share_of": "a bug costs one resource manager its state, not all of them",
    "fluxsched/yunikorn/in_process.py:_call_back": "a bug of a resource manager is logged, and others are called",
    "fluxsched/yunikorn/in_process.py:_own_dump": "a bug of a resource manager is in what it says of itself",
    "fluxsched/yunikorn/machine/machine.py:refusal": "what a callback raises is its refusal: so is the interface",
    "fluxsched/yunikorn/machine/machine.py:last_to_go": "the same",
    "fluxsched/sched/hooks/chain.py:ask": "a plugin's bug holds back the job it was asked about, and nothing else",
    "fluxsched/flux/bridge.py:_pass": "a plugin's bug is logged, and neither Flux nor the module ends",
    "fluxsched/flux/broker/sched-fluxsched.py:call": "Flux takes the broker down for what leaves a callback",
    "fluxsched/sim/conformance/suite.py:tried": "a plugin's bug is what the suite looks for",
    "fluxsched/sim/conformance/plugin_site.py:check": "the same",
    "fluxsched/sim/policy_guard.py:policy_faults": "a plugin's bug becomes a refusal, with its line",
    "fluxsched/config/policies.py:_listed": "a plugin's bug while it is imported is a line of the list",
    "fluxsched/config/submit_filters.py:verdict": "a submit filter's bug refuses the one job",
    "fluxsched/instance/launch.py:_run_daemon": "the daemon's last line: its starter must learn why",
    "fluxsched/messaging/router.py:_dispatch": "a handler's bug ends its call, not the instance",
    "fluxsched/messaging/router.py:_accept": "a bug in taking an answer costs its sender the connection",
    "fluxsched/services/job_effects.py:_launch": "a job that cannot be started fails alone",
    "fluxsched/executor/keeper.py:_start": "a job that cannot be started fails alone",
    "fluxsched/executor/keeper.py:serve": "the keeper's last line: its log must have the reason",
    "fluxsched/engine/guard.py:_run_one": "the keeper's last line: its guard starts another one",
    "fluxsched/store/store.py:ask": "a bug in a query is reported to who asked, and the thread goes on",
    "fluxsched/system/loop.py:run_isolated": "a bug in one call is noted, and the others are made",
    "fluxsched/system/loop.py:isolated_work": "the same of long work",
    "fluxsched/system/loop.py:_turn": "the shell's last line: a bug ends the instance, with its story",
    "fluxsched/scheduler/host.py:_schedule": "a plugin's bug ends the scheduler, not the instance",
}
