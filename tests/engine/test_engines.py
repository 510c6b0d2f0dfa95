"""Engines as their programs see them: what is asked, what is made of the answers, what starts keepers."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from pathlib import Path

import pytest

from fluxsched.config.values import EngineSettings
from fluxsched.core.hostlist import Hostlist
from fluxsched.engine import engines
from fluxsched.engine.engines import (
    HOSTS_MAX,
    KEEPER_WORDS,
    PROCESSES_MAX,
    Engine,
    ProcessesEngine,
    chosen_engine,
    listening_address,
    printed,
)
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded, Refused
from tests.engine.fakes import Fakes

KEEPER = ("keeper",)
R4 = {
    "version": 1,
    "execution": {
        "R_lite": [{"rank": "0-3", "children": {"core": "0-7"}}],
        "nodelist": ["n[1-4]"],
        "starttime": 1.0,
        "expiration": 1234567.5,
    },
}


@pytest.fixture
def fakes(tmp_path: Path) -> Fakes:
    return Fakes(tmp_path)


def engine_of(text: str, fakes: Fakes, **variables: str) -> Engine:
    found = chosen_engine(EngineSettings().named(text), {**fakes.environment, **variables}, KEEPER)
    assert found is not None
    return found


# ---- Slurm

RUNNING = "2026-11-24T01:02:03 59:30 n[1-3] RUNNING"


def slurm(fakes: Fakes, answer: str = RUNNING, states: str = "", **variables: str) -> Engine:
    fakes.prints("squeue", answer)
    fakes.prints("scontrol", "n1\nn2\nn3")
    fakes.prints("sinfo", states)
    return engine_of("slurm", fakes, SLURM_JOB_ID="77", **variables)


def test_slurm_is_asked_for_hosts_and_end(fakes: Fakes) -> None:
    engine = slurm(fakes)
    found = engine.allocation()
    assert str(found.hosts) == "n[1-3]"
    assert found.expiration_s == datetime(2026, 11, 24, 1, 2, 3).timestamp()
    assert fakes.calls("squeue") == [["-h", "-j", "77", "-o", "%e %L %N %T"]]
    assert fakes.calls("scontrol") == [["show", "hostnames", "n[1-3]"]]
    assert fakes.calls("sinfo") == [["-h", "-N", "-n", "n[1-3]", "-o", "%N %T"]]
    assert engine.identity == "slurm:77"


@pytest.mark.parametrize("answer", ["2027-11-24T01:02:03 UNLIMITED n1 RUNNING", "NONE 1:00 n1 RUNNING"])
def test_a_job_of_slurm_may_have_no_end(fakes: Fakes, answer: str) -> None:
    assert slurm(fakes, answer).allocation().expiration_s == 0.0


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("2026-11-24T01:02:03 0:00 n1 TIMEOUT", "job 77 is TIMEOUT, so it has no hosts"),
        ("", "squeue -h -j 77 .*: expected end, time left, nodes and state"),
    ],
)
def test_a_job_of_slurm_without_hosts_is_refused(fakes: Fakes, answer: str, text: str) -> None:
    with pytest.raises(FluxschedError, match=text):
        slurm(fakes, answer).allocation()


def test_srun_starts_one_keeper_a_host_with_all_of_it(fakes: Fakes) -> None:
    engine = slurm(fakes, SLURM_CPUS_PER_TASK="2", SLURM_NTASKS="9", SLURM_STDINMODE="none", SLURM_NNODES="3")
    (command,) = engine.commands(Hostlist.parse("n[1-3]"))
    assert command.words == (
        "srun", "--overlap", "--no-kill", "-K0", "-W0", "-N3", "-n3", "--ntasks-per-node=1", "--mpi=none",
        "--cpu-bind=none", "--nodelist=n[1-3]", "sh", "-c", 'exec "$@" "$SLURMD_NODENAME"', "sh", *KEEPER,
    )  # fmt: skip
    assert command.hosts == ("n1", "n2", "n3")
    assert {name for name in command.environment if name.startswith("SLURM")} == {"SLURM_JOB_ID", "SLURM_NNODES"}
    (again,) = engine.commands(Hostlist.parse("n2"))
    assert {"-N1", "-n1", "--nodelist=n2"} <= set(again.words)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["down*", "mixed*", "idle~", "down", "allocated^", "powering_down"])
def test_nodes_that_slurm_counts_as_down_are_left_out(fakes: Fakes, state: str) -> None:
    engine = slurm(fakes, states=f"n1 allocated\nn2 {state}\nn3 drained\nn2 allocated\n")
    found = engine.allocation()
    assert (str(found.hosts), str(found.down)) == ("n[1,3]", "n2")
    assert [engine.is_down(host) for host in ("n1", "n2", "n3")] == [False, True, False]


def test_where_nodes_are_hidden_none_counts_as_down(fakes: Fakes, caplog: pytest.LogCaptureFixture) -> None:
    engine = slurm(fakes)
    fakes.fails("sinfo", "sinfo: error: Access denied")
    assert str(engine.allocation().hosts) == "n[1-3]"
    assert "it is not known whether nodes are down: sinfo -h" in caplog.text


def test_without_a_node_that_is_up_there_is_no_engine(fakes: Fakes) -> None:
    with pytest.raises(InvalidValue, match="engine slurm has no hosts that are up"):
        slurm(fakes, states="n1 down\nn2 down\nn3 down\n").allocation()


def test_a_node_that_was_taken_from_the_job_counts_as_down(fakes: Fakes) -> None:
    assert slurm(fakes).is_down("n9") is True


def test_without_an_allocation_slurm_is_refused(fakes: Fakes) -> None:
    with pytest.raises(Refused, match="this is no allocation of Slurm: start within `salloc` or `sbatch`"):
        engine_of("slurm", fakes)


TREE = """SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=s2 Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[0-1]
"""


def test_slurm_says_which_switches_there_are(fakes: Fakes) -> None:
    engine = slurm(fakes)
    fakes.prints("scontrol", TREE)
    found = engine.switches()
    assert [str(switch.hosts) for switch in found.switches.values()] == ["n[1-2]", "n[3-4]", ""]
    assert found.hops("n1", "n3") == 4
    assert fakes.calls("scontrol") == [["show", "topology"]]


@pytest.mark.parametrize(
    "text", ["", "BlockName=b1 BlockIndex=0 Nodes=n[1-4]\n", TREE + TREE, "SwitchName=s0 Level=0 L=1\n"]
)
def test_networks_of_other_kinds_have_no_switches(fakes: Fakes, text: str) -> None:
    engine = slurm(fakes)
    fakes.prints("scontrol", text)
    assert not engine.switches()
    fakes.fails("scontrol", "slurm_load_topo error: Requested operation not supported")
    assert not engine.switches()


# ---- Flux


def flux(fakes: Fakes, down: str = "") -> Engine:
    fakes.program("flux", f"print({down!r} if 'list' in sys.argv else {json.dumps(R4)!r})\n")
    return engine_of("flux", fakes, FLUX_URI="local:///f")


def test_flux_is_asked_for_its_r_and_for_what_is_down(fakes: Fakes) -> None:
    found = flux(fakes, "n[2-3]").allocation()
    assert (str(found.hosts), str(found.down)) == ("n[1,4]", "n[2-3]")
    assert found.expiration_s == 1234567.5
    assert fakes.calls("flux") == [
        ["resource", "R"], ["resource", "list", "-s", "down", "-n", "-o", "{nodelist}"]
    ]  # fmt: skip


def test_flux_exec_starts_keepers_that_report_where_it_does_not_gather(fakes: Fakes) -> None:
    engine = flux(fakes)
    (command,) = engine.commands(Hostlist.parse("n[1-4]"))
    assert command.words == ("flux", "exec", "-r", "0-3", "sh", "-c", 'exec "$@" >&2', "sh", *KEEPER)
    (again,) = engine.commands(Hostlist.parse("n3"))
    assert again.words[:4] == ("flux", "exec", "-r", "2")


def test_flux_says_whether_a_node_is_down(fakes: Fakes) -> None:
    engine = flux(fakes, "n[2-3]")
    assert [engine.is_down(host) for host in ("n1", "n3", "n9")] == [False, True, True]


def test_what_is_no_r_is_refused(fakes: Fakes) -> None:
    fakes.prints("flux", "{}")
    with pytest.raises(FluxschedError, match="flux resource R: "):
        engine_of("flux", fakes, FLUX_URI="local:///f").allocation()


def test_without_an_instance_flux_is_refused(fakes: Fakes) -> None:
    with pytest.raises(Refused, match="this is no Flux instance: start within `flux alloc`"):
        engine_of("flux", fakes)


def test_an_instance_of_ours_is_no_flux(fakes: Fakes) -> None:
    with pytest.raises(Refused, match="local:///f is an instance of fluxsched and no Flux"):
        engine_of("flux", fakes, FLUX_URI="local:///f", FLUXSCHED_URI="ipc:///i")


# ---- ssh and processes


def test_ssh_starts_each_host_by_itself(fakes: Fakes) -> None:
    engine = engine_of("ssh:n[1-2]", fakes)
    assert str(engine.allocation().hosts) == "n[1-2]"
    one, other = engine.commands(engine.allocation().hosts)
    assert one.words == (
        "ssh", "-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=60", "--", "n1",
        "keeper n1",
    )  # fmt: skip
    assert (one.hosts, other.hosts) == (("n1",), ("n2",))
    assert engine.is_down("n1") is None


def test_a_host_may_be_no_option_of_ssh(fakes: Fakes) -> None:
    with pytest.raises(InvalidValue, match="-oProxyCommand=x would be options of ssh"):
        engine_of("ssh:-oProxyCommand=x", fakes)


def test_processes_have_made_up_hosts(fakes: Fakes) -> None:
    engine = engine_of("processes:3", fakes)
    commands = engine.commands(engine.allocation().hosts)
    assert [command.words for command in commands] == [(*KEEPER, f"p{number}") for number in range(3)]
    assert engine.is_down("p0") is False


@pytest.mark.parametrize("text", [f"processes:{PROCESSES_MAX + 1}", f"ssh:n[0-{PROCESSES_MAX}]"])
def test_hosts_with_a_process_each_are_limited(fakes: Fakes, text: str) -> None:
    with pytest.raises(LimitExceeded, match=f"{PROCESSES_MAX + 1} hosts are above the limit of {PROCESSES_MAX}"):
        engine_of(text, fakes)


def test_hosts_are_limited(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "HOSTS_MAX", 2)
    assert HOSTS_MAX > 2
    with pytest.raises(LimitExceeded, match="engine slurm: 3 hosts are above the limit of 2"):
        slurm(fakes).allocation()


def test_a_host_may_not_be_named_twice(fakes: Fakes) -> None:
    with pytest.raises(InvalidValue, match="names a host twice"):
        engine_of("ssh:n1,n2,n1", fakes)


# ---- the choice


@pytest.mark.parametrize(
    ("variables", "identity"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, "slurm:7"),
        ({"SLURM_JOB_ID": "7", "FLUX_URI": "local:///f"}, "flux:local:///f"),
        ({"SLURM_JOB_ID": "7", "FLUX_URI": "local:///f", "FLUXSCHED_URI": "ipc:///i"}, None),
    ],
)
def test_auto_is_the_engine_around_us_that_is_not_ours(
    fakes: Fakes, variables: dict[str, str], identity: str | None
) -> None:
    for name in ("srun", "flux"):
        fakes.prints(name, "")
    found = chosen_engine(EngineSettings("auto"), {**fakes.environment, **variables})
    assert (found and found.identity) == identity


def test_auto_needs_the_programs(tmp_path: Path) -> None:
    variables = {"PATH": str(tmp_path), "SLURM_JOB_ID": "7", "FLUX_URI": "local:///f"}
    assert chosen_engine(EngineSettings("auto"), variables) is None


def test_no_engine_is_none() -> None:
    assert chosen_engine(EngineSettings(), dict(os.environ)) is None


def test_a_keeper_is_our_own_program() -> None:
    assert (sys.executable, "-P", "-m", "fluxsched.engine.keeper_main") == KEEPER_WORDS


# ---- programs


def test_an_error_names_program_status_and_output(fakes: Fakes) -> None:
    fakes.fails("squeue", "slurm_load_jobs error: Unable to contact slurm controller\n", 3)
    with pytest.raises(FluxschedError, match=r"^squeue -h: exit status 3: slurm_load_jobs error: Unable to contact"):
        printed(("squeue", "-h"), fakes.environment)


def test_only_the_end_of_a_long_output_is_shown(fakes: Fakes) -> None:
    fakes.fails("squeue", "x" * 5000 + "\x1b[31mreason")
    with pytest.raises(FluxschedError, match=r"exit status 1: \.\.\.x+\\x1b\[31mreason$") as caught:
        printed(("squeue",), fakes.environment)
    assert len(str(caught.value)) < engines.PRINTED_CHARS_MAX + 60


def test_a_program_that_does_not_answer_is_ended(fakes: Fakes) -> None:
    fakes.program("squeue", "import time; time.sleep(600)")
    with pytest.raises(FluxschedError, match=r"squeue: no answer within 0.2 s"):
        printed(("squeue",), fakes.environment, timeout_s=0.2)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FluxschedError, match="no-such-program: no-such-program cannot be run: No such file"):
        printed(("no-such-program",), {"PATH": str(tmp_path)})


# ---- addresses


def test_processes_reach_us_by_loopback() -> None:
    engine = ProcessesEngine(EngineSettings().named("processes:2"), {}, KEEPER)
    assert listening_address(None, engine, ["p0", "p1"]) == "127.0.0.1"
    assert listening_address("localhost", engine, ["p0"]) == "127.0.0.1"
    with pytest.raises(InvalidValue, match="'no such host' is no address of IPv4"):
        listening_address("no such host", engine, ["p0"])


def test_hosts_that_cannot_be_looked_up_ask_for_an_address(fakes: Fakes) -> None:
    with pytest.raises(Refused, match=r"host no such host has no address here .* `address` of \[engine\]"):
        listening_address(None, engine_of("ssh:n1", fakes), ["no such host"])
