"""The sabotages: each a mistake that could be made, and that some seed must notice."""

from __future__ import annotations

from tests.chaos.mutations.sabotage import Sabotage

_RESOURCE = "fluxsched.resource"
_JOBS = "fluxsched.jobs.lifecycle"
_SCHED = "fluxsched.sched"

RESOURCE = (
    Sabotage(
        "grow the next group before the release", f"{_RESOURCE}.changes:Moves._ready",
        " - (EMPTY if session is None else session.unreleased)", "",
    ),
    Sabotage(
        "let targets leave while jobs hold them", f"{_RESOURCE}.changes:Moves._ready",
        "leaving - self._target_use.held - ", "leaving - ",
    ),
    Sabotage(
        "forget a release", f"{_RESOURCE}.changes:Sessions.release", "session.unreleased -= targets", "pass",
    ),
    Sabotage(
        "say something in the response to a release", "fluxsched.services.resource:ResourceService._release",
        "self.answer(request)", "self._answer(request, wanted)",
    ),
    Sabotage(
        "take a release for a shrink's that was not sent", f"{_RESOURCE}.changes:Session.begin_leaving",
        "self.unreleased |= leaving", "pass",
    ),
    Sabotage("forget a disconnect", f"{_RESOURCE}.changes:Sessions.close", "del self._of[session.group]", "pass"),
    Sabotage(
        "let two acquire one group", f"{_RESOURCE}.changes:Sessions.open", "if name in self._of:", "if False:",
    ),
    Sabotage(
        "drop a change that has a grow", f"{_RESOURCE}.changes:Sessions.report", "if change is not None:",
        "if change is not None and change.grow is None:",
    ),
    Sabotage(
        "drop a merged offline", "fluxsched.protocol.sessions:AcquireServer.add",
        "(self._online | change.online) - change.offline", "self._online | change.online",
    ),
    Sabotage(
        "send a change twice", "fluxsched.protocol.sessions:AcquireServer._make",
        "        self._reported = self._online\n", "        pass\n",
    ),
    Sabotage(
        "lose an undrain at a restart", f"{_RESOURCE}.drain:Drains.lift",
        'self._out.save("drain", self._targets.key(rank), None)', "pass",
    ),
    Sabotage(
        "lose a drain at a restart", f"{_RESOURCE}.drain:Drains._put",
        'self._out.save("drain", self._targets.key(rank), _to_row(reasons))', "pass",
    ),
    Sabotage(
        "forget why a target is drained when a reason is added", f"{_RESOURCE}.drain:Drains.add",
        "(*before[:at], mine, *before[at + 1 :])", "(mine,)",
    ),
    Sabotage(
        "undrain one target too many", f"{_RESOURCE}.drain:Drains.undrain",
        "self.lift(targets,", "self.lift(targets | self.drained,",
    ),
    Sabotage(
        "answer a drain before it is stored", "fluxsched.services.resource:ResourceService.answer",
        "self._store.after_commit(lambda: request.respond(payload))", "request.respond(payload)",
    ),
    Sabotage(
        "lose an assignment at a restart", f"{_RESOURCE}.module:ResourceModule._assign",
        'self.journal.save("assign", self.targets.key(rank), None if name is None else {"group": name})', "pass",
    ),
    Sabotage(
        "lose a move under way at a restart", f"{_RESOURCE}.changes:Restorer._move",
        "if moves:", "if False:",
    ),
    Sabotage(
        "count a job's targets for ever", f"{_RESOURCE}.drain:TargetUse._leave",
        "self._holders[rank] -= 1", "pass",
    ),
    Sabotage(
        "keep drained targets usable", f"{_RESOURCE}.changes:Moves.usable",
        "self._monitor.available - self._drains.drained", "self._monitor.available",
    ),
)  # fmt: skip

