"""An instance of a site: users submit jobs, which run as them, and nobody learns or changes what is another's.

Every topic of the table is asked as another user, with payloads made of the table: one that is added is tried as well.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from fluxsched.client.blocking import Handle
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError
from fluxsched.protocol import framing
from fluxsched.protocol.framing import STREAMING, decode, encode, make_request, unpack_bundle
from fluxsched.protocol.topics import LOCAL_TOPICS, RIGHTS, TOPICS, Topic
from fluxsched.transport.local import Unpacker, pack_frame
from tests.users import Account

User, Until = Any, Any

pytestmark = pytest.mark.alone

SECRET = "S3CRET"
"""In the environment, the input and the output of a job: its user's alone."""
ANSWER_S = 60.0
HIDDEN = "H1DDEN"
"""In the name of a job: seen by others, unless jobs are private."""
CONFIG = """
[access]
allow-guest-user = true
run-as-user = true
private-jobs = {private}
admin-users = ["{admin}"]
"""


class Site:
    """The instance, at sockets that all users reach."""

    def __init__(self, directory: Path, owner: User, *, is_private: bool = False) -> None:
        self.is_private = is_private
        self.directory = directory
        self.key: Path | None = None
        self.ipc, self.local = f"ipc://{directory}/site", f"local://{directory}/flux"
        self.owner = owner

    def at_port(self, name: str, user: str | None, role: str = "guest") -> Site:
        """The same site for the holder of a key, which names this account."""
        directory = self.owner.directory / "config" / "fluxsched" / "authorized-keys"
        directory.mkdir(exist_ok=True)
        key = self.owner.directory / f"{name}.key"
        if not key.exists():
            account = () if user is None else ("--user", user)
            self.owner("keygen", name, "--role", role, *account)
            (directory / f"{name}.pub").write_text(key.with_suffix(".pub").read_text())
            self.owner("config", "reload")
        found = Site(self.directory, self.owner, is_private=self.is_private)
        found.ipc, found.key = self.owner("uri", "--tcp").word, key
        return found

    def submit(self, *command: str, **options: Any) -> int:
        """A job of whoever calls this."""
        options = {"cwd": "/", "environment": {"PATH": os.environ["PATH"]}, **options}
        with Handle(self.ipc, key=self.key) as handle:
            name = options.pop("job_name", command[0])
            jobspec: dict[str, Any] = Jobspec.from_command(list(command), **options).to_json()
            jobspec["attributes"]["system"]["job"] = {"name": name}
            return int(handle.rpc("job-manager.submit", {"jobspec": jobspec})["id"])

    def run(self, *command: str, **options: Any) -> str:
        """What such a job prints, or why it failed."""
        jobid = self.submit(*command, **options)
        with Handle(self.ipc, key=self.key) as handle:
            ended = handle.rpc("job-manager.wait", {"id": jobid}, timeout_s=60.0)
            if not ended["success"]:
                return str(ended["errstr"])
            return "".join(piece["data"].decode() for piece in handle.stream("job-manager.output", {"id": jobid}))

    def events(self, jobid: int) -> list[str]:
        with self.owner.connect() as handle:
            (answer,) = handle.stream("job-manager.eventlog", {"id": jobid, "follow": False})
        return [event["name"] for event in answer["events"]]


