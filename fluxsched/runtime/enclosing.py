"""An instance inside a job of another one: it gets the job's R, and follows what happens to its expiration."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import NamedTuple

from fluxsched.core.jobid import parse_jobid
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError
from fluxsched.runtime.blocking import Handle as BlockingHandle
from fluxsched.runtime.client import Handle
from fluxsched.runtime.log import logger
from fluxsched.runtime.paths import URI_VARIABLE

log = logger("instance")


class Enclosing(NamedTuple):
    """The job that this process runs in, and where its instance is."""

    uri: str
    jobid: int

    def resources(self) -> ResourceSet:
        """The job's R. Raises RPCError when its instance does not answer."""
        with BlockingHandle(self.uri) as handle:
            found = handle.rpc("job-manager.lookup", {"id": self.jobid, "keys": ["R"]})
        return ResourceSet.parse(found["R"])

    async def follow(self, expires: Callable[[float], None]) -> None:
        """Call `expires` whenever the job's expiration changes (RFC 21, resource-update), until the job ends."""
        try:
            async with Handle(self.uri) as handle:
                async for message in handle.stream("job-manager.eventlog", {"id": self.jobid, "follow": True}):
                    for event in message["events"]:
                        if event["name"] == "resource-update" and "expiration" in event["context"]:
                            expires(float(event["context"]["expiration"]))
        except FluxschedError as exc:
            log.warning("the enclosing instance no longer tells when our job ends: %s", exc)
        except asyncio.CancelledError:
            return


def enclosing_job() -> Enclosing | None:
    """The job around this process, when an instance of ours runs it."""
    uri, jobid = os.environ.get(URI_VARIABLE), os.environ.get("FLUX_JOB_ID")
    return Enclosing(uri, parse_jobid(jobid)) if uri and jobid else None