JOBS = (
    Sabotage(
        "skip a free", "fluxsched.jobs.lifecycle:Lifecycle.release",
        "link.free(job.id, remainder, was_last, self.out)", "pass",
    ),
    Sabotage("drop frees before ready", "fluxsched.jobs.lifecycle:Link.free", "self.deferred.append(free)", "pass"),
    Sabotage(
        "do not give back what came too late", "fluxsched.jobs.allocation:Allocation.alloc_granted",
        "self._lifecycle.out.append(ToScheduler(scheduler, FreeRequest(jobid, R, True)))", "pass",
    ),
    Sabotage(
        "forget requests of a lost scheduler", "fluxsched.jobs.allocation:Allocation.scheduler_lost",
        "self._lifecycle.enqueue(job)", "pass",
    ),
    Sabotage(
        "forget requests that were cancelled", "fluxsched.jobs.allocation:Allocation.alloc_canceled",
        "self._lifecycle.enqueue(job)", "pass",
    ),
    Sabotage(
        "tell a new scheduler of no running job", "fluxsched.jobs.allocation:Allocation.hello",
        "if job.held and", "if False and",
    ),
    Sabotage(
        "forget waiting jobs at a restart", "fluxsched.jobs.manager:_resume",
        "        lifecycle.enqueue(job)\n", "        pass\n",
    ),
    Sabotage(
        "forget what running jobs hold at a restart", "fluxsched.jobs.manager:restore",
        "lifecycle.out.append(TargetsGranted(job.id, job.held))", "pass",
    ),
    Sabotage(
        "start before it is stored", "fluxsched.services.job_effects:JobEffects._start",
        "self._starts.append(one)", "self.turns.post(lambda: self._launch(one))",
    ),
    Sabotage(
        "announce before it is stored", "fluxsched.services.job_effects:JobEffects._persist",
        "    self._unpublished_events.append((jobid, events))\n",
        "    for publish in self.publish:\n        publish([(jobid, events)])\n"
        "    for notify in self.published:\n        notify()\n",
    ),
    Sabotage(
        "answer a submit before it is stored", "fluxsched.services.jobs:JobService.accept",
        "self.answer(request, response(jobid))", "request.respond(response(jobid))",
    ),
    Sabotage(
        "count jobs again that are counted", "fluxsched.history:JobAccounting.write",
        'self._store.change("all is counted")', "pass",
    ),
    Sabotage(
        "lose a job's end", "fluxsched.services.job_effects:JobEffects._persist",
        'self._store.add("job_log",', 'ended_s or self._store.add("job_log",',
    ),
    Sabotage(
        "lose a stopped queue at a restart", "fluxsched.services.job_effects:JobEffects._save_queue",
        'self._store.add("saved", ("queue", one.name or "", _encode(one.state)))', "pass",
    ),
    Sabotage(
        "leave requests of a stopped queue", "fluxsched.jobs.manager:QueueControl._withdraw_queue",
        "link.cancel(job, self._lifecycle.out)", "pass",
    ),
    Sabotage(
        "send requests of a stopped queue",
        "fluxsched.jobs.lifecycle:Link.pump",
        "for queue in self.queues if queue.started ",
        "for queue in self.queues ",
    ),
    Sabotage(
        "report every job as a success", "fluxsched.jobs.lifecycle:Lifecycle.release",
        '(("finish", {"status": status}),)', '(("finish", {"status": 0}),)',
    ),
    Sabotage(
        "forget an urgency", "fluxsched.jobs.requests:Requests.set_urgency",
        'self._lifecycle.log(job, "urgency", {"urgency": urgency, "userid": userid})', "pass",
    ),
    Sabotage(
        "do not submit preempted jobs again", "fluxsched.jobs.lifecycle:Lifecycle._next_id",
        "if is_due else 0", "if job.fatal is None and is_due else 0",
    ),
    Sabotage(
        "do not try jobs again whose tasks have failed", "fluxsched.jobs.lifecycle:Lifecycle._next_id",
        "(job.fatal is not None or job.sharing.requeue)", "job.fatal is not None",
    ),
    Sabotage(
        "free targets before the tasks have ended", "fluxsched.jobs.lifecycle:Lifecycle.fail",
        "    if state is RUN:\n", "    if state is RUN and type == 'cancel':\n        self.release(job, None)\n"
        "    elif state is RUN:\n",
    ),
    Sabotage(
        "accept jobs of any duration", "fluxsched.jobs.queues:JobQueue.check_duration",
        "if limit_s and not 0 < duration_s <= limit_s:", "if False:",
    ),
    Sabotage(
        "accept jobs of any size", "fluxsched.jobs.queues:JobQueue._check_size",
        "if asked is not None and most is not None and asked > most:", "if False:",
    ),
    Sabotage(
        "do not end jobs at their limit", "fluxsched.executor.timed:TimeLimits.arm",
        "if expiration_s > 0.0:", "if False:",
    ),
)  # fmt: skip

