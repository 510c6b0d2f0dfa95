"""The views of the instance for the page, and what is known of the instance itself."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from fluxsched.core.role import Role, parse_role
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.protocol.roles import least_of
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.views.follower import Follower, Subscription, ViewMessage
from fluxsched.views.words import user_name
from fluxsched.web.bodies import summary

ViewBody = dict[str, Any]

PARAMS_MAX = 32
"""Terms of a filter."""
FIGURES = "figures"
"""The view that every page shows at its top."""
REFUSED = "refused"
"""The key of a whole that the instance refuses."""
ACTION_TOPICS = {
    "drain": "resource.drain",
    "undrain": "resource.undrain",
    "cancel": "job-manager.cancel",
    "urgency": "job-manager.urgency",
    "raise": "job-manager.raise",
}
"""What each action of the page calls: who may call that may do it."""


class InstanceLost(FluxschedError):
    """The instance is gone, or was never there."""

    errnum = errno.ECONNRESET


class ViewRefused(FluxschedError):
    """The instance does not show this: there is no such job, or it is not for this user."""


class About(NamedTuple):
    """The instance, and as whom we are connected to it."""

    name: str = "fluxsched"
    uri: str = ""
    lost: str | None = None
    """Why it is lost; None while it is there."""
    user: str = ""
    role: str = str(Role.GUEST)
    may: tuple[str, ...] = ()
    """The actions that this role may do, guests with jobs of their own."""


class Wire:
    """The views of one instance."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self.about = About()
        """As of the last message."""

    def subscribe(self, view: str, params: Mapping[str, str]) -> Subscription:
        """Follow a view. Raises InvalidValue for one that there is not, and for a filter that is none."""
        if len(params) > PARAMS_MAX:
            raise InvalidValue(f"a filter has at most {PARAMS_MAX} terms, this has {len(params)}")
        return self._follower.subscribe(view, params)

    async def whole(self, view: str, params: Mapping[str, str]) -> ViewBody:
        """All of a view now. Raises FluxschedError: ViewRefused by the instance, InstanceLost when there is none."""
        async with self.subscribe(view, params) as messages:
            async for message in messages:
                self.note(message)
                if message.kind == "whole":
                    if REFUSED in message.body:
                        raise ViewRefused(str(message.body[REFUSED]), message.body.get("errnum"))
                    return {"now": SystemClock.wall_s(), **message.body}
                if self.about.lost is not None:
                    raise InstanceLost(self.about.lost)
        raise InstanceLost("the page is being closed")

    async def figures(self) -> ViewBody | None:
        """The summary for the top of a page; None where this user may not have it."""
        try:
            return summary(await self.whole(FIGURES, {}))
        except ViewRefused:
            return None

    async def ask(self, topic: str, payload: ViewBody) -> ViewBody:
        """One question. Raises FluxschedError, the instance's own."""
        return await self._follower.ask(topic, payload)

    def note(self, message: ViewMessage) -> None:
        """What a message says of the instance."""
        if message.kind == "instance":
            self.about = about(message.body, self.about)

    def json(self, view: str, message: ViewMessage) -> bytes:
        """The body as it is sent, written once for all viewers of a message.

        Wholes tell the time here, by which ages are to be shown: a viewer's clock may differ, or step.
        """
        self.note(message)
        if view == FIGURES and message.kind != "instance":
            return as_json(summary(message.body))
        if message.kind == "change" or not message.body or "now" in message.body:
            return message.json
        return b'{"now":%.3f,' % SystemClock.wall_s() + message.json[1:]  # what all viewers share is not written again


def about(said: Mapping[str, Any], before: About) -> About:
    """What an `instance` message says; of one that is lost all but that is as it was."""
    if said.get("instance") == "lost":
        return before._replace(lost=str(said.get("why") or "it does not answer"))
    role = parse_role(said.get("role") or str(Role.OWNER))
    may = tuple(name for name, topic in ACTION_TOPICS.items() if role >= least_of(topic, private_jobs=False)[0])
    return About(str(said["hostname"]) if said.get("hostname") else _name(said), str(said["uri"]), None,
                 user_name(int(said.get("userid") or said["owner"])), str(role), may)  # fmt: skip


def _name(said: Mapping[str, Any]) -> str:
    return f"{user_name(int(said['owner']))}'s instance"


def as_json(body: object) -> bytes:
    """Compact, without line ends."""
    return msgspec.json.encode(body)
