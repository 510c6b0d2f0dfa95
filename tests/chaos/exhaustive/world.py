"""The small world: an instance, two acquirers, two jobs and three targets, what may happen in it, and its laws.

Law: a state is a tuple of numbers, one a machine and one a value: what is under way, which tasks run, and what each
acquirer was told, by which the laws are judged. Nothing here looks into a machine but by its facts.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from fluxsched.resource.inventory import DEFAULT, EXCLUDE
from tests.chaos.exhaustive.machines import (
    NONE,
    OTHER,
    QUEUES,
    TARGETS,
    JobsMachine,
    Mask,
    Memo,
    ResourceMachine,
    SchedulerMachine,
    Symbol,
    Values,
    broken,
)

State: TypeAlias = tuple[int, ...]
Event: TypeAlias = tuple[Any, ...]

JOBS: Final = (1, 2)
SENT_MAX: Final = 2
"""Messages that may be under way to an acquirer before changes of its group wait, and merge."""
AUDITED_MAX: Final = 1000
"""States of each machine that are compared."""
HERE, JOBMAN, SCHED0, SCHED1, OUT0, OUT1, IN0, IN1, TASKS, TOLD0, TOLD1 = range(11)
"""The places of a state: resource module, job manager, two schedulers, messages to and from them, tasks, what they were
told."""
_KINDS: Final = tuple(
    (queue, Mask(wanted)) for queue in QUEUES for wanted in range(1, 1 << TARGETS)
    if wanted.bit_count() == 1 or (queue == "d" and wanted.bit_count() == 2)
)  # fmt: skip
_ONE: Final = tuple(Mask(1 << target) for target in range(TARGETS))


class NotPossible(Exception):
    """The event is refused, so that nothing happens."""


class World:
    """All states share the machines' steps; `typed` is the dialect of the acquirer of `default`."""

    def __init__(self, typed: bool, own_checks: bool = True) -> None:
        self._own = DEFAULT if typed else None
        self.resource = Memo(ResourceMachine, own_checks)
        self.jobs = Memo(JobsMachine, own_checks)
        self.schedulers = Memo(SchedulerMachine, own_checks)
        self.values = Values()
        self._empty = self.values.number(())
        self._nothing_told = self.values.number(None)
        self._permuted = self.resource.permuted, self.jobs.permuted, self.schedulers.permuted, self.values.permuted
        self._sound: set[tuple[int, int, int]] = set()
        self._aware: set[State] = set()

    def begin(self) -> State:
        """Everybody has started, and nothing is under way."""
        off, empty, nothing = self.schedulers.first, self._empty, self._nothing_told
        state: State = (self.resource.first, self.jobs.first, off, off, *[empty] * 5, nothing, nothing)
        while events := self.inner(state):
            state = self.step(state, events[0])
        return state

    def alike(self, state: State) -> list[State]:
        """The states that are equal but for the names of targets, one for each exchange."""
        resource, jobs, scheduler, values = self._permuted
        return list(
            zip(
                resource[state[0]], jobs[state[1]], scheduler[state[2]], scheduler[state[3]], values[state[4]],
                values[state[5]], values[state[6]], values[state[7]], values[state[8]], values[state[9]],
                values[state[10]],
                strict=True,
            )
        )  # fmt: skip

    def audit(self) -> int:
        """Compare machines that came to one state by different histories; how many steps were compared."""
        return sum(memo.audit(AUDITED_MAX) for memo in (self.resource, self.jobs, self.schedulers))

    def canonical(self, state: State) -> State:
        """The least of them."""
        return min(self.alike(state))

    def shown(self, state: State) -> str:
        """A state for people."""
        parts = [self.resource.states[state[0]], self.jobs.states[state[1]]]
        parts += [self.schedulers.states[state[at]] for at in (SCHED0, SCHED1)]
        return "\n  ".join(map(str, [*parts, *[self.values.values[one] for one in state[OUT0:]]]))

    # ---- what may happen

    def inner(self, state: State) -> list[Event]:
        """What happens by itself, in the order in which it is settled."""
        values, found = self.values.values, list[Event]()
        active, _, _, jobs_unstored, *_, starting = self.jobs.facts[state[JOBMAN]]
        tasks = dict(values[state[TASKS]])
        for at in (0, 1):
            running = self.schedulers.facts[state[SCHED0 + at]]
            if running[0] != "off" and state[OUT0 + at] != self._empty:
                found.append(("read", at))
        found += [("receive", at) for at in (0, 1) if state[IN0 + at] != self._empty]
        found += [("decide", at) for at in (0, 1) if self.schedulers.facts[state[SCHED0 + at]][3]]
        if jobs_unstored or self.resource.facts[state[HERE]][5]:
            found.append(("commit",))
        held = dict(self.jobs.facts[state[JOBMAN]][1])
        for jobid, _, executing, unfinished in active:
            if jobid in tasks:
                found.append(("end_job", jobid))
                if tasks[jobid].bit_count() > 1:
                    found.append(("finish", jobid))
            elif executing and unfinished and jobid not in starting:
                found.append(("fail", jobid))
            elif executing and not unfinished:
                found += [("leave", jobid, one) for one in _ONE if held[jobid] & one]
        if self._may_connect(state, 0) and self.schedulers.facts[state[SCHED1]][1] != DEFAULT:
            found.append(("connect", 0, self._own))
        if self._may_connect(state, 1):
            found.append(("connect", 1, OTHER))
        return found

    def _may_connect(self, state: State, at: int) -> bool:
        return self.schedulers.facts[state[SCHED0 + at]][0] == "off" and state[IN0 + at] == self._empty

    def repairs(self, state: State) -> list[Event]:
        """What people and agents do that leads back to how it was."""
        members, _, online, drained, _, _, _, waiting, goals, _ = self.resource.facts[state[HERE]]
        active, belongs = self.jobs.facts[state[JOBMAN]][0], dict(goals).get(DEFAULT, NONE)
        found: list[Event] = [("cancel", job[0]) for job in active if job[1] in ("DEPEND", "SCHED", "RUN")]
        if self.schedulers.facts[state[SCHED1]][1] == DEFAULT:
            found.append(("crash", 1))
        found += [("online", one) for one in _ONE if not online & one]
        found += [("undrain", one) for one in _ONE if drained & one]
        found += [("assign", one, DEFAULT, False) for one in _ONE if not belongs & one or waiting & one]
        told = self.values.values[state[TOLD0]]
        if told is not None and not told[1] and told[2] | told[3] != dict(members).get(DEFAULT, NONE):
            found.append(("crash", 0))  # in the plain dialect only the next acquirer hears of what has joined
        return found

    def outer(self, state: State) -> list[Event]:
        """What people, agents and accidents do."""
        _, _, online, drained, _, _, _, _, goals, _ = self.resource.facts[state[HERE]]
        found, belongs = self.repairs(state), dict(goals)
        for group in (DEFAULT, OTHER, EXCLUDE):
            there = belongs.get(group, NONE)
            ways = (True,) if group == DEFAULT else (False, True)
            found += [("assign", one, group, graceful) for one in _ONE if not there & one for graceful in ways]
        found += [("offline", one) for one in _ONE if online & one]
        found += [("drain", one) for one in _ONE if not drained & one]
        for at in (0, 1):
            if self.schedulers.facts[state[SCHED0 + at]][0] != "off" and ("crash", at) not in found:
                found.append(("crash", at))
        if self._may_connect(state, 1):
            found.append(("connect", 1, DEFAULT))
        if self._may_connect(state, 0) and self.schedulers.facts[state[SCHED1]][1] == DEFAULT:
            found.append(("connect", 0, self._own))  # which is refused
        found.append(("restart",))
        jobid = self._free_id(state)
        if jobid:
            found += [("submit", jobid, queue, wanted) for queue, wanted in _KINDS]
        return found

    def _free_id(self, state: State) -> int:
        """A job id that nobody knows."""
        facts = self.jobs.facts[state[JOBMAN]]
        known = set(facts[2]) | {job[0] for job in facts[0]} | facts[5].keys()
        known |= {jobid for jobid, _ in self.values.values[state[TASKS]]}
        for at in (0, 1):
            known |= self.schedulers.facts[state[SCHED0 + at]][4]
            for place in (OUT0, IN0):
                known |= {message[1] for message in self.values.values[state[place + at]] if len(message) > 1}
        return next((jobid for jobid in JOBS if jobid not in known), 0)

    def step(self, state: State, event: Event) -> State:
        """The state after an event. Raises Violation where a law is broken, NotPossible for what is refused."""
        turn = _Turn(self, state)
        getattr(turn, event[0])(*event[1:])
        after = turn.end()
        self._judge(after)
        return after

    # ---- laws of a state

    def _judge(self, state: State) -> None:
        key = state[HERE], state[JOBMAN], state[TASKS]
        if key not in self._sound:
            self._judge_holders(state)
            self._sound.add(key)
        for at in (0, 1):
            if state[OUT0 + at] == self._empty and state[TOLD0 + at] != self._nothing_told:
                aware = at, state[HERE], state[TOLD0 + at], self.schedulers.facts[state[SCHED0 + at]][0] == "off"
                if aware not in self._aware:
                    self._judge_told(state, at)
                    self._aware.add(aware)

    def _judge_holders(self, state: State) -> None:
        """A target has one group, and a job that holds it is of that group; no two jobs hold one."""
        members, leaving, *_ = self.resource.facts[state[HERE]]
        owners = [*members, *leaving]
        if sum(owned.bit_count() for _, owned in owners) != TARGETS:
            raise broken(f"targets have not one group each: members {members}, leaving {leaving}")
        facts = self.jobs.facts[state[JOBMAN]]
        groups, taken = facts[5], 0
        held = dict(facts[1])
        for jobid, targets in held.items():
            if taken & targets:
                raise broken(f"two jobs hold one of {targets}")
            taken |= targets
            mine = sum(owned for name, owned in owners if name == groups[jobid])
            if targets & ~mine:
                raise broken(f"job {jobid} of group {groups[jobid]} holds {targets}, the group has {mine}")
        for jobid, targets in self.values.values[state[TASKS]]:
            if targets & ~held.get(jobid, 0):
                raise broken(f"tasks of job {jobid} run on {targets}, it holds {held.get(jobid, 0)}")

    def _judge_told(self, state: State, at: int) -> None:
        """Who has read everything knows what its group has and what of it is usable."""
        members, _, online, drained, pending, _, sessions, *_ = self.resource.facts[state[HERE]]
        group, typed, up, down, _ = self.values.values[state[TOLD0 + at]]
        if (group, at, typed) not in sessions or at in pending:
            return
        mine, usable = dict(members).get(group, NONE), online & ~drained
        told = up | down
        if (typed and told != mine) or told & ~mine or up != told & usable:
            raise broken(f"acquirer {at} was told {up} of {told} in {group}: it has {mine}, usable are {usable}")