@pytest.fixture(scope="module", params=["false", "true"], ids=["public", "private"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, users: Any, homes: Path, admin: Account
) -> Iterator[Site]:
    make_user, make_daemons = users
    directory = homes / f"site-{os.urandom(3).hex()}"  # a worker that takes a test from another one is here again
    directory.mkdir(mode=0o755)
    private = make_user(tmp_path_factory.mktemp("site"))
    config = CONFIG.format(private=request.param, admin=admin.name)
    (private.directory / "site.toml").write_text(config)
    bind = ("--bind", f"ipc://{directory}/site", "--bind", f"local://{directory}/flux", "--bind", "tcp://127.0.0.1:*")
    private.environ["XDG_CONFIG_HOME"] = str(private.directory / "config")
    private("keygen", "--server")
    with ExitStack() as stack:
        daemon = make_daemons(stack, private)
        owner = daemon("--fake", "1x8", "--config", "site.toml", "--statedir", "state", *bind)
        yield Site(directory, owner, is_private=request.param == "true")


def test_users_run_jobs_as_themselves(site: Site, ann: Account, bob: Account) -> None:
    for user in (ann, bob):
        said = user.run(partial(site.run, "sh", "-c", "id -u; id -G; pwd; echo $USER", cwd=str(user.home)))
        groups = " ".join(map(str, os.getgrouplist(user.name, user.gid)))
        assert said == f"{user.uid}\n{groups}\n{user.home}\n{user.name}\n"
    assert site.run("id", "-u") == "0\n", "a job of root is root's"
    users = {line.split()[1] for line in site.owner("jobs", "-a", "-n").out.splitlines()}
    assert {ann.name, bob.name} <= users
    assert {line.split()[1] for line in site.owner("jobs", "-a", "-n", "-u", ann.name).out.splitlines()} == {ann.name}


PROGRAMS = {
    "before": """#!/bin/sh
[ "$(id -u)" != 0 ] || exit 0
echo "$(id -u) $USER $HOME $PWD" > $HOME/prolog
[ ! -e $HOME/is-full ] || { echo the home is full; exit 1; }
""",
    "after": "#!/bin/sh\nid -u >> NOTES\n",
}
"""A prolog and an epilog, as which user they have run."""


def test_a_prolog_runs_as_the_user_and_an_epilog_as_root(user: User, daemon: Any, homes: Path, ann: Account) -> None:
    """One that fails as the user drains no host: users could drain all that way."""
    directory = homes / f"programs-{os.urandom(3).hex()}"
    directory.mkdir(mode=0o755)
    for name in ("before", "after"):
        (directory / name).write_text(PROGRAMS[name].replace("NOTES", str(directory / "notes")))
        (directory / name).chmod(0o755)
    access = "[access]\nallow-guest-user = true\nrun-as-user = true\n"
    programs = f"[prolog]\nprogram = '{directory}/before'\nrun-as = 'user'\n[epilog]\nprogram = '{directory}/after'\n"
    (user.directory / "site.toml").write_text(access + programs)
    bind = ("--bind", f"ipc://{directory}/site", "--bind", f"local://{directory}/flux")
    owner = daemon("--fake", "1x1", "--config", "site.toml", *bind)
    site = Site(directory, owner)
    begun = ann.home / "prolog"
    assert ann.run(lambda: site.run("cat", str(begun))) == f"{ann.uid} {ann.name} {ann.home} /\n"
    assert site.run("true") == "", "a job of root, whose prolog is root's"
    (ann.home / "is-full").touch()
    assert "the home is full" in ann.run(lambda: site.run("true"))
    (directory / "before").chmod(0o700)
    assert "ermission denied" in ann.run(lambda: site.run("true"))
    assert (directory / "notes").read_text().split() == ["0"] * (1 + 1 + 3 + 3), "an epilog after each attempt"
    assert owner("resource", "status", "-s", "drain", "-n").out == ""
    (ann.home / "is-full").unlink()


def test_a_users_job_finds_its_instance_as_that_user(site: Site, ann: Account) -> None:
    said = ann.run(lambda: site.run("sh", "-c", "echo $FLUXSCHED_URI $FLUX_URI; ls -ld $TMPDIR; ls /proc/self/fd"))
    uris, tmpdir, *_ = said.splitlines()
    assert uris == f"{site.ipc} {site.local}"
    assert tmpdir.startswith("drwx------")
    assert tmpdir.split()[2] == ann.name


def test_files_of_the_instance_are_readable_by_no_user(site: Site, ann: Account) -> None:
    state = site.owner.directory / "state"
    ann.run(lambda: site.run("echo", SECRET))
    for path in [state, *state.rglob("*")]:
        mode = path.lstat().st_mode
        assert not stat.S_IMODE(mode) & 0o077, path
        if not stat.S_ISDIR(mode):
            assert path.lstat().st_uid == 0 or path.parent.parent == state / "jobs", "output is of the job's user"
    for name in ("state.sqlite", "jobs", "."):
        assert ann.run(partial(open, state / name)).startswith("PermissionError"), name


def test_why_a_users_job_could_not_run_is_told_at_its_end(site: Site, ann: Account, bob: Account) -> None:
    said = ann.run(lambda: site.run("true", cwd=str(bob.home)))
    assert f"cannot change to the job's working directory '{bob.home}' as its user: Permission denied" in said
    said = ann.run(lambda: site.run("true", output="/etc/fluxsched-test"))
    assert "cannot open '/etc/fluxsched-test' for the job's output: Permission denied" in said
    assert not Path("/etc/fluxsched-test").exists()


def test_that_a_users_home_is_full_or_closed_is_told(site: Site, ann: Account) -> None:
    full = ann.home / f"full-{os.urandom(3).hex()}"
    full.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size=16k,nr_inodes=3,uid={ann.uid},mode=700", "tmpfs", str(full)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        said = ann.run(lambda: site.run("true", output="one", cwd=str(full)))
        said += ann.run(lambda: site.run("true", output="two", cwd=str(full)))
        said += ann.run(lambda: site.run("true", output="three", cwd=str(full)))
        assert said.endswith(f"cannot open 'three' for the job's output: {os.strerror(errno.ENOSPC)}")
        full.chmod(0)
        said = ann.run(lambda: site.run("true", cwd=str(full)))
        assert f"cannot change to the job's working directory '{full}' as its user: Permission denied" in said
    finally:
        subprocess.run(["umount", "-l", str(full)], check=True)


def python_for(user: Account) -> str | None:
    """A Python that this user can run, with all that fluxsched needs; None if there is none."""
    version = ".".join(map(str, sys.version_info[:2]))
    for path in (os.path.realpath(sys.executable), f"/usr/bin/python{version}"):
        words = [path, "-c", "import fluxsched.cli.main, msgspec, zmq, click"]
        with suppress(OSError):
            if user.run(lambda words=words: subprocess.run(words, env=PYTHON_PATH, check=False).returncode) == "0":
                return path
    return None


PYTHON_PATH = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}


