"""An instance as far as keepers know it, played by a test over a real port, and keepers as real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from fluxsched.core.jobspec import Jobspec
from fluxsched.engine.engines import KEEPER_WORDS, LOOPBACK
from fluxsched.engine.process import KeeperPort
from fluxsched.engine.report import HostReport, Introduction, ReportReader, introduction_line
from fluxsched.executor import wire as msg
from fluxsched.messaging.router import Router
from fluxsched.protocol.messages.instance import KeeperConnectRequest
from fluxsched.services.keepers import KeeperConnection, KeeperConnections
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import Turns
from fluxsched.system.processes import children_of, stat_of
from tests.prepared.caller import prepared
from tests.prepared.children import forked_or_executed
from tests.prepared.request import REAL
from tests.r import r_of
from tests.waiting import WAIT_S, until

KEEPER_MODULE = "fluxsched.engine.keeper_main"
KEEPER = str(Path(__file__).parent / "keeper.py")
"""A keeper that only reports and writes down what it is told."""
PING_S, ORPHAN_TIMEOUT_S = 0.2, 30.0
KILL_TIMEOUT_S = 20.0


class Link:
    """One connection of a keeper."""

    def __init__(self, site: Site, request: KeeperConnectRequest, connection: KeeperConnection) -> None:
        self.site, self.request, self.connection = site, request, connection
        self.heard: list[Any] = []
        self.answers = True

    def say(self, *messages: msg.KeeperMessage) -> None:
        for frames in msg.packed(messages):
            self.connection.send(frames)

    def listen(self) -> None:
        for frames in self.connection.receive(1000):
            for one in msg.from_keeper(frames):
                self.heard.append(one)
                if isinstance(one, msg.Ping) and self.answers:
                    self.say(msg.Pong(one.number))
                serial = getattr(one, "serial", None)
                if serial is not None:
                    self.say(msg.Stored(serial))

    def words(self, kind: type) -> list[Any]:
        return [one for one in self.heard if isinstance(one, kind)]

    async def first(self, kind: type) -> Any:
        await self.site.until(lambda: self.words(kind))
        return self.words(kind)[0]

    def run(self, script: str, jobid: int = 1) -> None:
        """Start a job of one task."""
        self.say(
            msg.KeeperSettings("/nowhere", {"PATH": os.defpath}, None, KILL_TIMEOUT_S, False),
            msg.StartJob(jobid, 0, msg.packed_jobspec(Jobspec.from_command(["sh", "-c", script])), r_of("0", "0")),
        )


class Site:
    """The instance: its port, its router, the connections that have arrived."""

    def __init__(self, port: int = 0, keys: Any = None) -> None:
        self.turns = Turns(SystemClock())
        self.router = Router(self.turns, [])
        self.links: list[Link] = []
        self.connections = KeeperConnections(self.router, self._arrive)
        self.router.start()
        self.turns.source(self._listen)
        self.turns.at_end(self.router.flush)
        self.turns.start(asyncio.get_running_loop())
        self.port = KeeperPort(LOOPBACK, port, keys)
        self.port.reserve(self.router.permissions.access)
        self.router.add_server(self.port.server)

    def _arrive(self, request: KeeperConnectRequest, connection: KeeperConnection) -> None:
        link = Link(self, request, connection)
        self.links.append(link)
        self.turns.attach(connection.start)
        link.say(msg.KeeperHello(msg.VERSION, os.getpid()))

    def _listen(self, until_s: float) -> bool:
        for link in self.links:
            link.listen()
        return False

    until = staticmethod(until)

    async def link(self, number: int = 1) -> Link:
        """The connection of this number, once the keeper has said which jobs it has."""
        await self.until(lambda: len(self.links) >= number)
        await self.links[number - 1].first(msg.KeeperWelcome)
        return self.links[number - 1]

    def introduction(self, orphan_timeout_s: float = ORPHAN_TIMEOUT_S) -> Introduction:
        return self.port.introduction(PING_S, orphan_timeout_s)

    def close(self) -> None:
        self.turns.stop()
        self.port.server.close()


class Host:
    """A host of an engine: the guard, which is the process that the engine started, and all below it."""

    def __init__(self, directory: Path, name: str = "n1", *, is_real: bool = False) -> None:
        """It is forked, unless it is to be the real program."""
        self.directory, self.name = directory, name
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLUX", "COV_"))}
        (entry, stdin), (stdout, out), (stderr, err) = os.pipe(), os.pipe(), os.pipe()
        self.process = forked_or_executed(
            prepared().child, (KEEPER_MODULE,), [*KEEPER_WORDS, name], stdin=entry, stdout=out, stderr=err,
            start_new_session=True, env={**kept, "TMPDIR": str(directory), **({REAL: "1"} if is_real else {})},
        )  # fmt: skip
        for end in (entry, out, err):
            os.close(end)
        self.stdin, self.stdout, self.stderr = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"), os.fdopen(stderr, "rb")

    async def report(self) -> HostReport:
        reader = ReportReader()
        while (found := reader.read(await asyncio.to_thread(self.stdout.readline))) is None:
            pass
        return found

    def introduce(self, introduction: Introduction | bytes) -> None:
        data = introduction if isinstance(introduction, bytes) else introduction_line(introduction)
        self.stdin.write(data)
        self.stdin.flush()

    @property
    def keeper(self) -> int:
        """Process id of the keeper."""
        (pid,) = children_of(self.process.pid)
        return pid

    async def status(self) -> int:
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), WAIT_S)

    @property
    def scratch(self) -> list[Path]:
        return sorted(self.directory.glob("fluxsched-*"))

    def close(self) -> None:
        if self.process.poll() is None:
            for pid in children_of(self.process.pid):
                os.kill(pid, signal.SIGCONT)  # a test that failed may have stopped it
            self.process.terminate()
        try:
            self.process.wait(WAIT_S)
        finally:
            for stream in (self.stdin, self.stdout, self.stderr):
                with suppress(BrokenPipeError):
                    stream.close()


def is_alive(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat.alive


class Wire:
    """A network that can be cut, between keepers and their instance."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.is_silent = False
        """True if what is sent disappears."""

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._pass, LOOPBACK, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(LOOPBACK, self._port)
        self._open |= {writer, back}
        await asyncio.gather(self._copy(reader, back), self._copy(there, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if not self.is_silent:
                    writer.write(data)
                    await writer.drain()
        writer.close()
