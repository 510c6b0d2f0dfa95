"""The topics that only peers of a local socket meet: Flux's own, where an instance of ours has what they ask for.

Law: as for `topics`, whose table this one goes before at that socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fluxsched.protocol.messages import flux_instance as instance
from fluxsched.protocol.messages.common import Empty, FreeForm
from fluxsched.protocol.topics import Topic

_INSTANCE = {
    "broker.ping": Topic(FreeForm, FreeForm, "the request comes back, with route, userid, rolemask and rank", "broker"),
    "attr.list": Topic(Empty, instance.AttributesResponse, "names of all attributes", "attr"),
    "state-machine.get": Topic(Empty, instance.StateResponse, "state of the broker, and since when", "state-machine"),
    "groups.get": Topic(instance.GroupRequest, instance.GroupResponse, "ranks online or torpid", "groups"),
    "resource.reload": Topic(instance.ReloadFromRequest, Empty, "replace the inventory by an R file", "resource"),
    "resource.acquire-mute": Topic(Empty, Empty, "tell acquirers of no change any more", "resource"),
}

LOCAL_TOPICS: Mapping[str, Topic] = MappingProxyType(_INSTANCE)
"""Every topic by name; one that is in `topics.TOPICS` too is answered otherwise here."""
