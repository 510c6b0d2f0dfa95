"""The first `grow`: from the acquire request to the decoded object, for equal and for all different targets.

    python benchmarks/grow.py [--targets 16384] [--rounds 15]

Different targets have GPUs of their own each (gpu ids cycle), so that R_lite has one entry a target. Milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import fluxsched
from fluxsched.instance import launch
from fluxsched.protocol import framing
from fluxsched.protocol.messages.resource import AcquireResponse
from fluxsched.protocol.sessions import from_typed


async def measure(uri: str, rounds: int) -> list[tuple[float, float]]:
    figures = []
    for _ in range(rounds):
        async with fluxsched.connect(uri) as h:
            await h.rpc("instance.info")
            begin_s = time.perf_counter()
            stream = h.stream("resource.acquire", {"group": "default"})
            grow = framing.unpack((await stream.next()).payload, AcquireResponse)
            decoded_s = time.perf_counter()
            change = from_typed(grow)
            value_s = time.perf_counter()
            assert change.joined == change.online | change.offline
            figures.append(((decoded_s - begin_s) * 1e3, (value_s - begin_s) * 1e3))
        await asyncio.sleep(0.02)
    return figures


def different(targets: int) -> dict[str, object]:
    """An R in which no two targets have the same children."""
    entries = [{"rank": str(n), "children": {"core": f"0-{n % 128 + 1}", "gpu": str(n // 128)}} for n in range(targets)]
    execution = {"R_lite": entries, "starttime": 0, "expiration": 0, "nodelist": [f"node[0-{targets - 1}]"]}
    return {"version": 1, "execution": execution}


def run(name: str, options: launch.StartOptions, rounds: int) -> None:
    uri = launch.start_daemon(options)
    try:
        figures = asyncio.run(measure(uri, rounds))
    finally:
        launch.stop(uri)
    decoded, value = (statistics.median(one) for one in zip(*figures, strict=True))
    print(f"{name:10} decoded message after {decoded:7.2f} ms, ResourceSet after {value:7.2f} ms (median of {rounds})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    run("equal", launch.StartOptions(fake=f"{options.targets}x64", schedulers=("none",)), options.rounds)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "R.json"
        path.write_text(json.dumps(different(options.targets)))
        run("different", launch.StartOptions(r_path=path, schedulers=("none",)), options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