ELASTIC = (
    Sabotage(
        "free targets before their tasks have left", "fluxsched.jobs.lifecycle:Lifecycle.shrink",
        "self.out.append(ShrinkShells(job.id, ranks, note))", "self.release(job, ranks)",
    ),
    Sabotage(
        "keep to itself what a job has left", "fluxsched.jobs.lifecycle:Lifecycle.release",
        "if link is not None and known:", "if link is not None and final:",
    ),
    Sabotage(
        "let targets leave that a job grew by", "fluxsched.jobs.lifecycle:Lifecycle.grow",
        "self.out.append(TargetsGranted(job.id, grant.ranks))", "pass",
    ),
    Sabotage(
        "tell a follower of less than there is", "fluxsched.jobs.query:SizeChanges.take",
        "    return found\n", "    return found[1:]\n",
    ),
    Sabotage(
        "answer a grow before it is stored", "fluxsched.services.scheduling:SchedulingService._grow",
        "self._effects.after_commit(answer)", "answer()",
    ),
    Sabotage(
        "answer a shrink before it is stored", "fluxsched.services.scheduling:SchedulingService._shrink",
        "self._effects.after_commit(request.respond)", "request.respond()",
    ),
    Sabotage(
        "forget at a restart what a job is to leave", "fluxsched.services.job_effects:JobEffects.resume",
        "grace_s, job.going, job.perilog, job.freed)", "grace_s, EMPTY, job.perilog, job.freed)",
    ),
    Sabotage(
        "do not take back a grow that failed", "fluxsched.scheduler.session:answered",
        "found += scheduler.grow_failed(wanted.id, _ranks(wanted.R), now_s, is_settled)", "pass",
    ),
    Sabotage(
        "do not begin at a restart where a job has grown", "fluxsched.executor.proxy:GivenJob.adopted",
        "if missing := ranks - has:", "if missing := EMPTY:",
    ),
)  # fmt: skip

SCHEDULERS = (
    Sabotage(
        "release targets that jobs hold", f"{_SCHED}.engine.scheduler:Scheduler.shrunk",
        "at.release(targets - self._ledger.held(targets))", "at.release(targets)",
    ),
    Sabotage(
        "do not release what becomes free", f"{_SCHED}.engine.held_jobs:HeldJobs.freed",
        "if emptied and group.leaving:", "if False:",
    ),
    Sabotage(
        "release twice", f"{_SCHED}.engine.group:Group.release",
        "return [Release(self.name, targets)]", "return [Release(self.name, targets)] * 2",
    ),
    Sabotage(
        "place jobs on what is offline", f"{_SCHED}.engine.scheduler:Scheduler.went_offline",
        "group.set_availability(targets, up=False)", "pass",
    ),
    Sabotage(
        "free nothing", f"{_SCHED}.ledger:Ledger._end", "    self._first.give(blocks)\n", "    pass\n",
    ),
    Sabotage(
        "leave a started job in the queue", f"{_SCHED}.ledger:Ledger.commit", "queue.remove(jobid)", "pass",
    ),
    Sabotage(
        "do not answer cancels",
        "fluxsched.scheduler.host:SchedulerHost._respond_alloc",
        "self._send(Message(", "answer.type == 3 or self._send(Message(",
    ),
)  # fmt: skip

LIMITS = (
    Sabotage(
        "count no job that starts", f"{_SCHED}.hooks:RunningLimits.reserve",
        "self._book(job.jobid, keys, amounts)", "pass",
    ),
    Sabotage(
        "count no job that ran before", f"{_SCHED}.hooks:RunningLimits.post_bind",
        "if job.adopted:", "if False:",
    ),
    Sabotage(
        "free what runs on", f"{_SCHED}.hooks:RunningLimits.resized", "self._book(jobid, keys, after)", "pass",
    ),
)  # fmt: skip
"""These need sites with limits, of which one in five seeds has some."""

