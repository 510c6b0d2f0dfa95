"""A coordinator and its workers: an elastic job of two parts. Run it inside an instance:

    fluxsched start --fake 4x2 -- python examples/worker_pool.py

The pool begins with one worker, grows when another job ends, and gives a node back when another job waits. The
coordinator sends numbers to workers over a socket, sends the number of a worker that ends to another one, and follows
the size of its job.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from itertools import count

import fluxsched

SOCKET = f"{os.environ.get('FLUX_JOB_TMPDIR')}/pool"
ME = f"python {sys.argv[0]}"


class Coordinator:
    """The task of part `lead`."""

    def __init__(self) -> None:
        self.numbers, self.returned, self.busy = count(), list[int](), set[int]()
        self.squares: dict[int, int] = {}
        self.enough = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send numbers to one worker and read their squares."""
        while not self.enough:
            number = self.returned.pop() if self.returned else next(self.numbers)
            self.busy.add(number)
            writer.write(b"%d\n" % number)
            answer = await reader.readline()
            self.busy.discard(number)
            if not answer:  # the node of this worker is given back
                self.returned.append(number)
                break
            self.squares[number] = int(answer)
        writer.close()

    async def run(self) -> None:
        """Serve workers until the job shrinks."""
        await asyncio.start_unix_server(self.serve, f"{SOCKET}.new")
        os.rename(f"{SOCKET}.new", SOCKET)  # so that the socket is listening when workers find it
        async with fluxsched.connect() as h:
            async for change in await h.changes(fluxsched.parse_jobid(os.environ["FLUX_JOB_ID"])):
                workers = fluxsched.ResourceSet.parse(change["R"]).parts["worker"]
                print(f"{change['event']}: nodes with a worker: {len(workers)}", flush=True)
                if change["event"] == "shrink":
                    break
        self.enough = True
        while self.busy:
            await asyncio.sleep(0.01)
        self.squares |= {number: number**2 for number in self.returned}
        print(f"numbers that were lost: {next(self.numbers) - len(self.squares)}")


async def work() -> None:
    """The task of part `worker`, one on each node that the job has. SIGTERM ends it."""
    while not os.path.exists(SOCKET):
        await asyncio.sleep(0.02)
    with suppress(ConnectionError):  # the coordinator has ended, perhaps before it accepted this connection
        reader, writer = await asyncio.open_unix_connection(SOCKET)
        while line := await reader.readline():
            await asyncio.sleep(0.02)
            writer.write(b"%d\n" % int(line) ** 2)


def main() -> None:
    """Run the pool beside other jobs, which are canceled and submitted as the pool prints its size."""
    with fluxsched.connect_sync() as h:
        two_nodes = h.submit(fluxsched.Jobspec.from_command(["sleep", "300"], nodes=2, exclusive=True))
        parts = ["--part", f"lead:1={ME} lead", "--part", f"worker:1-3={ME} worker"]
        pool = subprocess.check_output(["fluxsched", "submit", "--elastic", *parts], text=True)
        for piece in h.stream("job-manager.output", {"id": fluxsched.parse_jobid(pool.strip()), "follow": True}):
            text = piece["data"].decode()
            print(text, end="")
            if text.startswith("now"):
                h.cancel(two_nodes)
            elif text.startswith("grow"):
                h.submit(fluxsched.Jobspec.from_command(["true"], nodes=1, exclusive=True))


if sys.argv[1:] == ["lead"]:
    asyncio.run(Coordinator().run())
elif sys.argv[1:] == ["worker"]:
    asyncio.run(work())
else:
    main()
