"""Clusters at a tcp port that keys open: real ports, keys in files."""

from __future__ import annotations

import pytest

from fluxsched.core.role import Role
from fluxsched.runtime.access.key_files import generate, generate_server
from fluxsched.transport.zeromq import NOT_ADMITTED

from .conftest import job


@pytest.fixture
async def at_port(pair, tmp_path, monkeypatch):
    """at_port(role): the pair, connected by tcp with a key of this role, or with one that is not admitted."""
    home = tmp_path / "fluxsched"
    home.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("FLUXSCHED_KEY", raising=False)
    generate_server(home)
    (home / "authorized-keys").mkdir()

    async def connect(role):
        secret, public = generate("here", role or Role.OWNER, None, pair.world.directory)  # beside the configuration
        if role is not None:
            public.rename(home / "authorized-keys" / public.name)
        pair.there = await pair.world.instance(fake="4x4", schedulers=("easy",), bind=("tcp://127.0.0.1:*",))
        (uri,) = [server.endpoint for server in pair.there.servers if server.endpoint.startswith("tcp://")]
        assert "@127.0.0.1:" in uri
        await pair.open(uri, more=f'key = "{secret.name}"')

    return connect


async def test_an_owner_has_jobs_run_at_a_tcp_port(pair, at_port):
    await at_port(Role.OWNER)
    jobid = await pair.submit(job("sh", "-c", "exit 3"))
    assert (await pair.wait(jobid))["status"] == 3 << 8
    found = await pair.cluster()
    assert (found["state"], found["targets"], found["online"]) == ("connected", 4, 4)


@pytest.mark.parametrize(("role", "note"), [(Role.ADMIN, "only its owner has leases there"), (None, NOT_ADMITTED)])
async def test_all_others_are_told_what_they_lack(pair, at_port, role, note):
    await at_port(role)
    found = await pair.cluster()
    assert (found["state"], found["targets"]) == ("silent", 0)
    assert note in found["note"]