OUTAGES = (
    Sabotage(
        "start jobs that cross an outage", "fluxsched.core.outages:Outages.barred",
        "bisect_left(self._begins, end_s)", "bisect_left(self._begins, start_s)",
    ),
    Sabotage(
        "tell schedulers of no outage", f"{_RESOURCE}.module:ResourceModule._done",
        "self._sessions.outages, self._sessions.parts = self.outages.value, self.parts.value",
        "self._sessions.parts = self.parts.value",
    ),
    Sabotage(
        "tell a new scheduler of no outage", f"{_RESOURCE}.changes:Sessions.open",
        "outages, parts = known or None,", "outages, parts = None,",
    ),
    Sabotage(
        "lose an outage at a restart", f"{_RESOURCE}.outages:PlannedOutages._put",
        "self._out.save(\"outage\", outage.name, row)", "pass",
    ),
    Sabotage(
        "lose that an outage was called off at a restart", f"{_RESOURCE}.outages:PlannedOutages.remove",
        "self._out.save(\"outage\", name, None)", "pass",
    ),
    Sabotage(
        "answer an outage before it is stored", "fluxsched.services.outages:OutageService._add",
        "self._resource.answer(request, OutageAddResponse(outage.name))",
        "request.respond(OutageAddResponse(outage.name))",
    ),
    Sabotage(
        "begin no outage", f"{_RESOURCE}.outages:PlannedOutages._begin",
        "self._keep(record, record.outage.targets, now_s)", "pass",
    ),
    Sabotage(
        "keep targets drained after their outage", f"{_RESOURCE}.outages:PlannedOutages._end",
        "self._give_back(record, None, now_s)", "pass",
    ),
    Sabotage(
        "undrain at the end of an outage what others have drained", f"{_RESOURCE}.outages:PlannedOutages._lift",
        ", which=lambda each: each.outage == name", "",
    ),
    Sabotage(
        "tell nobody of what is dedicated to others", "fluxsched.core.outages:seen_by",
        "        return outages\n", "        return Outages([each for each in outages.all if not each.group])\n",
    ),
    Sabotage(
        "give dedicated targets to nobody", f"{_RESOURCE}.outages:PlannedOutages._keep",
        "self._dedicate(self._of[outage.name], targets & there, now_s)", "pass",
    ),
    Sabotage(
        "keep dedicated targets", f"{_RESOURCE}.outages:PlannedOutages._give_back",
        "self._assign(Idset.of(ranks), home, True, record.user, now_s)", "pass",
    ),
    Sabotage(
        "lose at a restart from where dedicated targets came", f"{_RESOURCE}.outages:PlannedOutages._put",
        'row["homes"] = dict(record.homes)', "pass",
    ),
    Sabotage(
        "leave jobs running that an outage is to end", "fluxsched.services.outages:MovedEnds._move",
        "expiration_s != job.expiration_s", "False",
    ),
)  # fmt: skip
"""These need outages, which half of the seeds have (workload/maintenance.py)."""

BOOKINGS = (
    Sabotage(
        "start any job in a reservation", f"{_SCHED}.pool.pool:Pool.outages_for",
        "if not name:\n        return self.outages",
        "if not name:\n        return Outages([each for each in self.outages.all if not each.is_reservation])",
    ),
    Sabotage(
        "start jobs outside of the reservation that they name", "fluxsched.core.outages:Outages.inside",
        "made.all = (*rest, around)", "made.all = (*rest,)",
    ),
    Sabotage(
        "accept jobs for the reservations of others", "fluxsched.jobs.requests:Reservations.awaited",
        "if there.users and userid not in there.users:", "if False:",
    ),
    Sabotage(
        "let jobs wait for a reservation that is over", "fluxsched.jobs.requests:Reservations.change",
        "self._lifecycle.fail(job, RESERVATION, f\"reservation {name!r} is over, or was removed\")", "pass",
    ),
    Sabotage(
        "reserve a target twice", f"{_RESOURCE}.outages:PlannedOutages._check",
        "both = other.targets & outage.targets if other.name != outage.name else EMPTY", "both = EMPTY",
    ),
    Sabotage(
        "drain what is reserved", f"{_RESOURCE}.outages:PlannedOutages._keep",
        "if outage.group or outage.is_reservation:", "if outage.group:",
    ),
    Sabotage(
        "forget that an outage is a reservation", "fluxsched.core.outages:Outage.to_json",
        'row |= {"reservation": True, "users": list(self.users)}', "pass",
    ),
    Sabotage(
        "start jobs too late for their deadline", "fluxsched.jobs.lifecycle:Lifecycle.give_up",
        "self.fail(job, kind, f\"it {over} {by}{limit}\")", "pass",
    ),
    Sabotage(
        "give jobs up before it is too late", "fluxsched.jobs.lifecycle:Lifecycle._last_end",
        "job.jobspec.deadline_s\n", "job.jobspec.deadline_s - job.duration_s / 2\n",
    ),
    Sabotage(
        "begin jobs before their time", "fluxsched.jobs.dependencies:DependencyIndex.due",
        "while self._times and self._times[0][0] <= now_s:", "while self._times:",
    ),
    Sabotage(
        "take no outage from the configuration", f"{_RESOURCE}.outages:PlannedOutages.configure",
        "for outage in wanted.values():", "for outage in ():",
    ),
    Sabotage(
        "keep an outage that the configuration no longer has", f"{_RESOURCE}.outages:PlannedOutages.configure",
        "elif record.is_configured or outage is not None:", "elif outage is not None:",
    ),
)  # fmt: skip
"""These need reservations, deadlines or outages of the configuration, which later seeds have."""

