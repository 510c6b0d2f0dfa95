"""`fluxsched si serve` as a user starts and ends it: addresses, who gets in, wrong words, what is left behind."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc
from click.testing import CliRunner

from fluxsched.cli.main import main
from fluxsched.yunikorn import messages
from fluxsched.yunikorn.messages import ALLOCATIONS, APPLICATIONS, NODES
from fluxsched.yunikorn.wire import EXTRA, SCHEDULER, Address
from tests.yunikorn.interfaces.drivers import RemoteRM

from .conftest import PROGRAM, WAIT_S

ROOT = Path(__file__).parents[2]


@contextmanager
def serving(*words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A service, and its first line of output."""
    with subprocess.Popen(
        [PROGRAM, "si", "serve", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **environment},
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], signum: int) -> tuple[int, str]:
    """Status and stderr after a signal."""
    process.send_signal(signum)
    _, err = process.communicate(timeout=WAIT_S)
    return process.returncode, err


def si(*words: str) -> Any:
    return CliRunner().invoke(main, ["si", *words], prog_name="fluxsched")


def test_a_service_prints_its_address_and_leaves_nothing(tmp_path: Path) -> None:
    with serving(XDG_RUNTIME_DIR=str(tmp_path)) as (process, address):
        path = Path(address.removeprefix("unix:"))
        assert path.parent.parent == tmp_path
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert json.loads(si("dump", address).output) == {"rms": []}
        done = si("dump", address, "--rm", "unknown")
        assert (done.exit_code, done.stderr) == (
            1, "fluxsched: si dump: resource manager 'unknown' is not registered: register it first\n",
        )  # fmt: skip
        assert ended(process, signal.SIGTERM) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_a_second_service_is_refused_and_one_after_a_kill_is_not(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/run/s"
    with serving("--bind", address) as (process, printed):
        assert printed == address
        done = si("serve", "--bind", address)
        assert done.exit_code == 1
        assert done.stderr == (
            f"fluxsched: si serve: another service listens at {address}: stop it, or name another path\n"
        )
        assert ended(process, signal.SIGKILL)[0] == -signal.SIGKILL
    assert Path(tmp_path, "run/s").exists()
    with serving("--bind", address) as (process, printed):
        assert printed == address
        assert ended(process, signal.SIGINT) == (0, "")


def test_secrets_are_in_no_log(tmp_path: Path) -> None:
    with (
        serving("--bind", f"unix:{tmp_path}/run/s", "-vv") as (process, address),
        grpc.insecure_channel(address) as channel,
    ):
        call = channel.unary_unary(SCHEDULER["RegisterResourceManager"].path)
        for config in ("partitions:\n- name: default\n  SECRET: 1\n", "# SECRET", "[SECRET"):
            request = messages.RegisterResourceManagerRequest(rmID="rm", config=config, extraConfig={"key": "SECRET"})
            call.future(request.SerializeToString()).exception(timeout=WAIT_S)
        call.future(request.SerializeToString()[:-3]).exception(timeout=WAIT_S)
        status, err = ended(process, signal.SIGTERM)
    assert status == 0
    assert err.count('"config": "***", "extraConfig": "***"') == 3
    assert "SECRET" not in err


def test_others_cannot_get_at_the_socket(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    done = si("serve", "--bind", f"unix:{tmp_path}/s")
    assert done.exit_code == 1
    assert f"{tmp_path} is open to others (mode 0755)" in done.stderr
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    tmp_path.chmod(0o700)
    (tmp_path / "file").touch()
    done = si("serve", "--bind", f"unix:{tmp_path}/file")
    assert (done.exit_code, "exists and is not a socket" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--bind", "nonsense"], "is not an address: write unix:PATH or HOST:PORT"),
        (["--bind", "127.0.0.1:0"], "needs --cert, --key and --client-ca, or --insecure to admit every process"),
        (["--bind", "0.0.0.0:0", "--insecure"], "--insecure is for loopback alone, and 0.0.0.0 is not"),
        (["--insecure"], "takes neither certificates nor --insecure"),
        (["--bind", "127.0.0.1:0", "--insecure", "--cert", __file__], "--insecure takes no certificates"),
        (["--bind", "127.0.0.1:0", "--cert", __file__], "needs --cert, --key and --client-ca"),
        (["--bind", "[::1]:0", "--cert", __file__, "--key", __file__, "--client-ca", __file__], "not a certificate"),
        (["--groups", "/nowhere"], "'/nowhere' does not exist"),
        (["--plugin", "nothing"], "no plugin 'nothing'"),
        (["--plugin", "quota:config=q.yaml"], "q.yaml"),
    ],
)
def test_wrong_words_are_wrong_usage(words: list[str], says: str) -> None:
    done = si("serve", *words)
    assert (done.exit_code, says in done.stderr) == (2, True), done.stderr


def test_a_plugin_of_a_file_has_its_say(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "from fluxsched.sched.hooks import PASS, Later\n"
        "class Odd:\n"
        "    name = 'odd'\n"
        "    def look(self, job, rank):\n"
        "        return PASS if rank % 2 else Later('even')\n"
    )
    with serving("--bind", f"unix:{tmp_path}/run/s", "--plugin", str(tmp_path / "odd.py")) as (process, _):
        rm_address = Address(path=tmp_path / "run/s")
        rm = RemoteRM(rm_address, "rm")
        rm.register()
        amount = {"resources": {"vcore": {"value": 1}}}
        nodes = [{"nodeID": f"n{at}", "action": "CREATE", "schedulableResource": amount} for at in range(4)]
        rm.send(NODES, nodes=nodes)
        rm.wait(NODES, "accepted", 4)
        rm.send(APPLICATIONS, new=[{"applicationID": "app", "queueName": "root.default"}])
        rm.wait(APPLICATIONS, "accepted")
        rm.send(ALLOCATIONS, allocations=[
            {"allocationKey": str(at), "applicationID": "app", "resourcePerAlloc": amount} for at in range(4)
        ])  # fmt: skip
        assert sorted(answer.item.nodeID for answer in rm.wait(ALLOCATIONS, "new", 2)) == ["n1", "n3"]
        assert [len(node["allocations"]) for node in rm.dump()["partitions"][0]["nodes"]] == [0, 1, 0, 1]
        shown = si("status", str(rm_address), "-n", "-o", "{path} {running} {waiting} {used} {max}").output
        assert shown.split("\n") == ["root         2 2 vcore=2m vcore=4m", "root.default 2 2 vcore=2m", ""]
        rm.close()
        assert ended(process, signal.SIGTERM) == (0, "")


def test_loopback_without_certificates_says_who_gets_in() -> None:
    with serving("--bind", "127.0.0.1:0", "--insecure") as (process, address):
        assert int(address.removeprefix("127.0.0.1:")) > 0
        assert json.loads(si("dump", address).output) == {"rms": []}
        done = si("serve", "--bind", address, "--insecure")
        assert (done.exit_code, f"cannot listen at {address}" in done.stderr) == (1, True)
        status, err = ended(process, signal.SIGTERM)
        assert (status, f"any process of this machine can reach {address}" in err) == (0, True)


def test_after_a_kill_nothing_is_allocated_twice() -> None:
    """Twenty times: `python benchmarks/si_kill.py 20`."""
    spec = importlib.util.spec_from_file_location("si_kill", ROOT / "benchmarks/si_kill.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.run(kills=2, allocations=300)
    assert found["kills"] == 2
    assert found["allocations"] > 2


# ---- certificates


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and certificates of a service and of two clients that it vouches for; a third that it does not."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make certificates")
    top = tmp_path_factory.mktemp("certificates")
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    openssl(*new, "-keyout", f"{top}/ca.key", "-out", f"{top}/ca.pem", "-subj", "/CN=ca")
    for name in ("service", "one", "two"):
        signed = ("-CA", f"{top}/ca.pem", "-CAkey", f"{top}/ca.key", "-addext", "subjectAltName=IP:127.0.0.1")
        openssl(*new, *signed, "-keyout", f"{top}/{name}.key", "-out", f"{top}/{name}.pem", "-subj", f"/CN={name}")
    openssl(*new, "-keyout", f"{top}/stranger.key", "-out", f"{top}/stranger.pem", "-subj", "/CN=stranger")
    return top


def test_an_rm_id_belongs_to_its_certificate(certificates: Path) -> None:
    def read(name: str) -> bytes:
        return (certificates / name).read_bytes()

    def call(name: str, method: Any, request: Any) -> Any:
        credentials = grpc.ssl_channel_credentials(read("ca.pem"), read(f"{name}.key"), read(f"{name}.pem"))
        with grpc.secure_channel(address, credentials) as channel:
            try:
                channel.unary_unary(method.path)(request.SerializeToString(), timeout=WAIT_S)
            except grpc.RpcError as fault:
                return fault.code()
        return grpc.StatusCode.OK

    files = ("--cert", "service.pem", "--key", "service.key", "--client-ca", "ca.pem")
    words = [word if word.startswith("--") else str(certificates / word) for word in files]
    register = SCHEDULER["RegisterResourceManager"]
    request = messages.RegisterResourceManagerRequest(rmID="rm")
    update = messages.UpdateConfigurationRequest(rmID="rm")
    with serving("--bind", "127.0.0.1:0", *words) as (process, address):
        assert call("one", register, request) is grpc.StatusCode.OK
        assert call("two", register, request) is grpc.StatusCode.PERMISSION_DENIED
        assert call("two", EXTRA["UpdateConfiguration"], update) is grpc.StatusCode.PERMISSION_DENIED
        assert call("one", register, request) is grpc.StatusCode.OK
        bare = si("dump", address)
        assert (bare.exit_code, "or not with these certificates" in bare.stderr) == (1, True)
        assert call("stranger", register, request) is grpc.StatusCode.UNAVAILABLE
        ours = [
            f"--{option}={certificates / file}"
            for option, file in (("cert", "two.pem"), ("key", "two.key"), ("ca", "ca.pem"))
        ]
        assert [rm["rmID"] for rm in json.loads(si("dump", address, *ours).output)["rms"]] == ["rm"]
        assert ended(process, signal.SIGTERM)[0] == 0
