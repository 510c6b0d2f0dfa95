"""A real Flux's own commands at our socket, where there is one on PATH: they print what they were seen to print there.

recordings/flux_resource_commands.txt is what a flux-core 0.88 of four ranks, fake[0-3] of two cores, made of them, in
this order; `[1]` is an exit status.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.flux

RECORDED = (Path(__file__).parent / "recordings" / "flux_resource_commands.txt").read_text()
FOLLOW = """
import flux
from flux.constants import FLUX_RPC_STREAMING
handle = flux.Flux()
stream = handle.rpc("resource.acquire", flags=FLUX_RPC_STREAMING)
first = stream.get()
print(sorted(first), first["up"])
stream.reset()
for topic in ("resource.drain", "resource.undrain"):
    handle.rpc(topic, {"targets": "2"}).get()
    print(stream.get())
    stream.reset()
"""


@pytest.fixture
async def shell(flux_commands: Any) -> Any:
    """shell(line): what it prints, and after it an exit status that is not 0."""
    _, environment = await flux_commands("4x2")

    async def run(line: str) -> str:
        done = await asyncio.to_thread(
            subprocess.run, ["sh", "-c", f"exec 2>&1; {line}"],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.stdout + (f"[{done.returncode}]\n" if done.returncode else "")

    return run


async def test_commands_print_what_they_print_against_flux(shell: Any) -> None:
    first, *blocks = re.split(r"^\$ (.*)\n", RECORDED, flags=re.MULTILINE)
    assert not first
    for line, said in zip(blocks[::2], blocks[1::2], strict=True):
        assert await shell(line) == said, line


async def test_a_python_client_follows_what_it_acquired(world: Any, shell: Any) -> None:
    await world.stop(world.instances[0])
    bare = await world.bare(fake="4x2")
    said = await shell(f"FLUX_URI={bare.local_uri} flux python {world.write('follow.py', FOLLOW)}")
    assert said == "['resources', 'up'] 0-3\n{'down': '2'}\n{'up': '2'}\n"


async def test_the_rest_of_the_admins_fingers(shell: Any) -> None:
    names = re.findall(r" (restart|resource-define|online|drain) ", await shell("flux resource eventlog --color=never"))
    assert names == ["restart", "resource-define", "online"]
    pinged = await shell("flux ping -c1 resource")
    assert re.fullmatch(r"flux-ping any!resource\n0!resource.ping pad=0 seq=0 time=\S+ ms \(\w+\)\n", pinged)
    assert "broker.ping pad=0 seq=0" in await shell("flux ping -c1 0")
    assert re.match(r" \d\d:\d\d:\d\d run \S+,  owner \w+,  depth 0,  size 4\n", await shell("flux uptime"))
    assert re.search(r"^resource +\d+ +R ", await shell("flux module list"), re.MULTILINE)
    assert '"targets": 4' in await shell("flux module stats resource")
    assert (await shell("! flux module load --name=x sched-simple mode=limited")).startswith(
        "flux-module: load sched-simple: modules of Flux are not loaded here: load a scheduler with `fluxsched"
    )
    assert "Request requires owner credentials" in await shell("FLUX_HANDLE_ROLEMASK=0x2 flux resource drain 0")
    assert "fake[0-3]" in await shell("FLUX_HANDLE_ROLEMASK=0x2 flux resource status")
    assert "log.dmesg is registered: fluxsched has no ring buffer of messages; " in await shell("flux dmesg")
    assert "end this instance with `fluxsched stop`" in await shell("flux shutdown")