def test_a_user_starts_an_instance_in_a_job(site: Site, ann: Account) -> None:
    python = python_for(ann)
    if python is None:
        pytest.skip("no Python that another user can run has what fluxsched needs")
    command = f"{python} -m fluxsched"
    inner = f"id -u; {command} run id -u; {command} jobs -a -n; {command} uri --parent"
    words = [*command.split(), "start", "--", "sh", "-c", inner]
    said = ann.run(lambda: site.run(*words, environment=PYTHON_PATH, cwd=str(ann.home)))
    own, run, listed, parent = said.splitlines()
    assert own == run == str(ann.uid)
    assert listed.split()[1] == ann.name
    assert parent == site.ipc


def test_who_comes_with_a_key_is_the_account_that_it_names(
    site: Site, ann: Account, bob: Account, until: Until
) -> None:
    name = f"ann-{site.is_private}"
    by_key, others = site.at_port(name, ann.name), site.at_port("bob", bob.name)
    assert by_key.run("id", "-u") == f"{ann.uid}\n"
    jobid = secret_job(site, ann)
    until(lambda: "start" in site.events(jobid))
    with Handle(by_key.ipc, key=by_key.key) as mine, Handle(others.ipc, key=others.key) as handle:
        assert mine.rpc("job-manager.lookup", {"id": jobid, "keys": ["jobspec"]})
        for topic, more in (("lookup", {"keys": ["jobspec"]}), ("cancel", {"note": ""}), ("memo", {"memo": {}})):
            with pytest.raises(FluxschedError, match="is not one of yours"):
                handle.rpc(f"job-manager.{topic}", {"id": jobid, **more})
        mine.rpc("job-manager.cancel", {"id": jobid, "note": ""})
    for key, user, role in (("nobody", None, "guest"), ("lead", None, "admin"), ("zero", "root", "guest")):
        with pytest.raises(FluxschedError, match="names no account of this machine"):
            site.at_port(key, user, role).submit("true")
        with (
            Handle(by_key.ipc, key=site.at_port(key, user, role).key) as handle,
            pytest.raises(FluxschedError, match="names no account of this machine"),
        ):
            handle.rpc("job-manager.submit-array", {"jobspec": Jobspec.from_command(["id"]).to_json(), "rows": [{}]})
    assert site.at_port("boss", None, "owner").run("id", "-u") == "0\n"


# ---- every topic


def value_for(name: str, kind: Any, jobid: int, victim: int) -> Any:
    """A value that a field takes, one that asks for the most."""
    named = {
        "keys": ["jobspec", "R", "eventlog"], "path": "eventlog", "attrs": ["all"], "user": victim, "userid": victim,
        "signum": 9, "severity": 0, "type": "cancel", "note": "x", "J": "{}",
        "updates": {"attributes.system.duration": 1},
        "command": "id", "host": socket.gethostname(), "urgency": 0, "memo": {"x": "y"}, "data": b"x",
    }  # fmt: skip
    for value in [*([named[name]] if name in named else []), jobid, "0", [], {}, True, [jobid], 0.0, b"x"]:
        with suppress(msgspec.ValidationError):
            msgspec.convert(value, kind)
            return value
    return None