PARTS = (
    Sabotage(
        "place jobs on drained parts", f"{_SCHED}.engine.scheduler:Scheduler.updated",
        "if parts is not None and drain_parts(at, parts):", "if False:",
    ),
    Sabotage(
        "tell schedulers of no drained part", f"{_RESOURCE}.module:ResourceModule._done",
        "self._sessions.outages, self._sessions.parts = self.outages.value, self.parts.value",
        "self._sessions.outages = self.outages.value",
    ),
    Sabotage(
        "tell a new scheduler of no drained part", f"{_RESOURCE}.changes:Sessions.open",
        "known or None, self.parts or None", "known or None, None",
    ),
    Sabotage(
        "lose a drain of parts at a restart", f"{_RESOURCE}.parts:PartDrains._put",
        'self._out.save("parts", self._targets.key(rank), row)', "pass",
    ),
    Sabotage(
        "lose an undrain of parts at a restart", f"{_RESOURCE}.parts:PartDrains._put",
        'self._out.save("parts",', 'row is None or self._out.save("parts",',
    ),
    Sabotage(
        "undrain one part too many", f"{_RESOURCE}.parts:PartDrains.undrain",
        "_without(self._of[rank], wanted.parts, wanted.concerns)", "()",
    ),
    Sabotage(
        "keep parts drained whose time is over", f"{_RESOURCE}.parts:PartDrains.next_s",
        "min([each.until_s for rank in self._timed for each in self._of[rank]], default=inf)", "inf",
    ),
    Sabotage(
        "leave a target in use that has no core left", f"{_RESOURCE}.changes:Moves.usable",
        " - self._parts.exhausted", "",
    ),
    Sabotage(
        "let drained parts be free when jobs leave them", f"{_SCHED}.engine.scheduler:drain_parts",
        "group.ledger.claim_again(changed, pool)", "pass",
    ),
)  # fmt: skip
"""These need drains of parts, which a third of the seeds has."""

_SPARES = f"{_RESOURCE}.spares:SpareTargets"
SPARES = (
    Sabotage(
        "replace a target by one of another shape", f"{_SPARES}._fits",
        "if resources.children(spare) != resources.children(rank):", "if False:",
    ),
    Sabotage(
        "replace a target twice", f"{_SPARES}.settle",
        " - Idset.of([each.replaces for each in self if each.replaces is not None])", "",
    ),
    Sabotage("replace nothing", f"{_SPARES}.settle", ", *self._replace(lacking, now_s)]", "]"),
    Sabotage(
        "replace what a planned outage drains", f"{_SPARES}._failed", "self._drains.unplanned", "self._drains.drained",
    ),
    Sabotage(
        "leave a spare in service that is not needed", f"{_SPARES}._sent_home", " and self._is_missing(use)", "",
    ),
    Sabotage(
        "leave a spare in service that is out itself", f"{_SPARES}._sent_home", "self._is_usable(rank, use) and ", "",
    ),
    Sabotage(
        "send a spare home while a job runs on it", f"{_SPARES}._sent_home", "spare, True, None", "spare, False, None",
    ),
    Sabotage(
        "forget at a restart what a spare replaces", f"{_SPARES}._assign", '{"group": name} | (more or {})',
        '{"group": name}',
    ),
)  # fmt: skip
"""These need spares, which a fifth of the seeds has."""

FEASIBLE = (
    Sabotage(
        "count spares beside what they replace", f"{_SCHED}.pool.pool:Pool.feasible",
        "if replaced in self]", "if False]",
    ),
)  # fmt: skip
"""This needs a target with a spare, and a job that is too large by one."""

