"""A Flux scheduler that decides nothing: every job gets the first core of rank 0, whoever else has it.

What an instance reaches under it is the ceiling for every scheduler there: R is in the KVS before its job hears of it,
as many together as have arrived, and nothing else is done. `benchmarks/flux.py` loads it.
"""

from __future__ import annotations

from typing import Any

import flux.constants
from flux.brokermod import BrokerModule, request_handler
from flux.job import JobID
from flux.kvs import KVSTxn, commit_async

ALLOCATION = {
    "version": 1,
    "execution": {
        "R_lite": [{"rank": "0", "children": {"core": "0"}}],
        "starttime": 0,
        "expiration": 0,
        "nodelist": ["fake0"],
    },
}


class Nothing(BrokerModule):
    """RFC 27 and not a step more."""

    def __init__(self, h: Any, *args: str) -> None:
        super().__init__(h, *args)
        self._asked: list[Any] = []
        self._timer = h.timer_watcher_create(0.0, self._grant)
        for service in ("sched", "feasibility"):
            h.service_register(service).get()
        self._acquire = h.rpc("resource.acquire", flags=flux.constants.FLUX_RPC_STREAMING)
        self._acquire.then(self._acquired)
        self._greet()
        h.rpc("job-manager.sched-ready", {"mode": "unlimited"}).get()

    def _acquired(self, future: Any) -> None:
        try:
            future.get()
        except OSError:  # the instance ends
            self.stop()
        else:
            future.reset()

    def _greet(self) -> None:
        hello = self.handle.rpc("job-manager.sched-hello", {}, flags=flux.constants.FLUX_RPC_STREAMING)
        try:
            while True:
                hello.get()
                hello.reset()
        except OSError:  # ENODATA: all told
            return

    @request_handler("sched.alloc", prefix=False)
    def alloc(self, message: Any) -> None:
        """Wait for what else has arrived."""
        if not self._asked:
            self._timer.reset(after=0.0)
        self._asked.append(message)

    @request_handler("sched.free", prefix=False)
    def free(self, message: Any) -> None:
        """There is nothing to give back."""

    def _grant(self, *_: Any) -> None:
        asked, self._asked = self._asked, []
        transaction = KVSTxn(self.handle)
        for message in asked:
            transaction.put(f"{JobID(message.payload['id']).kvs}.R", ALLOCATION)
        commit_async(self.handle, _kvstxn=transaction).then(self._stored, asked)

    def _stored(self, future: Any, asked: list[Any]) -> None:
        future.get()
        for message in asked:
            self.handle.respond(message, {"id": message.payload["id"], "type": 0, "R": ALLOCATION})


def mod_main(h: Any, *args: str) -> None:
    """What Flux calls."""
    Nothing(h, *args).run()
