"""A port that keys open, with real commands: who connects, what each may do, and what becomes of a removed key."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from fluxsched.client.aio import AsyncHandle
from fluxsched.client.blocking import Handle
from fluxsched.errors import Disconnected, InvalidValue, Refused
from fluxsched.transport.base import tcp_address
from fluxsched.transport.sockets import make_key_pair
from fluxsched.transport.zeromq import NOT_ADMITTED

User, Daemons, World = Any, Any, Any
TCP = "tcp://127.0.0.1:*"


class Keys:
    """A site with its keys: `make` one, have it `authorized`, and be its `holder`."""

    def __init__(self, user: User) -> None:
        self.user = self.site = user
        self.uri = ""
        home = user.directory / "config"
        user.environ["XDG_CONFIG_HOME"] = str(home)
        self.directory = home / "fluxsched" / "authorized-keys"
        self.server = Path(user("keygen", "--server").word)
        self.directory.mkdir()

    def start(self, daemon: Daemons) -> None:
        self.site = daemon("--fake", "2x2", "--bind", TCP, "--statedir", "state", "-v")
        self.uri = self.site("uri", "--tcp").word

    def make(self, name: str, role: str) -> Path:
        path: Path = self.user.directory / self.user("keygen", name, "--role", role).word
        return path

    def authorized(self, *names: str, role: str = "guest") -> list[Path]:
        """New keys that may connect from now on."""
        made = [self.make(name, role) for name in names]
        for key in made:
            (self.directory / f"{key.stem}.pub").write_text(key.with_suffix(".pub").read_text())
        told = "".join(f'access.authorized-keys.{name}: not set -> "{role}"\n' for name in sorted(names))
        assert self.site("config", "reload").out == told
        return made

    def holder(self, key: Path, uri: str | None = None) -> User:
        """A user elsewhere, who has this key and an address."""
        there = self.site.at(uri or self.uri)
        there.environ = {**self.site.environ, "FLUXSCHED_KEY": str(key)}
        return there


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory, users: Any) -> Iterator[Keys]:
    """One site for all tests of this file: each has keys of its own names."""
    make_user, make_daemons = users
    with ExitStack() as stack:
        keys = Keys(make_user(tmp_path_factory.mktemp("keys")))
        keys.start(make_daemons(stack, keys.user))
        yield keys


@pytest.fixture
def at_home(keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual place of keys for instances in this process: a copy of the site's server key, and none authorized."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    home = tmp_path / "fluxsched"
    (home / "authorized-keys").mkdir(parents=True)
    (home / "server.key").write_text(keys.server.read_text())
    (home / "server.key").chmod(0o600)
    return home


def secret_of(path: Path) -> str:
    (found,) = re.findall(r'secret-key = "(\w+)"', path.read_text())
    return str(found)


def test_keys_open_a_port_each_as_far_as_its_role_goes(keys: Keys) -> None:
    assert re.fullmatch(r"tcp://[0-9a-f]{64}@127\.0\.0\.1:\d+", keys.uri)
    (ann,), (bob,) = keys.authorized("ann", role="admin"), keys.authorized("bob")
    (me,) = keys.authorized("me", role="owner")
    admin, guest, owner, stranger = map(keys.holder, (ann, bob, me, keys.make("eve", "owner")))
    assert guest("resource", "status").status == 0
    assert "Request requires admin credentials" in guest("resource", "drain", "0", "x", status=1).err
    assert "only the owner may submit them, and your role is" in guest("submit", "true", status=1).err
    admin("resource", "drain", "0", "loose cable")
    assert " ann " in keys.site("resource", "drain").out, "who did it is the name of the key"
    admin("resource", "undrain", "0")
    assert "only the owner may submit them, and your role is" in admin("submit", "true", status=1).err
    job = owner.submit("sleep", "60")
    assert "is not one of yours" in guest("cancel", job, status=1).err
    admin("cancel", job)
    assert NOT_ADMITTED in stranger("resource", "status", status=1).err
    log = Path(keys.site("uri", "--json").json["rundir"], "log").read_text()
    assert "refused a connection from 127.0.0.1: its key" in log


def test_a_key_that_is_removed_is_cut_at_the_next_reload(keys: Keys) -> None:
    removed_key, kept_key = keys.authorized("removed", "kept")
    with Handle(keys.uri, key=removed_key) as removed, Handle(keys.uri, key=kept_key) as kept:
        for handle in (removed, kept):
            assert handle.rpc("instance.info")["size"] == 2
        (keys.directory / "removed.pub").unlink()
        assert removed.rpc("instance.info")["size"] == 2, "nothing changes before the reload"
        assert 'access.authorized-keys.removed: "guest" -> not set\n' in keys.site("config", "reload").out
        with pytest.raises(Disconnected):
            removed.rpc("instance.info")
        assert kept.rpc("instance.info")["size"] == 2
    with pytest.raises(Disconnected, match="does not know your key"), Handle(keys.uri, key=removed_key) as handle:
        handle.rpc("instance.info")


def test_a_reload_with_a_wrong_key_file_changes_nothing(keys: Keys) -> None:
    (key,) = keys.authorized("careful")
    public = keys.directory / "careful.pub"
    kept = public.read_text()
    public.write_text("not a key")
    with Handle(keys.uri, key=key) as handle:
        assert handle.rpc("instance.info")["size"] == 2
        assert "careful.pub is not a public key" in keys.site("config", "reload", status=1).err
        assert handle.rpc("instance.info")["size"] == 2
    public.write_text(kept)


def test_a_key_that_others_may_read_is_not_used(keys: Keys) -> None:
    (key,) = keys.authorized("open")
    key.chmod(0o644)
    assert "open.key has mode 0644" in keys.holder(key)("jobs", status=1).err
    key.chmod(0o600)
    without = keys.site.at(keys.uri)
    assert "client.key is not there" in without("jobs", status=1).err
    assert without("--key", str(key), "jobs").status == 0
    other = tcp_address(keys.uri).with_key(make_key_pair().public)
    assert NOT_ADMITTED in keys.holder(key, other)("jobs", status=1).err, "the address of another server"


async def test_a_start_with_wrong_keys_is_refused_by_name(at_home: Path, keys: Keys, world: World) -> None:
    public = keys.make("double", "guest").with_suffix(".pub").read_text()
    for name in ("one", "twin"):
        (at_home / "authorized-keys" / f"{name}.pub").write_text(public)
    with pytest.raises(InvalidValue, match=r"one\.pub and twin\.pub hold the same key"):
        await world.instance(fake="1x1", bind=(TCP,))
    (at_home / "server.key").chmod(0o640)
    with pytest.raises(Refused, match=r"server\.key has mode 0640: others may read it; chmod 600"):
        await world.instance(fake="1x1", bind=(TCP,))
    (at_home / "server.key").unlink()
    with pytest.raises(Refused, match="make some with `fluxsched keygen --server`"):
        await world.instance(fake="1x1", bind=(TCP,))


async def test_a_public_address_is_bound_with_keys_only(at_home: Path, world: World) -> None:
    everywhere = "tcp://0.0.0.0:*"
    with pytest.raises(InvalidValue, match="tcp beyond loopback needs CURVE keys"):
        await world.instance(fake="1x1", bind=(everywhere,), insecure_tcp=True)
    instance = await world.instance(fake="1x1", bind=(everywhere,), schedulers=("none",))
    (endpoint,) = [server.endpoint for server in instance.servers if server.endpoint.startswith("tcp")]
    assert tcp_address(endpoint).host == socket.gethostname()
    assert instance.is_open_to_all is None, "nothing to warn of"


def test_secrets_are_in_no_log_argument_or_environment(keys: Keys) -> None:
    """Of the instance, its scheduler, a job submitted with a key, and the state and run directories."""
    (key,) = keys.authorized("careless", role="owner")
    there = keys.holder(key)
    script = "env; tr '\\0' ' ' < /proc/$PPID/cmdline; sleep 60"
    job = there.process("submit", "--output=seen", "sh", "-c", script).word
    there("job", "wait-event", job, "start")
    info = keys.site("uri", "--json").json
    seen = [there("job", "info", job).out, there("jobs", "--json").out]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().decode(errors="replace")
            if str(keys.user.directory) in environment:
                seen += [environment, (process / "cmdline").read_bytes().decode(errors="replace")]
        except OSError:
            continue
    there("cancel", job)
    there("wait", job, status=None)
    output = (keys.user.directory / "seen").read_text()
    assert "FLUXSCHED_URI=ipc://" in output
    assert "FLUXSCHED_KEY" not in output
    for directory in (info["rundir"], info["statedir"]):
        seen += [file.read_bytes().decode(errors="replace") for file in Path(directory).rglob("*") if file.is_file()]
    assert len(seen) > 10
    text = "\n".join([*seen, output])
    secrets = [secret_of(key), secret_of(keys.server)]
    assert not [secret for secret in secrets if secret in text]


async def test_the_asynchronous_client_and_an_agent_use_keys_too(keys: Keys) -> None:
    (key,) = keys.authorized("agent", role="admin")
    async with AsyncHandle(keys.uri, key=key) as handle:
        assert (await handle.rpc("instance.info"))["size"] == 2
    refused = keys.holder(key)("agent", "--host", "elsewhere", status=1).err
    assert "elsewhere" in refused, "an agent is let in, and told that the host is none of the instance's"


def test_keygen(keys: Keys) -> None:
    user = keys.user
    assert "exists: keys are not overwritten" in user("keygen", "--server", status=1).err
    assert "give the NAME of a client, or --server" in user("keygen", status=2).err
    assert "takes no NAME, --role or --user" in user("keygen", "--server", "ann", status=2).err
    assert "takes no NAME, --role or --user" in user("keygen", "--server", "--role", "admin", status=2).err
    assert "key name '../ann'" in user("keygen", "../ann", status=2).err
    assert "user 'no such' is unknown" in user("keygen", "ann", "--user", "no such", status=2).err
    user("keygen", "bob", "--user", "root", "-d", "made")
    assert "user = 0\n" in (user.directory / "made" / "bob.pub").read_text()


def test_an_owner_elsewhere_stops_the_instance(keys: Keys, until: Any) -> None:
    """Last in this file, since the others need it. Process ids of another machine say nothing here."""
    (key,) = keys.authorized("boss", role="owner")
    pid = keys.site.pid()
    with patch("fluxsched.instance.launch._is_alive", lambda pid: True):
        assert keys.holder(key)("stop").word == f"stopped {keys.uri}"
    until(lambda: keys.site("uri", status=None).status == 1)
    assert "nothing listens" in keys.site("uri", status=1).err or not Path(f"/proc/{pid}").exists()
