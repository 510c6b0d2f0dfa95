"""What keys cost: jobs a second of the bundling client over tcp on loopback, with CURVE and without, and over ipc.

    python benchmarks/keys.py [--fake 16384x64] [--jobs 20000] [--runs 7] [--window 512]

Each way has an instance of its own, and runs take turns, so that the neighbours of a shared machine disturb all alike.
Asked: with keys at least 90 % of the jobs a second without. CPU of the client and the instance tells the same with less
noise; that of the instance includes the encryption, which is done by libzmq's own threads.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs import RUN_S, Jobspecs, Usage, burst  # the script beside this one

import fluxsched
from fluxsched.core.role import Role
from fluxsched.instance import launch
from fluxsched.messaging.keys import AUTHORIZED_NAME, generate, generate_server
from fluxsched.system.files import KEY_VARIABLE

TCP = "tcp://127.0.0.1:*"
WAYS = ("ipc", "tcp", "keys")


@contextmanager
def keys() -> Iterator[None]:
    """The keys of a server and of a client, where both look for them."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CONFIG_HOME"] = home
        usual = Path(home) / "fluxsched"
        generate_server(usual)
        secret, public = generate("bench", Role.OWNER, None, Path(home))
        (usual / AUTHORIZED_NAME).mkdir()
        public.rename(usual / AUTHORIZED_NAME / public.name)
        os.environ[KEY_VARIABLE] = str(secret)
        yield


def start(fake: str, way: str) -> tuple[str, str]:
    """An instance: where it can be stopped, and where the client connects."""
    bind = () if way == "ipc" else (TCP,)
    uri = launch.start_daemon(launch.StartOptions(fake=fake, bind=bind, insecure_tcp=way == "tcp"))
    with fluxsched.connect_sync(uri) as h:
        ports = [one for one in h.rpc("instance.info")["endpoints"] if one.startswith("tcp")]
    return uri, (ports or [uri])[0]


def measure(options: argparse.Namespace, ports: dict[str, str]) -> None:
    """Run by run, each way in turn; then medians, and what each way is of plain tcp."""
    specs = Jobspecs(False, RUN_S)
    rates: dict[str, list[float]] = {name: [] for name in ports}
    used_us: dict[str, list[float]] = {name: [] for name in ports}
    for port in ports.values():
        asyncio.run(burst(port, 500, options.window, specs))
    for _ in range(options.runs):
        for way, port in ports.items():
            usage = Usage(port)
            before = usage.cpu_s()
            elapsed_s = asyncio.run(burst(port, options.jobs, options.window, specs))
            used = usage.since(before, options.jobs / 1e6)
            rates[way].append(options.jobs / elapsed_s)
            used_us[way].append(sum(used.values()))
            shown = ", ".join(f"{name} {value:.0f}" for name, value in used.items())
            print(f"{rates[way][-1]:8.0f} jobs/s   CPU us a job: {shown}; {way}", flush=True)
    for way in ports:
        rate, us = statistics.median(rates[way]), statistics.median(used_us[way])
        ratio = statistics.median(a / b for a, b in zip(rates[way], rates["tcp"], strict=True))
        print(f"median {rate:.0f} jobs/s, {us:.0f} us of CPU a job, {ratio:.3f} x the rate of plain tcp: {way}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", default="16384x64")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--window", type=int, default=512, help="jobs under way at once")
    options = parser.parse_args()
    with keys():
        started = {way: start(options.fake, way) for way in WAYS}
        try:
            measure(options, {way: port for way, (_, port) in started.items()})
        finally:
            for uri, _ in started.values():
                launch.stop(uri)
    return 0


if __name__ == "__main__":
    sys.exit(main())
