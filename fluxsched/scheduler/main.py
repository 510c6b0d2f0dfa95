"""Process entry of a scheduler module.

    python -m fluxsched.scheduler.main --uri URI --name N --group G SPECS

The last line on stderr is why it ended (`reason_line`); the instance shows it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from fluxsched.client.aio import connect
from fluxsched.client.find import key_for
from fluxsched.config.reader import fair_settings
from fluxsched.core.jobfields import SiteLimit
from fluxsched.errors import FluxschedError
from fluxsched.sched.engine.policy_queue import UNSATISFIABLE, WAIT
from fluxsched.sched.engine.scheduler import DEFAULT_GROUP, Scheduler
from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.sched.hooks import with_limits
from fluxsched.sched.policy import Policy, reads_fair
from fluxsched.sched.preemption import PREEMPT_TIMEOUT_S
from fluxsched.sched.registry import Loaded, load
from fluxsched.scheduler.host import SchedulerHost
from fluxsched.system import log
from fluxsched.system.clock import SystemClock, local_text
from fluxsched.system.files import user_name
from fluxsched.system.loop import Turns
from fluxsched.system.processes import die_with, reason_line, settle
from fluxsched.transport.zeromq import ZmqClient


def policies_of(specs: str) -> Loaded:
    """Return policies and plugins, ready; exceptions of their code become an error of one line."""
    try:
        return load(specs)
    except FluxschedError:
        raise
    except SystemExit as exc:
        raise FluxschedError(f"policy {specs} ended the process while it was loaded: {log.left(exc)}") from exc
    except Exception as exc:  # foreign code: its author needs to see whatever it raises
        raise FluxschedError(f"policy {specs} raised {log.exception_text(exc)}") from exc


async def settled(uri: str, policies: Iterable[Policy]) -> FairSettings | None:
    """Return the site's settings of `[fair]`, if a policy asks for them. Raises InvalidValue for a bad table."""
    if not any(reads_fair(policy) for policy in policies):
        return None
    async with connect(uri) as handle:
        return fair_settings(await handle.rpc("config.get"))


async def serve(
    uri: str,
    name: str,
    specs: str,
    groups: tuple[str, ...],
    queues: Mapping[str, tuple[str, ...]],
    unsatisfiable: str,
    preempt_timeout_s: float,
    limits: Sequence[SiteLimit],
) -> str | None:
    """Run the module until it is asked to stop (None) or fails (the reason)."""
    policy, own, plugins = policies_of(specs)
    fair = await settled(uri, (policy, *own.values()))
    scheduler = Scheduler(
        policy,
        groups,
        queues,
        own,
        unsatisfiable=unsatisfiable,
        time_text=local_text,
        fair=fair,
        user_name=user_name,
        preempt_timeout_s=preempt_timeout_s,
        plugins=with_limits(plugins, limits),
    )
    return await host_until_end(uri, name, scheduler, groups)


async def host_until_end(
    uri: str,
    name: str,
    scheduler: Scheduler,
    groups: tuple[str, ...],
    attend: Callable[[SchedulerHost, Turns], None] = lambda host, turns: None,
) -> str | None:
    """Run a scheduler as a module until it is asked to stop (None) or fails (the reason).

    `attend` is called before it starts, with the host and the turns in which all happens.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str | None] = loop.create_future()

    def end(reason: str | None) -> None:
        if not ended.done():
            ended.set_result(reason)

    turns = Turns(SystemClock(), lambda exc: end(log.exception_text(exc)))
    client = ZmqClient(uri, keys=key_for(uri))
    host = SchedulerHost(client, scheduler, groups, turns, name, end)
    attend(host, turns)
    loop.add_signal_handler(signal.SIGTERM, turns.post, host.leave)
    client.start(loop, turns.wake)
    turns.start(loop)
    host.start()
    settle()
    try:
        return await ended
    finally:
        turns.stop()
        client.close()


def _limits(text: str) -> list[SiteLimit]:
    return [SiteLimit(**each) for each in json.loads(text)]


def main() -> int:
    """Parse and run; the exit status is 0 (asked to stop), 1 (failed) or 2 (could not start)."""
    parser = argparse.ArgumentParser(prog="fluxsched-sched", description=__doc__)
    parser.add_argument("--uri", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--group", action="append", default=[])
    parser.add_argument("--queue", action="append", default=[], help="NAME=GROUP; once for each of its groups")
    parser.add_argument("--unsatisfiable", choices=UNSATISFIABLE, default=WAIT)
    parser.add_argument("--preempt-timeout", type=float, default=PREEMPT_TIMEOUT_S, help="seconds")
    parser.add_argument("--limits", type=_limits, default=[], help="those of the site, as a list of objects")
    parser.add_argument("specs", metavar="SPEC[;QUEUE=SPEC...]")
    parser.add_argument("--instance", type=int, help="process id of the instance; this process ends with it")
    options = parser.parse_args()
    if options.instance is not None:
        die_with(options.instance)
    log.set_up_logging(None, verbose=1)
    try:
        groups = tuple(options.group) or (DEFAULT_GROUP,)
        queues: dict[str, tuple[str, ...]] = {}
        for queue, _, group in (pair.partition("=") for pair in options.queue):
            queues[queue] = (*queues.get(queue, ()), group)
        terms = options.unsatisfiable, options.preempt_timeout, options.limits
        reason = asyncio.run(serve(options.uri, options.name, options.specs, groups, queues, *terms))
    except FluxschedError as exc:
        sys.stderr.write(reason_line(str(exc)))
        return 2
    if reason is not None:
        sys.stderr.write(reason_line(reason))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
