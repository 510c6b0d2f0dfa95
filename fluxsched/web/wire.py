"""What the page's script gets of a view: the body of a message of `views`, as JSON, and what is known of the instance.

Law: one message is written once, however many viewers get it.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from fluxsched.core.role import Role, parse_role
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.protocol.roles import least_of
from fluxsched.runtime.system.private_files import user_name
from fluxsched.views.follower import Follower
from fluxsched.views.subscription import Subscription, ViewMessage
from fluxsched.web.bodies import body_of

ViewBody = dict[str, Any]

PARAMS_MAX = 32
"""Terms of a filter."""
MESSAGES_KEPT = 32
"""Messages whose JSON is kept: the newest of as many views and filters."""
NEEDED = {
    "drain": "resource.drain",
    "undrain": "resource.undrain",
    "cancel": "job-manager.cancel",
    "urgency": "job-manager.urgency",
    "raise": "job-manager.raise",
}
"""What each action calls."""


class InstanceLost(FluxschedError):
    """The instance is gone, or was never there."""

    errnum = errno.ECONNRESET


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
    """The views of one instance as bytes."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self.written: dict[int, tuple[ViewMessage, bytes]] = {}
        self.about = About()
        """As of the last message."""

    def subscribe(self, view: str, params: Mapping[str, str]) -> Subscription:
        """Follow a view. Raises InvalidValue for one that there is not, and for a filter that is none."""
        if len(params) > PARAMS_MAX:
            raise InvalidValue(f"a filter has at most {PARAMS_MAX} terms, this has {len(params)}")
        return self._follower.subscribe(view, params)

    def has(self, view: str) -> bool:
        """Whether there is such a view."""
        try:
            self._follower.subscribe(view).close()
        except InvalidValue:
            return False
        return True

    async def whole(self, view: str, params: Mapping[str, str]) -> ViewBody:
        """All of a view now. Raises FluxschedError, InstanceLost when there is no instance."""
        async with self.subscribe(view, params) as messages:
            async for message in messages:
                self.note(message)
                if message.kind == "whole":
                    return dict(body_of(view, message))
                if self.about.lost is not None:
                    raise InstanceLost(self.about.lost)
        raise InstanceLost("the page is being closed")

    async def ask(self, topic: str, payload: ViewBody) -> ViewBody:
        """One question. Raises FluxschedError, the instance's own."""
        return await self._follower.ask(topic, payload)

    def note(self, message: ViewMessage) -> None:
        """What a message says of the instance."""
        if message.kind == "instance":
            self.about = about(message.body, self.about)

    def json(self, view: str, message: ViewMessage) -> bytes:
        """The message as it is sent."""
        found = self.written.get(id(message))
        if found is not None and found[0] is message:
            return found[1]
        self.note(message)
        data = as_json(body_of(view, message))
        self.written[id(message)] = message, data
        if len(self.written) > MESSAGES_KEPT:
            self.written.pop(next(iter(self.written)))
        return data


def about(said: Mapping[str, Any], before: About) -> About:
    """What an `instance` message says; of one that is lost all but that is as it was."""
    if said.get("instance") == "lost":
        return before._replace(lost=str(said.get("why") or "it does not answer"))
    role = parse_role(said.get("role") or str(Role.OWNER))
    may = tuple(name for name, topic in NEEDED.items() if role >= least_of(topic, private_jobs=False)[0])
    return About(str(said["hostname"]) if said.get("hostname") else _name(said), str(said["uri"]), None,
                 user_name(int(said.get("userid") or said["owner"])), str(role), may)  # fmt: skip


def _name(said: Mapping[str, Any]) -> str:
    return f"{user_name(int(said['owner']))}'s instance"


def as_json(body: object) -> bytes:
    """Compact, without line ends."""
    return msgspec.json.encode(body)