class _Turn:
    """One event, and all that follows from it at once."""

    def __init__(self, world: World, state: State) -> None:
        self._world = world
        self._resource, self._jobs = state[HERE], state[JOBMAN]
        self._schedulers = [state[SCHED0], state[SCHED1]]
        values = self._values = world.values.values
        self._state = state
        self._out = [values[state[OUT0]], values[state[OUT1]]]
        self._in = [values[state[IN0]], values[state[IN1]]]
        self._tasks: dict[int, Mask] = dict(values[state[TASKS]])
        self._told = [values[state[TOLD0]], values[state[TOLD1]]]

    def end(self) -> State:
        """What there is to be read is sent to those who have read what came before."""
        world, number = self._world, self._world.values.number
        for at in world.resource.facts[self._resource][4]:
            if len(self._out[at]) < SENT_MAX:
                self._to_resource(("publish", at))
        return (
            self._resource, self._jobs, *self._schedulers,
            number(self._out[0]), number(self._out[1]), number(self._in[0]), number(self._in[1]),
            number(tuple(sorted(self._tasks.items()))), number(self._told[0]), number(self._told[1]),
        )  # fmt: skip

    # ---- within the instance

    def _to_resource(self, symbol: Symbol) -> None:
        leaving = self._world.resource.facts[self._resource][1]
        self._resource, outputs = self._world.resource.step(self._resource, symbol)
        for one in outputs:
            if one[0] == "send":
                self._out[one[1]] = (*self._out[one[1]], one[2])
            elif one[0] == "raise":
                for jobid in one[1:]:
                    held = dict(self._world.resource.facts[self._resource][9]).get(jobid, NONE)
                    if not held & sum(targets for _, targets in leaving):
                        raise broken(f"job {jobid} is to end, and nothing that it holds is leaving: {held}")
                    self._to_jobs(("raise", jobid))
            else:
                raise NotPossible

    def _to_jobs(self, symbol: Symbol) -> str:
        """Whether it was refused."""
        self._jobs, outputs = self._world.jobs.step(self._jobs, symbol)
        for one in outputs:
            match one[0]:
                case "send":
                    self._out[one[1]] = (*self._out[one[1]], one[2])
                case "hold" | "unhold":
                    self._to_resource(one)
                case "start":
                    self._start(one[1], one[2])
                case _:
                    return str(one[1])
        return ""

    def _start(self, jobid: int, targets: Mask) -> None:
        for other, used in self._tasks.items():
            if used & targets:
                raise broken(f"jobs {other} and {jobid} run on one of {targets}")
        if any(job[0] == jobid and job[2] for job in self._world.jobs.facts[self._jobs][0]):
            self._tasks[jobid] = targets

    # ---- what happens by itself

    def read(self, at: int) -> None:
        """An acquirer reads a message."""
        message, self._out[at] = self._out[at][0], self._out[at][1:]
        kind = message[0]
        if kind in ("grow", "shrink", "online", "offline", "first", "change"):
            self._judge_response(at, message)
        elif kind == "free" and self._tasks.get(message[1], 0) & message[2]:
            raise broken(f"job {message[1]} is said to have freed {message[2]}, and runs there")
        outputs = self._to_scheduler(at, message)
        if kind == "offline" and any(one[0] == "raise" for one in outputs):
            raise broken(f"an exception is raised since targets {message[1]} are offline")

    def _to_scheduler(self, at: int, symbol: Symbol) -> tuple[Symbol, ...]:
        self._schedulers[at], outputs = self._world.schedulers.step(self._schedulers[at], symbol)
        for one in outputs:
            self._judge_output(at, one, symbol)
            if one[0] != "end":
                self._in[at] = (*self._in[at], one)
            elif symbol[0] == "refused":
                self.crash(at)
            else:
                raise broken(f"scheduler {at} ends: {one[1]}")
        return outputs

    def receive(self, at: int) -> None:
        """The instance reads a message of an acquirer."""
        message, self._in[at] = self._in[at][0], self._in[at][1:]
        match message[0]:
            case "acquire":
                self._to_resource(("acquire", at, message[1]))
            case "release":
                self._to_resource(("release", at, message[1], message[2]))
            case "hello":
                if why := self._to_jobs(("hello", at, message[1])):
                    raise broken(f"the hello of acquirer {at} is refused: {why}")
            case "ready":
                self._to_jobs(("ready", at))
            case "raise":
                if self._to_jobs(("raise", message[1])):
                    self._out[at] = (*self._out[at], ("raise-failed", message[1]))
            case "granted":
                self._granted(at, message[1], message[2])
            case "denied" | "canceled":
                if why := self._to_jobs((message[0], at, message[1])):
                    raise broken(f"{message} of acquirer {at} is refused: {why}")
            case "eof":
                self._lost(at)

    def _granted(self, at: int, jobid: int, targets: Mask) -> None:
        members, leaving, _, _, _, _, sessions, *_ = self._world.resource.facts[self._resource]
        group, typed = next(((group, typed) for group, one, typed in sessions if one == at), ("", True))
        foreign = targets & ~sum(owned for name, owned in (*members, *leaving) if name == group)
        why = self._to_jobs(("granted", at, jobid, targets, Mask(foreign)))
        if why and (typed or not foreign):
            raise broken(f"a grant of {targets} to job {jobid} is refused: {why}")
        if why:  # a plain acquirer had not heard of a shrink: the instance ends the connection
            self._lost(at)
            self._in[at], self._told[at] = (), None
            self._schedulers[at] = self._world.schedulers.first

    def _lost(self, at: int) -> None:
        self._to_resource(("lost", at))
        self._to_jobs(("lost", at))
        self._out[at] = ()

    def decide(self, at: int) -> None:
        """A scheduler decides."""
        self._to_scheduler(at, ("decide",))

    def commit(self) -> None:
        """The store has everything."""
        self._to_resource(("commit",))
        self._to_jobs(("commit",))

    def end_job(self, jobid: int) -> None:
        """A job's tasks end, and nothing is left of it."""
        del self._tasks[jobid]
        self._report(("ended", jobid))

    def finish(self, jobid: int) -> None:
        """They end, and something is still to be cleaned up on each target."""
        del self._tasks[jobid]
        self._report(("finished", jobid))

    def leave(self, jobid: int, target: Mask) -> None:
        """Nothing of a job is left on a target."""
        held = dict(self._world.jobs.facts[self._jobs][1])[jobid]
        self._report(("released", jobid, target, held == target))

    def fail(self, jobid: int) -> None:
        """An executor knows nothing of a job of before a restart."""
        self._report(("failed", jobid))

    def _report(self, symbol: Symbol) -> None:
        if why := self._to_jobs(symbol):
            raise broken(f"an executor's {symbol} is refused: {why}")

    def connect(self, at: int, group: str | None) -> None:
        """A scheduler starts."""
        if self._to_scheduler(at, ("begin", group)) != (("acquire", group),):
            raise broken("a scheduler does not acquire its group at first")

    # ---- what others do

    def crash(self, at: int) -> None:
        """A scheduler is gone; what it has sent arrives."""
        self._schedulers[at] = self._world.schedulers.first
        self._told[at] = None
        self._out[at] = ()
        self._in[at] = (*self._in[at], ("eof",))

    def restart(self) -> None:
        """The instance is gone, and starts again; so do its schedulers. Tasks go on, and agents are there."""
        online = self._world.resource.facts[self._resource][2]
        self._schedulers = [self._world.schedulers.first] * 2
        self._out, self._in, self._told = [(), ()], [(), ()], [None, None]
        before = self._jobs
        self._jobs, outputs = self._world.jobs.step(before, ("restart",))
        held = tuple((one[1], one[2]) for one in outputs if one[0] == "hold")
        self._to_resource(("restart", online, held))

    def submit(self, jobid: int, queue: str, targets: Mask) -> None:
        """A user wants these targets."""
        self._ask(("submit", jobid, queue, targets))

    def cancel(self, jobid: int) -> None:
        """A user does not."""
        self._ask(("cancel", jobid))

    def _ask(self, symbol: Symbol) -> None:
        if self._to_jobs(symbol):
            raise NotPossible

    def drain(self, target: Mask) -> None:
        """An administrator takes a target out of service."""
        self._to_resource(("drain", target))

    def undrain(self, target: Mask) -> None:
        """And puts it back."""
        self._to_resource(("undrain", target))

    def online(self, target: Mask) -> None:
        """An agent is back."""
        self._to_resource(("online", target))

    def offline(self, target: Mask) -> None:
        """An agent is lost."""
        self._to_resource(("offline", target))

    def assign(self, target: Mask, group: str, graceful: bool) -> None:
        """An administrator moves a target."""
        self._to_resource(("assign", target, group, graceful))

    # ---- laws of what is said

    def _judge_response(self, at: int, message: Symbol) -> None:
        told, other = self._told[at], self._told[1 - at]
        kind, *masks = message
        if told is None:
            if kind not in ("grow", "first"):
                raise broken(f"the first response to acquirer {at} is {message}")
            name = self._world.schedulers.facts[self._schedulers[at]][1]
            if other is not None and other[0] == name:
                raise broken(f"group {name} is acquired twice")
            told = name, kind == "grow", NONE, NONE, NONE
        group, typed, up, down, leaving = told
        if kind in ("grow", "first"):
            joined, online = masks
            if joined & (up | down | leaving):
                raise broken(f"acquirer {at} is given {joined} again before it has released them")
            if typed and other is not None and other[1] and joined & (other[2] | other[3] | other[4]):
                raise broken(f"acquirer {at} is given {joined}, of which {1 - at} has some")
            groups = self._world.jobs.facts[self._jobs][5]
            for jobid, used in self._tasks.items() if typed else ():
                if used & joined and groups.get(jobid, group) != group:
                    raise broken(f"{joined} come to group {group} while job {jobid} of {groups[jobid]} runs there")
            up, down = up | online, down | (joined & ~online)
        elif kind == "change":
            online, offline, shrink = masks
            up, down = ((up | online) & ~offline) & ~shrink, ((down | offline) & ~online) & ~shrink
        elif kind == "shrink":
            if not masks[0] or masks[0] & ~(up | down):
                raise broken(f"acquirer {at} is to give {masks[0]}, and has {up | down}")
            up, down, leaving = up & ~masks[0], down & ~masks[0], leaving | masks[0]
        else:
            before = down if kind == "online" else up
            if not masks[0] or masks[0] & ~before:
                raise broken(f"acquirer {at} is told that {masks[0]} are {kind}, and has {up} online, {down} offline")
            up, down = (up | masks[0], down & ~masks[0]) if kind == "online" else (up & ~masks[0], down | masks[0])
        self._told[at] = group, typed, Mask(up), Mask(down), Mask(leaving)

    def _judge_output(self, at: int, message: Symbol, heard: Symbol) -> None:
        told = self._told[at]
        match message[0]:
            case "granted":
                self._judge_grant(at, message[1], message[2])
            case "release":
                _, group, targets = message
                if told is None or not told[1] or group != told[0]:
                    raise broken(f"acquirer {at} releases {targets} of group {group}, and was told {told}")
                if not targets or targets & ~told[4]:
                    raise broken(f"acquirer {at} releases {targets}, and was to release {told[4]}")
                for jobid, used in self._tasks.items():
                    if used & targets:
                        raise broken(f"acquirer {at} releases {targets} while job {jobid} runs there")
                self._told[at] = *told[:4], Mask(told[4] & ~targets)
            case "raise":
                self._judge_raise(at, message[1], heard)

    def _judge_raise(self, at: int, jobid: int, heard: Symbol) -> None:
        """On jobs that hold what a shrink named; in the plain dialect at hello on those beyond what was acquired."""
        told = self._told[at]
        held = dict(self._world.jobs.facts[self._jobs][1]).get(jobid, NONE)
        for unread in self._out[at]:
            if unread[:2] == ("free", jobid):
                held |= unread[2]
        if told is not None and told[1]:
            wrong = held and not held & told[4]
        else:
            wrong = told is None or heard[0] != "hello" or not heard[4] & ~(heard[5] | told[2] | told[3])
        if wrong:
            raise broken(f"acquirer {at} raises an exception on job {jobid}, which holds {held}, and was told {told}")

    def _judge_grant(self, at: int, jobid: int, targets: Mask) -> None:
        told = self._told[at]
        if told is None or targets & ~told[2]:
            raise broken(f"acquirer {at} gives job {jobid} {targets}, and was told {told}")
        groups = self._world.jobs.facts[self._jobs][5]
        for other, used in (*self._tasks.items(), *self._world.jobs.facts[self._jobs][1]):
            if used & targets and other != jobid and (told[1] or groups.get(other) == told[0]):
                raise broken(f"acquirer {at} gives job {jobid} {targets}, of which job {other} has some")
