"""Waiting for many jobs with one stream: `job-manager.wait-all`.

Law: each job is reported once, after its end is on disk, and the stream ends with the last; of a job that is submitted
again after it was preempted the end of its last attempt counts. A stream waits for a table of ids, so that a hundred
thousand are dropped at once with their peer.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from fluxsched.core.jobid import format_f58
from fluxsched.errors import Refused
from fluxsched.jobs.job.attempts import read_next
from fluxsched.jobs.job.result import as_asked
from fluxsched.protocol.messages import jobs as msg
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns, Work, pieces
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import Router, forget
from fluxsched.runtime.services.jobs.effects import JobEffects, JobEvents
from fluxsched.runtime.services.jobs.records import clean_result, wait_response

NAMED_MAX = 20
"""Unknown jobs that an error names; it says how many more there are."""


class JobWaits:
    """Serves `job-manager.wait-all`."""

    def __init__(self, effects: JobEffects, router: Router, store: Store, turns: Turns) -> None:
        self._effects = effects
        self._manager = effects.manager
        self._store = store
        self._turns = turns
        self._left: dict[RpcRequest, dict[int, tuple[int, ...]]] = {}
        """For each stream the jobs that have not ended, and for each of these which jobs were asked for: earlier
        attempts, or itself."""
        router.serve({"job-manager.wait-all": self._wait_all})
        effects.publish.append(self._publish)

    def _wait_all(self, request: RpcRequest) -> None:
        ids = request.payload(msg.WaitAllRequest).ids
        jobs = self._manager.jobs
        unknown = [jobid for jobid in ids if jobid not in jobs]
        if unknown:
            more = f" and {len(unknown) - NAMED_MAX} more" if len(unknown) > NAMED_MAX else ""
            raise Refused(f"no such job: {', '.join(map(format_f58, unknown[:NAMED_MAX]))}{more}", errno.ENOENT)
        request.open_stream(lambda: forget(self._left, request))
        left: dict[int, tuple[int, ...]] = {}
        for jobid in dict.fromkeys(ids):
            last_id = jobs.last(jobid).id
            left[last_id] = (*left.get(last_id, ()), jobid)
        self._left[request] = left
        ended = [jobid for jobid in left if jobid in jobs.inactive]
        self._effects.after_commit(lambda: self._turns.spread(self._send_ended(request, ended), request.failed))

    def _send_ended(self, request: RpcRequest, ended: Sequence[int]) -> Work:
        """Those that had ended before; one that was just being stored has been reported already."""
        for some in pieces(ended):
            for jobid in some:
                self._send(request, jobid)
            yield
        if request in self._left and not self._left[request]:
            self._finish(request)

    def _publish(self, stored: Sequence[JobEvents]) -> None:
        if not self._left:
            return
        for jobid, events in stored:
            if events[-1]["name"] == "clean":
                next_id = read_next(events[-1])
                for request in list(self._left):
                    if next_id:
                        self._wait_on(request, jobid, next_id)
                    else:
                        self._send(request, jobid)

    def _wait_on(self, request: RpcRequest, jobid: int, next_id: int) -> None:
        """The job was preempted: what was waited for is its next attempt."""
        left = self._left[request]
        asked = left.pop(jobid, ())
        if asked:
            left[next_id] = (*left.get(next_id, ()), *asked)

    def _send(self, request: RpcRequest, jobid: int) -> None:
        left = self._left.get(request)
        if left is None or jobid not in left:
            return
        ended = clean_result(self._manager, self._store, jobid)
        for asked in left.pop(jobid):
            request.respond(wait_response(as_asked(asked, ended)))
        if not left:
            self._finish(request)

    def _finish(self, request: RpcRequest) -> None:
        forget(self._left, request)
        request.finish()