def payload_for(topic: Topic, jobid: int, victim: int, *, more: bool) -> dict[str, Any]:
    """A payload of this topic that names the job wherever one can be named."""
    found: dict[str, Any] = {"id": jobid, "ids": [jobid]}
    if isinstance(topic.request, type) and issubclass(topic.request, msgspec.Struct):
        for field in msgspec.structs.fields(topic.request):
            if field.required or (more and field.encode_name in ("keys", "path", "attrs")):
                found[field.encode_name] = value_for(field.encode_name, field.type, jobid, victim)
        names = {field.encode_name: field.type for field in msgspec.structs.fields(topic.request)}
        for name, value in (("id", jobid), ("ids", [jobid])):
            if name in names:
                with suppress(msgspec.ValidationError):
                    msgspec.convert(value, names[name])
                    found[name] = value
    return found


class Wire:
    """A connection of another user, in either dialect: all that is sent back is kept."""

    def __init__(self, uri: str) -> None:
        self.is_json = uri.startswith("local://")
        self.answers: dict[int, list[int]] = {}
        self.heard = bytearray()
        self._tag = 0
        if self.is_json:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(uri.removeprefix("local://"))
            assert self._socket.recv(1) == b"\0"
            self._unpacker = Unpacker(1 << 30)
        else:
            self._dealer = zmq.Context().socket(zmq.DEALER)
            self._dealer.connect(uri)

    def ask(self, topic: str, payload: Any, *, streaming: bool = False) -> int:
        self._tag += 1
        if self.is_json:
            text = json.dumps(payload, default=bytes.decode)
            data = text.encode() + b"\0"
        else:
            data = framing.pack(payload)
        frames = encode(make_request(topic, data, matchtag=self._tag, flags=STREAMING if streaming else 0))
        if self.is_json:
            self._socket.sendall(pack_frame(frames))
        else:
            self._dealer.send_multipart(frames)
        return self._tag

    def _can_be_read(self) -> bool:
        if self.is_json:
            return bool(select.select([self._socket], [], [], ANSWER_S)[0])
        return bool(self._dealer.poll(ANSWER_S * 1000))

    def until(self, tag: int) -> int:
        """The errno of the answer to this request, when it has come."""
        while tag not in self.answers:
            assert self._can_be_read(), f"no answer to request {tag} has come"
            messages: list[list[bytes]] = []
            if self.is_json:
                self._unpacker.feed(self._socket.recv(1 << 20), messages)
            else:
                messages = [self._dealer.recv_multipart()]
            for frames in messages:
                self.heard += b"".join(frames)
                for message in unpack_bundle(decode(frames)):
                    self.answers.setdefault(message.matchtag, []).append(message.errnum)
        return self.answers[tag][0]


ROOT = Path(__file__).parents[2]
SILENT = {name for name, topic in {**TOPICS, **LOCAL_TOPICS}.items() if topic.response is None}
ENDING = {"instance.goodbye", "instance.renounce"}
"""After them nothing is answered, or nothing that tells who asks."""
STOPPING = {"instance.stop", "instance.restart"}
"""Whoever may would end the instance."""


def rights_on_page() -> dict[str, str]:
    """Who may call each topic, as rfc/security.md tells people."""
    page = (ROOT / "rfc" / "security.md").read_text()
    table = page.partition("<!-- generated: roles -->")[2].partition("<!-- end -->")[0]
    found = {}
    for line in table.splitlines()[3:]:
        who, topics = [cell.strip() for cell in line.strip("|").split(" | ")]
        found |= dict.fromkeys(re.findall("`([^`]+)`", topics), who)
    return found


PAGE = rights_on_page()


def is_refused(topic: str, who: str, *, private: bool) -> bool:
    """Whether the page refuses a topic, for a job of ann, to the owner, an admin, ann (own) or bob (other)."""
    right, is_guest = PAGE[topic], who in ("own", "other")
    return {
        "guest": is_guest and private and RIGHTS[topic].counts_jobs,
        "guest, for jobs that it may see": who == "other" and private,
        "guest, for jobs of its own": who == "other",
        "admin": is_guest,
        "admin; with `run-as-user` each user": False,
        "owner": who != "owner",
        "owner, and keepers": who != "owner",
        "owner; with `run-as-user` each user": False,
        "owner; with `run-as-user` each user, for jobs of its own": who in ("admin", "other"),
    }[right]


