"""Target agents: the processes that stand for targets, bring them online and show that they live."""

from __future__ import annotations

from fluxsched.protocol.messages.common import IdsetText, Payload, RObject, Seconds, Size


class AgentHello(Payload, frozen=True):
    """An agent presents its host: the ranks that it stands for, or the R that it found and that is new here."""

    host: str
    heartbeat_s: Seconds
    R: RObject | None = None
    ranks: IdsetText | None = None


class AgentWelcome(Payload, frozen=True):
    """The targets that the agent stands for, and how often to send a heartbeat."""

    targets: IdsetText
    interval_s: Seconds


class AgentHeartbeat(Payload, frozen=True):
    """Sign of life number `seq`; no response. Silence makes the targets torpid, then offline."""

    seq: Size