_HEALTH = "fluxsched.services.health:HealthChecks"
HEALTH = (
    Sabotage(
        "drain no host whose check has failed", f"{_HEALTH}._ended", "self._drain(host, end.reason(program))", "pass",
    ),
    Sabotage(
        "drain a host at the first time-out", f"{_HEALTH}._ended", " and not 0 < state.timeouts < TIMEOUTS_MAX", "",
    ),
    Sabotage(
        "drain a host of which a check knows nothing", f"{_HEALTH}._ended", " and end.exit_code != UNKNOWN_CODE", "",
    ),
    Sabotage("leave a host drained that is good again", f"{_HEALTH}._ended", "self._undrain(host)", "pass"),
    Sabotage(
        "use a host before its check has ended", f"{_HEALTH}.set_present", "state.is_arriving = True",
        "state.is_arriving = True; self._online(host, True)",
    ),
    Sabotage(
        "undrain what a person has drained", f"{_RESOURCE}.module:ResourceModule.undrain_good",
        ', which=lambda each: each.source == ("program", user)', "",
    ),
    Sabotage("check a host twice at a time", f"{_HEALTH}._check_now", " and not state.number", ""),
)  # fmt: skip
"""These need hosts that an engine holds, a third of which checks their health."""

_PERILOG = "fluxsched.executor.perilog:PerilogExecutor"
PROGRAMS = (
    Sabotage(
        "start tasks before the prolog has ended", f"{_PERILOG}._prepare",
        "self._run(job, prolog, \"prolog\", self._prepared)",
        "self._run(job, prolog, \"prolog\", lambda job: None); self._prepared(job)",
    ),
    Sabotage(
        "start tasks though the prolog has failed", f"{_PERILOG}._prepared", "elif job.status:", "elif False:",
    ),
    Sabotage(
        "run the prolog on the first host alone", f"{_PERILOG}._run",
        "hosts if program.is_per_host else hosts[:1]", "hosts[:1]",
    ),
    Sabotage(
        "do not run the prolog again that an instance has left", f"{_PERILOG}.resume",
        "then.append(partial(self._prepare, kept))", "then.append(partial(self._start_tasks, kept))",
    ),
    Sabotage(
        "free a job whose epilog an instance has left", f"{_PERILOG}.resume",
        "then.append(partial(self._clean, kept))", "then.append(partial(self._freed, jobid))",
    ),
    Sabotage(
        "free a job before its epilog has ended", f"{_PERILOG}._clean_later",
        "self._reports.stored(partial(self._clean, job))",
        "self._reports.stored(partial(self._clean, job)); self._said.freed(jobid)",
    ),
    Sabotage(
        "drain no host where the epilog of a job fails that was canceled", f"{_PERILOG}._ended",
        'what == "epilog" or not job.is_ending', "not job.is_ending",
    ),
    Sabotage("run no epilog", f"{_PERILOG}._clean", "if self._epilog is None:", "if True:"),
    Sabotage(
        "drain no host where a program has failed", f"{_PERILOG}._ended", "self._said.drain(host, reason, what)",
        "pass",
    ),
    Sabotage(
        "let a job go whose prolog has failed", "fluxsched.jobs.job:Job.is_due_again",
        "not self.is_unprepared or self.prologs < PROLOG_RETRIES", "not self.is_unprepared",
    ),
    Sabotage(
        "try a job again for ever whose prolog fails", "fluxsched.jobs.job:Job.is_due_again",
        "not self.is_unprepared or self.prologs < PROLOG_RETRIES", "True",
    ),
)  # fmt: skip
"""These need a prolog or an epilog, which one in seven seeds has."""

SHELL = (
    Sabotage(
        "leave streams of lost peers open", "fluxsched.messaging.router:Router._lost",
        "if on_end is not None:", "if False:",
    ),
    Sabotage(
        "lose the calls of a lost peer", "fluxsched.messaging.router:Router._lost",
        "for answer in self.calls.lost(peer):", "for answered in ():",
    ),
    Sabotage(
        "send out of order", "fluxsched.messaging.router:Router.flush",
        "messages, peer.outbox = peer.outbox, []", "messages, peer.outbox = peer.outbox[::-1], []",
    ),
    Sabotage(
        "tell only some of a transaction's events", "fluxsched.services.job_streams:JobStreams._flush",
        "self._send(request, news)", "self._send(request, news[1:])",
    ),
    Sabotage(
        "tell the journal's history twice", "fluxsched.services.resource:JournalService._begin",
        "self._streams[request] = None", "self._tell(request, self._history())",
    ),
)  # fmt: skip