def try_all(site: Site, uri: str, jobid: int, victim: int, harmless: set[str]) -> dict[str, Any]:
    """Errno by topic, and whether a secret was heard, as whoever calls this; the job runs meanwhile. What is harmless
    is asked with a payload that nobody accepts.
    """
    wire = Wire(uri)
    table = {**TOPICS, **LOCAL_TOPICS} if wire.is_json else TOPICS
    asked: dict[str, int] = {}
    for name, topic in table.items():
        if name in ENDING or (name in STOPPING and name in harmless):
            continue
        of_job = name.replace("*", format_f58(jobid, ascii=True))
        for more in (True, False):
            payload = [] if name in harmless else payload_for(topic, jobid, victim, more=more)
            asked[name] = wire.ask(of_job, payload, streaming=topic.streaming)
    site.run("true")  # all that was to be stored before has been
    wire.until(wire.ask("instance.info", {}))  # refusals, and what is known, have come before this answer
    heard = bytes(wire.heard)
    errors = {name: wire.answers.get(tag, [-1])[0] for name, tag in asked.items()}
    return {"errors": errors, "secret": SECRET.encode() in heard, "hidden": HIDDEN.encode() in heard}


def tried(user: Account, *args: Any) -> Any:
    """The result of `try_all` in a process of this user."""
    said = user.run(lambda: json.dumps(try_all(*args)))
    assert said.startswith("{"), said
    return json.loads(said)


def secret_job(site: Site, user: Account) -> int:
    """A job that runs, has secrets everywhere, and has told them."""
    environment = {"PATH": os.environ["PATH"], "TOKEN": SECRET}
    program = 'echo $TOKEN; echo $TOKEN > "$HOME/told"; exec sleep 300'
    told = user.home / "told"
    told.unlink(missing_ok=True)
    submit = partial(site.submit, "sh", "-c", program, environment=environment, job_name=HIDDEN, cwd=str(user.home))
    return int(user.run(submit))


@pytest.mark.parametrize("dialect", ["ipc", "local"])
@pytest.mark.parametrize("who", ["owner", "admin", "own", "other"])
def test_each_topic_is_refused_to_whom_the_page_says_and_leaks_nothing(
    site: Site, ann: Account, bob: Account, admin: Account, until: Until, who: str, dialect: str
) -> None:
    """Figure: every topic x {owner, admin, user's own, another user's}: 0 leaks."""
    account = {"owner": Account("root", 0, 0, Path("/root")), "admin": admin, "own": ann, "other": bob}[who]
    jobid = secret_job(site, ann)
    until(lambda: (ann.home / "told").exists() and "start" in site.events(jobid))
    before = site.events(jobid)
    refused = {name for name in PAGE if is_refused(name, who, private=site.is_private)}
    harmless = {name for name in PAGE if PAGE[name] in ("admin", "owner", "owner, and keepers")} - refused
    try:
        found = tried(account, site, getattr(site, dialect), jobid, ann.uid, harmless)
        errors = {name: errnum for name, errnum in found["errors"].items() if name not in SILENT}
        assert {name for name, errnum in errors.items() if errnum == errno.EPERM} == refused & errors.keys()
        assert found["secret"] == (who != "other"), "environment and output"
        if who == "other":
            assert not (found["hidden"] and site.is_private), "of private jobs not even the name"
            assert site.events(jobid) == before, "its log is as it was"
        else:
            until(lambda: site.events(jobid)[-1] == "clean")  # one of them has ended it
    finally:
        with site.owner.connect() as handle, suppress(FluxschedError):
            handle.rpc("job-manager.cancel", {"id": jobid, "note": ""})


def test_the_page_has_each_topic() -> None:
    assert PAGE.keys() == TOPICS.keys() | LOCAL_TOPICS.keys()


def test_a_guest_cannot_put_jobs_before_those_of_others(site: Site, ann: Account) -> None:
    def urgent() -> object:
        with Handle(site.ipc) as handle:
            jobspec = Jobspec.from_command(["true"], cwd="/").to_json()
            return handle.rpc("job-manager.submit", {"jobspec": jobspec, "urgency": 31})

    assert "a guest may set an urgency of 16 at most" in ann.run(urgent)


