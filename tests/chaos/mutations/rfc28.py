"""A sabotage for each law (SHALL) of RFC 28's draft, which the exhaustive search must notice.

That the response to a release is empty is the service's, and no machine's: `Answers` judges it in disasters.
"""

from __future__ import annotations

from tests.chaos.mutations.sabotage import Sabotage

_STREAM = "fluxsched.protocol.sessions:to_messages"
_SCHEDULER = "fluxsched.sched.engine.scheduler:Scheduler"
_SESSION = "fluxsched.scheduler.session:SchedulerSession"
_RESOURCE = "fluxsched.resource"

LAWS = (
    Sabotage(
        "the scheduler shall send a streaming acquire request at initialization", f"{_SESSION}.start",
        "stream.request(), True, group", "stream.request(), False, group",
    ),
    Sabotage(
        "each response shall have its type", _STREAM, "made.append(Shrink(str(change.shrink)))",
        "made.append(Offline(str(change.shrink)))",
    ),
    Sabotage(
        "a grow shall have online and offline targets", _STREAM,
        "str(change.offline & joined)\n        outages", "''\n        outages",
    ),
    Sabotage(
        "a grow shall have the resources to add", f"{_RESOURCE}.changes:Session.change", "self.targets = members",
        "pass",
    ),
    Sabotage("a shrink shall have its targets", _STREAM, "Shrink(str(change.shrink))", "Shrink('')"),
    Sabotage(
        "what a shrink names shall not be allocated", "fluxsched.sched.engine.group:Group.shrink",
        "self.pool.remove(targets)", "pass",
    ),
    Sabotage(
        "the scheduler shall process frees of what was subtracted", f"{_SESSION}._free",
        "_blocks_of(job.R.execution.R_lite)",
        "blocks_in(parse_rlite(job.R.execution.R_lite).restrict(self._acquired()))",
    ),
    Sabotage(
        "what becomes free shall be released", "fluxsched.sched.engine.held_jobs:HeldJobs.freed",
        "if emptied and group.leaving:", "if False:",
    ),
    Sabotage(
        "what is free at the shrink shall be released", f"{_SCHEDULER}.shrunk",
        "effects += at.release(targets - self._ledger.held(targets))", "pass",
    ),
    Sabotage(
        "nothing shall be released before it is free", f"{_SCHEDULER}.shrunk",
        "at.release(targets - self._ledger.held(targets))", "at.release(targets)",
    ),
    Sabotage("an online response shall have its targets", _STREAM, "Online(str(online))", "Online('')"),
    Sabotage("an offline response shall have its targets", _STREAM, "Offline(str(offline))", "Offline('')"),
    Sabotage(
        "what is offline shall not be allocated", f"{_SCHEDULER}.went_offline",
        "group.set_availability(targets, up=False)", "pass",
    ),
    Sabotage(
        "what is online again shall be allocated", f"{_SCHEDULER}.went_online",
        "group.set_availability(targets, up=True)", "pass",
    ),
    Sabotage(
        "no exception shall be raised on jobs of what is offline", f"{_SCHEDULER}.went_offline",
        "return effects", "return effects + self._held.end_on(targets, now_s)",
    ),
    Sabotage(
        "the group of a release shall match that of the acquire request",
        "fluxsched.protocol.sessions:AcquireClient.release",
        "ReleaseRequest(self.group,", "ReleaseRequest('b' if self.group == 'default' else 'default',",
    ),
    Sabotage(
        "the targets of a release shall match the shrink",
        "fluxsched.protocol.sessions:AcquireClient.release",
        "str(targets))",
        "str(targets | self.acquired))",
    ),
    Sabotage(
        "what no shrink named shall not be released", f"{_SCHEDULER}.went_offline", "return effects",
        "return effects + self._groups[self._unnamed[0].name].release(targets)",
    ),
    Sabotage(
        "a group shall have one acquirer", f"{_RESOURCE}.changes:Sessions.open", "if name in self._of:", "if False:",
    ),
    Sabotage(
        "a disconnect shall make a group available again", f"{_RESOURCE}.changes:Sessions.close",
        "del self._of[session.group]", "pass",
    ),
    Sabotage(
        "a disconnect shall leave running jobs alone", f"{_RESOURCE}.module:ResourceModule._raise_for",
        "self._target_use.raise_once(session.unreleased)", "self._target_use.raise_once(self._target_use.held)",
    ),
    Sabotage(
        "no target shall leave before its release", f"{_RESOURCE}.changes:Moves._ready",
        " - (EMPTY if session is None else session.unreleased)", "",
    ),
    Sabotage(
        "no target shall leave while a job holds it", f"{_RESOURCE}.changes:Moves._ready",
        "leaving - self._target_use.held - ", "leaving - ",
    ),
)  # fmt: skip
