"""An instance inside a job of another one: it gets the job's R, follows what happens to its expiration, and each of the
two can be found from the other.

Law: what runs inside learns it from its environment (FLUXSCHED_URI: its instance, FLUXSCHED_PARENT_URI: the one around
that); from outside, the job that an instance is has a memo of its addresses, `uri` being as Flux's commands want it.
Inside an elastic job, a target that this is to give back leaves its group like any other that is lost, and the instance
around us is told that we have left it only when no job of ours holds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from fluxsched.client.aio import AsyncHandle
from fluxsched.client.blocking import Handle
from fluxsched.client.find import local_uri_of
from fluxsched.config.values import KILL_TIMEOUT_S
from fluxsched.core.batch import ADDRESS_KEY
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import parse_jobid
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.quantities import parse_duration
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.errors import FluxschedError, Refused, RPCError
from fluxsched.jobs.states import Kill
from fluxsched.services.instance import AgentService
from fluxsched.services.job_effects import JobEffects
from fluxsched.services.resource import ResourceService
from fluxsched.system.files import (
    LEVEL_VARIABLE,
    PARENT_VARIABLE,
    TEMPORARY_VARIABLE,
    URI_VARIABLE,
    level_here,
    temporary_directory,
)
from fluxsched.system.log import logger

log = logger("instance")

PROGRAM = "fluxsched"
AGAIN_S = 0.5
"""Time before an instance around us that is away is asked again (seconds)."""
ANSWER_S = 5.0
"""Maximum time until a parent must answer where it is (seconds); it is busy, but answers within milliseconds."""

ENCLOSING_VARIABLE = "FLUX_ENCLOSING_ID"
"""Variable with the id of the parent's job that an instance is, as named by Flux."""
ENGINE_ATTRIBUTE = "engine"
"""Attribute with the identity of the engine that holds the hosts of an instance, if one does."""
ENGINE_ADDRESS_ATTRIBUTE = "engine-address"
"""Attribute with the address at which the keepers of these hosts reach the instance."""
_OF_A_JOB = re.compile(r"FLUX_JOB_(ID|SIZE|NNODES|CC)|FLUX_TASK_.*|PMI_.*")
"""Variables that make a task know itself: what runs inside an instance that is this task is another one's."""


class Parent(NamedTuple):
    """The instance that this one was started inside of."""

    uri: str
    local_uri: str | None
    level: int
    """Level of the parent: 0 is in no other."""

    @classmethod
    def find(cls) -> Parent | None:
        """Return the instance around this process, None outside of any; one that does not answer has no local
        address.
        """
        uri, level = os.environ.get(URI_VARIABLE), level_here()
        if not uri or not level:
            return None
        local_uri = None
        with contextlib.suppress(FluxschedError), Handle(uri) as handle:
            local_uri = local_uri_of(handle, ANSWER_S)
        return cls(uri, local_uri, level - 1)


def attributes_of(parent: Parent | None) -> dict[str, str]:
    """Return the attributes that Flux's commands request: the level of an instance, and the URI of its parent."""
    found = {"instance-level": str(0 if parent is None else parent.level + 1)}
    if parent is not None and parent.local_uri is not None:
        found["parent-uri"] = parent.local_uri
    return found


def environment_of(uri: str, parent: Parent | None) -> dict[str, str]:
    """Return the variables for all processes that an instance at `uri` runs."""
    found = {URI_VARIABLE: uri, LEVEL_VARIABLE: str(1 if parent is None else parent.level + 2)}
    return found if parent is None else found | {PARENT_VARIABLE: parent.uri}


def job_variables(uri: str, local_uri: str, parent: Parent | None) -> dict[str, str]:
    """Return the variables that the instance adds to the environment of its jobs: they find it by our commands and by
    Flux's.
    """
    return environment_of(uri, parent) | {"FLUX_URI": local_uri, TEMPORARY_VARIABLE: temporary_directory()}


def initial_variables(of_jobs: Mapping[str, str], parent: Parent | None) -> dict[str, str]:
    """Return the variables that the instance adds for its initial program, whose FLUX_URI names the Flux around us, if
    there is one, else this instance.
    """
    is_inside_flux = parent is None and "FLUX_URI" in os.environ
    return {name: value for name, value in of_jobs.items() if not is_inside_flux or name != "FLUX_URI"}


