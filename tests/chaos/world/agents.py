"""The agent of a host as a simulated process: it presents its host, then sends heartbeats until its connection ends."""

from __future__ import annotations

from typing import Any

from fluxsched.errors import Disconnected
from tests.chaos.wire import messages, request
from tests.chaos.world.network import Network, SimClient
from tests.chaos.world.processes import Process

HELLO_TAG = 1


def agent_name(host: str) -> str:
    """The name of its process and of its connections."""
    return f"agent-{host}"


class SimAgent:
    """One run of an agent; its process ends with its connection, and a service manager starts it again."""

    def __init__(self, network: Network, process: Process, host: str) -> None:
        self._process = process
        self._host = host
        self._sequence = 0
        try:
            self._client: SimClient = network.connect(process.name, process)
        except Disconnected as exc:
            process.end(str(exc))
            return
        self._client.start(None, self._wake)
        self._client.send(request("agent.hello", {"host": host, "heartbeat_s": 0.0}, HELLO_TAG))

    def _wake(self) -> None:
        for frames in self._client.receive(16):
            for message in messages(frames):
                self._welcomed(message.errnum, message.payload)
        if self._client.lost is not None:
            self._process.end(f"the instance is gone: {self._client.lost}")

    def _welcomed(self, errnum: int, payload: Any) -> None:
        if errnum:
            self._process.end(f"refused: {payload}")
        else:
            self._beat(float(payload["interval_s"]))

    def _beat(self, interval_s: float) -> None:
        if self._sequence:
            self._client.send(request("agent.heartbeat", {"seq": self._sequence}, 0))
        self._sequence += 1
        self._process.loop.call_later(interval_s, self._beat, interval_s)
