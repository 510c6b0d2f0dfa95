"""An instance inside a job of another one: it gets the job's R, follows what happens to its expiration, and each of the
two can be found from the other.

Law: what runs inside learns it from its environment (FLUXSCHED_URI: its instance, FLUXSCHED_PARENT_URI: the one around
that); from outside, the job that an instance is has a memo of its addresses, `uri` being as Flux's commands want it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from fluxsched.client.aio import AsyncHandle
from fluxsched.client.blocking import Handle
from fluxsched.client.find import local_uri_of
from fluxsched.core.batch import ADDRESS_KEY
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import parse_jobid
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.errors import FluxschedError, RPCError
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
        """Return the instance around this process, None outside of any; one that does not answer has no local address.
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