STORE = (
    Sabotage(
        "take a damaged log for one that ends there", "fluxsched.store.repair:_log_fault",
        "if state.fault is None or", "if True or",
    ),
    Sabotage(
        "do not count the transactions of a log", "fluxsched.store.repair:fault_at_start",
        "missing = (recorded or 0) - stored_commit(connection)", "missing = 0",
    ),
    Sabotage(
        "look at a log up to its first damage", "fluxsched.store.integrity:_later_commit",
        "_starts(log, size, behind)", "()",
    ),
    Sabotage(
        "take all rows for intact", "fluxsched.store.integrity:is_intact",
        "crc32(_pack(row[:-1])) == row[-1]", "True",
    ),
    Sabotage(
        "write rows with another checksum", "fluxsched.store.integrity:checksummed",
        "crc32(_pack(row)))", "crc32(_pack(row)) ^ 1)",
    ),
    Sabotage("take rows of jobs for intact", "fluxsched.store.jobs:_check", "not is_intact(row)", "False"),
    Sabotage("take settings for intact", "fluxsched.store.repair:decode_saved", "not is_intact", "False"),
    Sabotage(
        "name no damaged history", "fluxsched.history:damaged_history",
        "if not is_intact(row)", "if False",
    ),
    Sabotage(
        "do not look at indexes", "fluxsched.store.repair:fault_of", "integrity_check", "quick_check",
    ),
    Sabotage(
        "name no ended job that is left out", "fluxsched.instance.assembly:StateNotice.leave_out",
        "self._left_out.append(str(fault))", "pass",
    ),
)  # fmt: skip

_EXECUTOR = "fluxsched.executor"
HOSTS = (
    Sabotage(
        "give up a host before its lease is over", "fluxsched.instance.hosts:RemoteKeeper._await",
        "self._turns.after(self._fence_s,", "self._turns.after(1.0,",
    ),
    Sabotage(
        "count a lease from when its question was answered", f"{_EXECUTOR}.keeper:KeeperLease.answered",
        "self.renew(sent_s)", "self.renew(self._turns.clock.monotonic_s())",
    ),
    Sabotage(
        "open the gate of a part that is stored", f"{_EXECUTOR}.keeper:KeptJob.stored",
        "if self._may_open and not self.has_ended:", "if not self.has_ended:",
    ),
    Sabotage(
        "forget at a restart which parts have ended", f"{_EXECUTOR}.hosts:HostsJob.record",
        "if part.is_recorded}", "if part.is_recorded and not part.has_ended}",
    ),
    Sabotage(
        "adopt a part without opening its gate", f"{_EXECUTOR}.proxy:GivenJob.given", "if self.may_open:", "if False:",
    ),
    Sabotage(
        "take what a killed keeper has left for gone", f"{_EXECUTOR}.keeper:KeeperService._clear",
        "self._outside.clear(one.records, self._cleared)", 'self._cleared(dict.fromkeys(one.records, "gone"))',
    ),
    Sabotage(
        "use a host before it is known what is left there", "fluxsched.instance.hosts:RemoteKeeper.attach",
        "    link.send()\n", "    link.send()\n    self._tell(True)\n",
    ),
    Sabotage(
        "ask once for a host that is lost", "fluxsched.instance.hosts:RemoteKeeper._fenced", "self._await()", "pass",
    ),
    Sabotage(
        "leave the gate of a killed part closed", f"{_EXECUTOR}.keeper:KeeperService._signal",
        "self._open(msg.OpenJob(one.jobid))", "pass",
    ),
    Sabotage(
        "give each further host the tasks of all", f"{_EXECUTOR}.hosts:HostsExecutor.grow",
        "replace(ResourceSet.parse(r), nslots=None)", "ResourceSet.parse(r)",
    ),
    Sabotage(
        "ask a host once for targets, though it was away", f"{_EXECUTOR}.proxy:GivenJob.repeat", "if self.going:",
        "if False:",
    ),
)  # fmt: skip
"""These need hosts of their own, and have a disaster each that is made for them (runs/host_points.py)."""

SABOTAGES = (
    *RESOURCE, *JOBS, *ELASTIC, *SCHEDULERS, *LIMITS, *OUTAGES, *BOOKINGS, *PARTS, *SPARES, *FEASIBLE, *PROGRAMS,
    *SHELL, *STORE, *HEALTH, *HOSTS,
)  # fmt: skip
