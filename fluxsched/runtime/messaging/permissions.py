"""Whether a request is allowed: the table `protocol.roles` applied to who sent it. The only place where that is asked.

Law: a guest learns nothing of what it may not see: a job of another user and one that does not exist answer alike.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from fluxsched.core.jobid import format_f58
from fluxsched.core.role import Role
from fluxsched.errors import InvalidValue, Refused
from fluxsched.protocol.framing.header import ROLE_ADMIN, ROLE_LOCAL, ROLE_OWNER, ROLE_USER
from fluxsched.protocol.messages.jobs import URGENCY_DEFAULT
from fluxsched.protocol.roles import Scope, least_of
from fluxsched.runtime.access.access import Access
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.system.private_files import user_name
from fluxsched.transport.base import Server

ROLEMASKS = {Role.OWNER: ROLE_OWNER, Role.ADMIN: ROLE_USER | ROLE_ADMIN, Role.GUEST: ROLE_USER}
"""How a role is written in a message's header."""
SUBMISSIONS = ("job-manager.submit", "job-ingest.submit")


def role_of(rolemask: int) -> Role:
    """The role that a header tells."""
    if rolemask & ROLE_OWNER:
        return Role.OWNER
    return Role.ADMIN if rolemask & ROLE_ADMIN else Role.GUEST


class Permissions:
    """Asked for each request that is not the owner's."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.owner_of: Callable[[int], int | None] = lambda jobid: None
        """The user of a job; None for one that is unknown."""

    def identify(self, server: Server, userid: int | None, key: bytes | None) -> tuple[int, int, str | None] | None:
        """Userid, rolemask and name of key of a peer, by what its transport has verified; None: it may not be here."""
        known = self.access.identify(userid, key)
        if known is None:
            return None
        return known.userid, ROLEMASKS[known.role] | (ROLE_LOCAL if server.json else 0), known.key_name

    def check(self, request: RpcRequest) -> None:
        """Raises Refused (EPERM), with what is missing."""
        role, topic = role_of(request.message.rolemask), request.topic
        least, scope = least_of(topic, private_jobs=self.access.rules.private_jobs)
        if role < least:
            if topic in SUBMISSIONS:
                raise Refused(_not_yours_to_run(role, self.access.owner), errno.EPERM)
            missing = Role.OWNER if request.peer.json else least  # in Flux there is no role between owner and guest
            raise Refused(f"Request requires {missing} credentials", errno.EPERM)
        if role is Role.GUEST and (scope is Scope.OWN or (scope is Scope.SEEN and self.sees_only(request) is not None)):
            self._check_own(request)

    def sees_only(self, request: RpcRequest) -> int | None:
        """The user whose jobs alone the sender may see; None: all."""
        is_limited = self.access.rules.private_jobs and role_of(request.message.rolemask) is Role.GUEST
        return request.userid if is_limited else None

    def check_urgency(self, request: RpcRequest, urgency: int) -> None:
        """Guests do not put their jobs before those of others. Raises Refused (EPERM)."""
        if urgency > URGENCY_DEFAULT and role_of(request.message.rolemask) is Role.GUEST:
            limit = f"a guest may set an urgency of {URGENCY_DEFAULT} at most"
            raise Refused(f"urgency {urgency}: {limit}: ask an admin", errno.EPERM)

    def may_prolong(self, request: RpcRequest) -> bool:
        """Return whether the sender may let running jobs run longer; guests may shorten theirs only."""
        return role_of(request.message.rolemask) is not Role.GUEST

    def _check_own(self, request: RpcRequest) -> None:
        jobids = _jobids(request.payload(dict))
        others = [jobid for jobid in jobids if self.owner_of(jobid) != request.userid]
        if others:
            raise Refused(f"job {format_f58(others[0])} is not one of yours", errno.EPERM)
        if not jobids:
            raise Refused(f"{request.topic}: name jobs of your own", errno.EPERM)


def _jobids(wanted: dict[str, Any]) -> list[int]:
    """The jobs that a request names, whatever else is in it. Raises InvalidValue for what cannot be a job."""
    ids = wanted.get("ids")
    found = [*(ids if isinstance(ids, list) else ()), *([wanted["id"]] if wanted.get("id") is not None else ())]
    if not all(type(jobid) is int and jobid >= 0 for jobid in found):
        raise InvalidValue("id and ids: job ids are whole numbers, 0 or more")
    return found


def _not_yours_to_run(role: Role, owner: int) -> str:
    return (
        f"jobs here run as {user_name(owner)}, the user of the instance, whose access a job has: "
        f"submitting one requires owner credentials, and these are of role {role}"
    )
