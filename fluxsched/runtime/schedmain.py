"""Process entry of a scheduler module: `python -m fluxsched.runtime.schedmain --uri URI --name N --group G SPEC`.

The last line on stderr is why it ended; the instance shows it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys

from fluxsched.errors import FluxschedError
from fluxsched.runtime import log
from fluxsched.runtime.clock import SystemClock
from fluxsched.runtime.schedhost import SchedulerHost
from fluxsched.runtime.turns import Turns
from fluxsched.sched.policy import Policy
from fluxsched.sched.registry import make, parse_spec
from fluxsched.sched.scheduler import DEFAULT_GROUP, Scheduler
from fluxsched.transport.zeromq import ZmqClient

GC_THRESHOLD = 100_000
"""Allocations between collections: messages make no cycles, so collecting rarely costs nothing."""


def policy_of(spec: str) -> Policy:
    """The policy; whatever its own code raises while it is loaded and made is said in one line."""
    try:
        return make(*parse_spec(spec))
    except FluxschedError:
        raise
    except Exception as exc:  # foreign code: whatever it raises is its author's to know
        raise FluxschedError(f"policy {spec} raised {log.blamed(exc)}") from exc


async def serve(uri: str, name: str, spec: str, groups: tuple[str, ...], queues: dict[str, str]) -> str | None:
    """Run the module until it is told to leave (None) or fails (the reason)."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str | None] = loop.create_future()

    def end(reason: str | None) -> None:
        if not ended.done():
            ended.set_result(reason)

    policy = policy_of(spec)
    turns = Turns(SystemClock())
    turns.failed = lambda exc: end(log.blamed(exc))
    client = ZmqClient(uri)
    host = SchedulerHost(client, Scheduler(policy, groups, queues), groups, turns, name)
    host.on_end = end
    loop.add_signal_handler(signal.SIGTERM, end, None)
    client.start(loop, turns.wake)
    turns.start(loop)
    host.start()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    try:
        return await ended
    finally:
        turns.stop()
        client.close()


def main() -> int:
    """Parse, run, and leave with 0 (told to), 1 (failed) or 2 (could not begin)."""
    parser = argparse.ArgumentParser(prog="fluxsched-sched", description=__doc__)
    parser.add_argument("--uri", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--group", action="append", default=[])
    parser.add_argument("--queue", action="append", default=[], help="NAME=GROUP")
    parser.add_argument("spec")
    options = parser.parse_args()
    log.setup(None, verbose=1)
    try:
        groups = tuple(options.group) or (DEFAULT_GROUP,)
        queues = dict(pair.split("=", 1) for pair in options.queue)
        reason = asyncio.run(serve(options.uri, options.name, options.spec, groups, queues))
    except FluxschedError as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    if reason is not None:
        sys.stderr.write(f"{reason}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
