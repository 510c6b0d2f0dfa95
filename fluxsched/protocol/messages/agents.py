"""Target agents: processes that report targets online and send their heartbeats."""

from __future__ import annotations

from fluxsched.protocol.messages.common import IdsetText, Payload, RObject, Seconds, Size


class AgentHello(Payload, frozen=True):
    """An agent presents its host: the ranks it is responsible for, or a newly discovered R."""

    host: str
    heartbeat_s: Seconds
    R: RObject | None = None
    ranks: IdsetText | None = None


class AgentWelcome(Payload, frozen=True):
    """The targets of the agent, and how often to send a heartbeat."""

    targets: IdsetText
    interval_s: Seconds


class AgentHeartbeat(Payload, frozen=True):
    """Sign of life number `seq`; no response. Silence makes the targets torpid, then offline."""

    seq: Size
