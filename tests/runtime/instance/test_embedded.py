"""An instance within a program: entered means ready, in time or with an error; its paths may be texts."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

import fluxsched
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.runtime.instance.instance import Instance
from fluxsched.runtime.instance.launch import StartOptions, settings_of

WAIT_S = 30.0


@pytest.fixture(autouse=True)
def _own_directories(tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))


async def test_a_job_that_can_never_run_is_denied_at_once() -> None:
    options = fluxsched.StartOptions(fake="2x4")
    async with fluxsched.Instance(fluxsched.settings_of(options)) as instance, fluxsched.connect(instance.uri) as h:
        jobid = await h.submit(fluxsched.Jobspec.from_command(["true"], ntasks=100))
        result = await asyncio.wait_for(h.wait(jobid), WAIT_S)
    assert (result["success"], result["exception_type"]) == (False, "alloc")


@pytest.mark.parametrize(
    ("policy", "limit_s", "want"),
    [
        ("import time\ntime.sleep(60)\n", 0.4, "not ready within 0.4 s (StartOptions.ready_within_s): module"),
        ("1 / 0\n", None, "module sched-mine: policy "),
    ],
)  # fmt: skip
async def test_one_that_does_not_become_ready_is_an_error(
    tmp_path: Path, policy: str, limit_s: float | None, want: str
) -> None:
    (tmp_path / "mine.py").write_text(policy)
    options = StartOptions(fake="1x1", schedulers=(str(tmp_path / "mine.py"),), ready_within_s=limit_s)
    with pytest.raises(FluxschedError) as found:
        async with Instance(settings_of(options)):
            pass
    assert want in str(found.value)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("fluxsched-")]


async def test_paths_may_be_texts(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[queues.batch]\n')
    rlite = [{"rank": "0-2", "children": {"core": "0"}}]
    execution = {"R_lite": rlite, "starttime": 0, "expiration": 0, "nodelist": ["n[0-2]"]}
    (tmp_path / "R.json").write_text(json.dumps({"version": 1, "execution": execution}))
    texts = {"config": f"{tmp_path}/site.toml", "r_path": f"{tmp_path}/R.json", "statedir": f"{tmp_path}/state"}
    async with Instance(settings_of(StartOptions(**texts))) as instance:
        info = instance.info()
        assert (info.size, info.statedir) == (3, texts["statedir"])
    for name in texts:
        with pytest.raises(InvalidValue, match=f"StartOptions.{name} is empty: is a variable unset"):
            settings_of(StartOptions(**{name: ""}))


async def test_both_clients_raise_the_same_error_when_the_instance_is_gone() -> None:
    async with Instance(settings_of(StartOptions(fake="1x1"))) as instance, fluxsched.connect(instance.uri) as h:
        blocking = await asyncio.to_thread(fluxsched.connect_sync, instance.uri)
        await instance.close()
        for call in (lambda: h.rpc("instance.info"), lambda: asyncio.to_thread(blocking.rpc, "instance.info")):
            with pytest.raises(fluxsched.RPCError) as found:
                await call()
            assert type(found.value) is fluxsched.Disconnected
        with pytest.raises(fluxsched.Disconnected):
            await asyncio.to_thread(fluxsched.connect_sync, instance.uri)
        with pytest.raises(fluxsched.Disconnected):
            async with fluxsched.connect(instance.uri):
                pass
        await asyncio.to_thread(blocking.close)