def test_who_chooses_an_identity_is_not_heard(site: Site, ann: Account) -> None:
    def chosen() -> object:
        named, other = (zmq.Context().socket(zmq.DEALER) for _ in range(2))
        named.routing_id = b"mine"
        for dealer in (named, other):
            dealer.connect(site.ipc)
            dealer.send_multipart(encode(make_request("instance.ping", framing.pack({}), matchtag=1)))
        return other.poll(60_000) != 0, named.poll(500) != 0

    assert ann.run(chosen) == "(True, False)", "the other one has its answer"


def test_killed_with_its_keeper_a_site_finds_and_ends_the_tasks_of_users(
    users: Any, tmp_path: Path, homes: Path, ann: Account, admin: Account, kill_hard: Callable[[int], None],
    keeper_of: Callable[[int], int | None], alive: Callable[[int], bool], until: Until,
) -> None:  # fmt: skip
    make_user, make_daemons = users
    directory = homes / "killed"
    directory.mkdir(mode=0o755)
    private = make_user(tmp_path)
    config = CONFIG.format(private="false", admin=admin.name)
    (private.directory / "site.toml").write_text(config)
    start = ("--fake", "1x8", "--config", "site.toml", "--statedir", "state", "--bind", f"ipc://{directory}/site")
    with ExitStack() as stack:
        daemon = make_daemons(stack, private)
        site = Site(directory, daemon(*start))
        script = 'echo $$ > "$HOME/pid.part" && mv "$HOME/pid.part" "$HOME/pid"; exec sleep 300'
        environment = {"PATH": os.environ["PATH"]}

        def running(user: Account = ann) -> tuple[int, int]:
            (user.home / "pid").unlink(missing_ok=True)
            jobid = int(user.run(lambda: site.submit("sh", "-c", script, environment=environment)))
            until((user.home / "pid").exists)
            return jobid, int((user.home / "pid").read_text())

        survivor, pid = running()
        kill_hard(site.owner.pid())
        site.owner = daemon(*start)
        assert alive(pid), "the keeper has it"
        assert "start" in site.events(survivor)
        assert "clean" not in site.events(survivor)
        assert ann.run(lambda: site.run("id", "-u")) == f"{ann.uid}\n"
        instance = site.owner.pid()
        found = _keepers(private.directory / "state")
        assert found
        kill_hard(instance)
        for keeper in found:
            kill_hard(keeper)
        site.owner = daemon(*start)
        until(lambda: not alive(pid))
        until(lambda: site.events(survivor)[-1] == "clean")
        again, pid = running()
        ann.run(lambda: _cancel(site, again))
        until(lambda: not alive(pid))


def _cancel(site: Site, jobid: int) -> None:
    with Handle(site.ipc) as handle:
        handle.rpc("job-manager.cancel", {"id": jobid, "note": ""})


def _keepers(state: Path) -> list[int]:
    """The processes that listen at the sockets of keepers in a state directory."""
    found = []
    for path in state.glob("keeper-*"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
            found.append(int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little"))
    return found


REFUSED = {
    "users need a socket that they reach": ("", ()),
    "jobs of a [[cluster]] would run as its owner": (
        '[[cluster]]\nname = "c"\nuri = "ipc:///c"\n', ("--bind", "ipc://{homes}/x"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_what_would_run_jobs_as_another_user_is_refused_at_the_start(user: User, homes: Path, said: str) -> None:
    more, bind = REFUSED[said]
    (user.directory / "site.toml").write_text(f"[access]\nrun-as-user = true\n{more}")
    words = [word.format(homes=homes) for word in bind]
    done = user.process("start", "--daemon", "--fake", "1x1", "--config", "site.toml", *words, status=1)
    assert said in done.err


def test_the_state_of_a_site_is_not_used_without_its_users(user: User, homes: Path, daemon: Any) -> None:
    (user.directory / "site.toml").write_text("[access]\nrun-as-user = true\n")
    bind = ("--bind", f"ipc://{homes}/only-{os.getpid()}")
    start = ("--daemon", "--fake", "1x1", "--statedir", "state")
    site = user.at(user.process("start", *start, "--config", "site.toml", *bind).word)
    site("stop")
    done = user.process("start", *start, status=1)
    assert "its jobs run as their users, and would run as root" in done.err