def inside(base: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an initial program: `base`, that of its instance's process, with the instance's
    variables. Of the job that the instance is, only its id is kept, under Flux's name for it.
    """
    kept = {name: value for name, value in base.items() if not (LEVEL_VARIABLE in base and _OF_A_JOB.fullmatch(name))}
    if LEVEL_VARIABLE in base and "FLUX_JOB_ID" in base and ENCLOSING_VARIABLE not in added:
        kept[ENCLOSING_VARIABLE] = base["FLUX_JOB_ID"]
    kept.pop(PARENT_VARIABLE, None)
    return {**with_program(kept), **added}


def with_program(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with `fluxsched` on PATH: a batch script runs without an activated environment."""
    path = environment.get("PATH", os.defpath)
    ours = Path(sys.executable).parent
    if shutil.which(PROGRAM, path=path) is None and (ours / PROGRAM).exists():
        path = f"{path}{os.pathsep}{ours}"
    return {**environment, "PATH": path}


def _attribute(handle: Handle, name: str) -> str:
    """Return an attribute of an instance, empty if it has none of this name."""
    try:
        return str(handle.rpc("attr.get", {"name": name})["value"])
    except RPCError as error:
        if error.errnum != errno.ENOENT:
            raise
        return ""


class Enclosing(NamedTuple):
    """Job in which this process runs, and the URI of its instance."""

    uri: str
    jobid: int
    resources: ResourceSet = EMPTY_R
    """Resources of the job when it was looked up."""
    is_elastic: bool = False
    engine: str = ""
    """The engine that holds the hosts of its instance, empty if that has one host only."""
    engine_address: str = ""
    """Address at which these hosts reach its instance; a loopback address if they are all this machine."""

    def looked_up(self) -> Enclosing:
        """Return the job with its current state. Raises RPCError if its instance does not answer."""
        with Handle(self.uri) as handle:
            found = handle.rpc("job-manager.lookup", {"id": self.jobid, "keys": ["R", "jobspec"]})
            engine, address = _attribute(handle, ENGINE_ATTRIBUTE), _attribute(handle, ENGINE_ADDRESS_ATTRIBUTE)
        elastic = Jobspec.parse(found["jobspec"]).request.elastic
        return self._replace(
            resources=ResourceSet.parse(found["R"]), is_elastic=elastic, engine=engine, engine_address=address
        )

    async def follow_size(self, sized: Callable[[ResourceSet, Mapping[str, Any]], None]) -> None:
        """Call `sized` with what the job has, at first and at each change, and the configuration of its instance; until
        the job ends. If the instance is away it is asked again.
        """
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                try:
                    async with AsyncHandle(self.uri) as handle:
                        config = await handle.rpc("config.get", timeout_s=ANSWER_S)
                        async for change in await handle.changes(self.jobid):
                            sized(ResourceSet.parse(change["R"]), config)
                    return
                except (FluxschedError, OSError) as exc:
                    log.info("the enclosing instance does not report the resources of this job: %s", exc)
                    if getattr(exc, "errnum", None) in (errno.ENOENT, errno.ENODATA):
                        return
                await asyncio.sleep(AGAIN_S)

    async def say_left(self, ranks: Idset) -> None:
        """Tell that nothing of ours is left on these targets of the job; if that fails, it is said again later."""
        with contextlib.suppress(FluxschedError, OSError, asyncio.CancelledError):
            async with AsyncHandle(self.uri) as handle:
                await handle.rpc("job-manager.released", {"id": self.jobid, "ranks": str(ranks)}, timeout_s=ANSWER_S)

    async def follow(self, expires: Callable[[float], None]) -> None:
        """Call `expires` whenever the job's expiration changes (RFC 21, resource-update), until the job ends."""
        try:
            async with AsyncHandle(self.uri, reconnect_s=inf) as handle:
                async for message in handle.stream("job-manager.eventlog", {"id": self.jobid, "follow": True}):
                    for event in message["events"]:
                        if event["name"] == "resource-update" and "expiration" in event["context"]:
                            expires(float(event["context"]["expiration"]))
        except FluxschedError as exc:
            log.warning("the enclosing instance no longer reports when our job ends: %s", exc)
        except asyncio.CancelledError:
            return

    async def tell(self, uri: str, local_uri: str) -> None:
        """Note at the job that it is an instance, and its addresses."""
        try:
            async with AsyncHandle(self.uri) as handle:
                await handle.rpc("job-manager.memo", {"id": self.jobid, "memo": {"uri": local_uri, ADDRESS_KEY: uri}})
        except FluxschedError as exc:
            log.warning("the enclosing instance was not given the address of this one: %s", exc)


def enclosing_job() -> Enclosing | None:
    """Return the job around this process, if an instance of fluxsched runs it."""
    uri, jobid = os.environ.get(URI_VARIABLE), os.environ.get("FLUX_JOB_ID")
    return Enclosing(uri, parse_jobid(jobid)) if uri and jobid else None


def job_around() -> Enclosing | None:
    """Return the job around this process with its current state. Raises RPCError if its instance does not answer."""
    found = enclosing_job()
    return None if found is None else found.looked_up()


# ---- targets of the enclosing instance


def grace_of(config: Mapping[str, Any]) -> float:
    """Return the time for which an instance of this configuration waits for targets that it takes back (seconds)."""
    table = config.get("exec", {})
    given = table.get("preempt-timeout", table.get("kill-timeout")) if isinstance(table, Mapping) else None
    return KILL_TIMEOUT_S if given is None else parse_duration(given)


def cannot_reload(wanted: object) -> NoReturn:
    """Raise Refused for a reload of resources that follow a job: the ranks of running jobs would change."""
    raise Refused("this instance is inside an elastic job, whose size it follows: stop it and start another one")


class EnclosedTargets:
    """Has the targets of an instance follow those of the job around it, whose ranks are others ("outer")."""

    def __init__(
        self,
        outer: ResourceSet,
        resource: ResourceService,
        agents: AgentService,
        effects: JobEffects,
        left: Callable[[Idset], None],
    ) -> None:
        """Follow a job.

        `outer` is the job's R at the start, whose targets are ours in the same order; `left` is called with outer ranks
        on which nothing of ours is left.
        """
        self._resource = resource
        self._agents = agents
        self._effects = effects
        self._told = left
        self._own = dict(zip(outer.ranks, resource.module.resources.ranks, strict=True))
        """Our rank of each outer one that the job has."""
        self._going: dict[int, int] = {}
        """Likewise those that we are to leave."""
        self._left = EMPTY
        """Outer ranks that we have left, and that the job has not got again."""
        effects.turns.at_end(self._look)

    def follow(self, outer: ResourceSet, grace_s: float) -> None:
        """Take the targets that the job has now; jobs on those that it has lost have the grace time."""
        if gone := Idset.of(self._own) - outer.ranks:
            self._leave(gone, grace_s)
        if new := outer.ranks - Idset.of(self._own) - Idset.of(self._going):
            self._join(outer.restrict(new))
        if self._left:
            self._told(self._left)

    def _join(self, new: ResourceSet) -> None:
        module = self._resource.module
        idle = [rank for rank in module.lost if rank not in self._going.values()]
        following = module.resources.ranks.max() + 1
        mapping: dict[int, int] = {}
        for outer in new.ranks:
            same = next((rank for rank in idle if module.resources.host(rank) == new.host(outer)), None)
            if same is None:
                same, following = following, following + 1
            else:
                idle.remove(same)
            mapping[outer] = same
        ours = replace(new.job_view().rerank_by(mapping), nslots=None)
        log.info("our job has grown: targets %s (%s) join", ours.ranks, ours.nodelist)
        self._own |= mapping
        self._left -= new.ranks
        self._resource.perform(module.join(ours, self._effects.now_s))
        self._agents.embed(ours.ranks)

    def _leave(self, gone: Idset, grace_s: float) -> None:
        leaving = {outer: self._own.pop(outer) for outer in gone}
        ranks = Idset.of(leaving.values())
        log.info("our job is to shrink: targets %s leave", ranks)
        self._going |= leaving
        self._agents.release(ranks)
        self._resource.perform(self._resource.module.set_lost(ranks, self._effects.now_s))
        self._effects.turns.after(grace_s, lambda: self._kill(ranks))

    def _kill(self, ranks: Idset) -> None:
        """Kill the jobs that still run on targets whose time to be given back is over."""
        ranks &= Idset.of(self._going.values())
        for job in list(self._effects.manager.jobs.active.values()):
            if ranks & (job.held - job.going):
                self._effects.perform([Kill(job.id, signal.SIGKILL, "its targets are given back")])

    def _look(self) -> None:
        """Tell of targets that are no job's and no scheduler's any more."""
        if self._going:
            module = self._resource.module
            left = [outer for outer, rank in self._going.items() if module.group_of(rank) is None]
            for outer in left:
                del self._going[outer]
            if left:
                self._left |= Idset.of(left)
                self._told(Idset.of(left))
