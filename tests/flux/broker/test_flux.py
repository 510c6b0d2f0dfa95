"""Inside a real Flux, where there is one on PATH: as its default scheduler, reloaded while jobs run, in a burst."""

from __future__ import annotations

import getpass
import json
import shutil
import subprocess

import pytest

from fluxsched.errors import Refused
from fluxsched.flux.install import Installed, install, module_path

pytestmark = pytest.mark.flux

FAKE = "--conf=fake-resources.nnodes={nodes}", "--conf=fake-resources.cores-per-node={cores}"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    """A drop-in that makes us the default scheduler."""
    if shutil.which("flux") is None:
        pytest.skip("no flux on PATH: put flux-core 0.88 or later there")
    top = tmp_path_factory.mktemp("modprobe")
    try:
        return install([], top / "modprobe.d")
    except Refused as fault:
        pytest.skip(f"the flux on PATH is of no use here: {fault}")


@pytest.fixture
def flux(installed, monkeypatch, tmp_path):
    """flux(script, nodes=4, cores=2): run a script as an instance's initial program; gives what it prints.

    In the script MODULE is the module's file with the options that it needs here, and RELOAD reloads it.
    """
    monkeypatch.setenv("FLUX_MODPROBE_PATH_APPEND", str(installed.path.parents[1]))
    module = f"{module_path()} python-path={':'.join(installed.python_path)}"

    def run(script: str, nodes: int = 4, cores: int = 2, options: tuple[str, ...] = ()) -> str:
        fake = [word.format(nodes=nodes, cores=cores) for word in FAKE]
        script = script.replace("RELOAD", "flux module reload MODULE").replace("MODULE", module)
        command = ["flux", "start", "-s1", *fake, *options, "bash", "-euc", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


SUBMIT = "flux submit --setattr=exec.test.run_duration={}s --quiet"


def test_we_are_the_default_scheduler_and_say_so(flux):
    said = flux("flux module list | grep sched-; flux dmesg | grep ready:; flux resource list -no {state}:{ncores}")
    assert "sched-fluxsched" in said
    assert "ready: queue-depth=unlimited log-level=info policy=easy Rv1 rank[0-3]/core[0-1]" in said
    assert "free:8" in said


def test_jobs_run_and_impossible_ones_are_denied(flux):
    said = flux(
        "flux run -n2 --setattr=exec.test.run_duration=10ms true;"
        "flux job wait-event $(flux submit -n1 -c3 true) exception;"
        "flux jobs -ano {status}:{ntasks}"
    )
    assert "COMPLETED:2" in said
    assert "unsatisfiable request" in said


def test_a_wrong_option_is_named_in_the_log(flux):
    said = flux("! flux module load --name=again MODULE policy=nope; flux dmesg | grep again.err")
    assert "no policy 'nope': there are conservative, easy" in said


def test_a_reload_finds_the_running_jobs(flux):
    said = flux(
        f"{SUBMIT.format(30)} -n5 -t 5m true; {SUBMIT.format(0.01)} -n4 -t 1m true;"
        "flux job wait-event $(flux jobs -no {id} -f running) start >/dev/null;"
        "RELOAD policy=firstfit;"
        "flux jobs -no {status}:{ntasks}; flux resource list -s allocated -no {ncores};"
        "flux cancel $(flux jobs -no {id} -f running); flux queue drain; flux jobs -ano {result}:{ntasks}"
    )
    assert said.split() == ["SCHED:4", "RUN:5", "5", "COMPLETED:4", "CANCELED:5"]


def test_burst(flux):
    """60 jobs at once behind a blocked head: each is granted once, and backfill goes on."""
    said = flux(
        f"{SUBMIT.format(20)} -N3 --exclusive -t 1m true; {SUBMIT.format(0.1)} -N64 --exclusive -t 1m true;"
        f"{SUBMIT.format(0.01)} --cc=1-60 -N1 --exclusive -t 10s true;"
        "for i in $(seq 100); do sleep 0.1; test $(flux jobs -ano {id} -f completed | wc -l) -ge 60 && break; done;"
        "flux jobs -ano {status} | sort | uniq -c;"
        "flux module stats sched-fluxsched | jq .granted; flux cancel --all; flux queue drain",
        nodes=64, cores=1,
    )  # fmt: skip
    assert said.split() == ["60", "COMPLETED", "1", "RUN", "1", "SCHED", "61"]


def test_what_is_to_be_told_later_delays_no_start(flux):
    """An estimate that moved is told in ten seconds; whoever can start until then starts."""
    said = flux(
        "submit() { flux submit --setattr=exec.test.run_duration=30s -n1 -t $1 true; };"
        "first=$(submit 5m); submit 10m >/dev/null; last=$(submit 1m);"
        "flux job wait-event $first start >/dev/null; sleep 0.5; flux update $first duration=6m; sleep 0.5;"
        "flux cancel $first; flux job wait-event -t 5 -f json $last start; flux cancel --all; flux queue drain",
        nodes=2, cores=1,
    )  # fmt: skip
    assert '"name":"start"' in said


def test_a_constraint_that_nothing_matches_is_denied_and_the_instance_goes_on(flux):
    """not-nothing: `{"not": []}` is legal, and takes Flux's own schedulers down."""
    said = flux(
        "for not in '[]' '[{\"properties\": [\"fast\"]}]'; do"
        "  flux submit -n1 --dry-run --setattr=exec.test.run_duration=10ms true"
        '  | jq --argjson not "$not" \'.attributes.system.constraints = {"not": $not}\' | flux job submit >/dev/null;'
        "done; flux queue drain; flux jobs -ano {result}:{exception.note}"
    )
    first, second = sorted(said.splitlines())
    assert first == "COMPLETED:"
    assert second.startswith("FAILED:unsatisfiable request: ")


def test_jobs_that_flux_accepts_are_not_denied_for_what_no_scheduler_needs(flux):
    said = flux(
        f"{SUBMIT.format(0.01)} --cc=1-3 --job-name=a --dependency=singleton true;"
        f"{SUBMIT.format(0.01)} --setattr=bank=7 --setattr=job.name=7 --setattr=job.set=7 --setattr=files=x true;"
        "flux queue drain; flux jobs -ano {result}:{exception.note} | sort | uniq -c"
    )
    assert said.split() == ["4", "COMPLETED:"]


def test_our_pool_under_fluxs_own_scheduler(flux, installed, monkeypatch):
    home = module_path().parents[3]
    monkeypatch.setenv("PYTHONPATH", ":".join([str(home), *installed.python_path]))
    said = flux(
        "flux module remove sched-fluxsched;"
        "flux module load sched-backfill pool-class=fluxsched.flux.broker.pool;"
        f"{SUBMIT.format(0.01)} --cc=1-20 -n1 true; {SUBMIT.format(0.01)} -N4 --exclusive true; flux queue drain;"
        "flux jobs -ano {result} | sort | uniq -c; flux resource list -s free -no {ncores}"
    )
    assert said.split() == ["21", "COMPLETED", "8"]


def test_a_bad_policy_ends_neither_flux_nor_the_module(flux, tmp_path):
    file = tmp_path / "bad.py"
    file.write_text(
        "class Bad:\n    name = 'bad'\n    OPTIONS = {}\n"
        "    def schedule(self, view, now_s):\n"
        "        raise RecursionError('of a kind that ends schedulers')\n"
        "        yield\n"
    )
    said = flux(
        f"RELOAD policy={file}; {SUBMIT.format(0.01)} true; sleep 1;"
        "flux module list | grep -c sched-fluxsched; flux dmesg | grep -c 'that ends schedulers';"
        "RELOAD; flux queue drain; flux jobs -ano {result}"
    )
    assert said.split() == ["1", "1", "COMPLETED"]


FAIR_FILE = '[fair]\nhalf-life = "10m"\n[fair.banks]\nphysics = 3\nchemistry = 1\n'

UNTIL = 'until_so() { for i in $(seq 100); do eval "$1" && return; sleep 0.1; done; return 1; }; '
"""A function of the script: waits until a command succeeds."""

SUBMIT_IN = "flux submit --setattr=exec.test.run_duration={}s --setattr=bank={}"


@pytest.fixture
def fair(flux, tmp_path):
    """fair(script): the same, where accounts are kept as FAIR_FILE says."""
    (tmp_path / "fluxsched.toml").write_text(FAIR_FILE)
    return lambda script, **size: flux(UNTIL + script, **size, options=(f"--config-path={tmp_path}",))


def test_history_survives_a_reload_and_usage_is_that_of_the_running_jobs(fair, tmp_path):
    fair(
        "RELOAD policy=fair;"
        f"id=$({SUBMIT_IN.format(300, 'physics')} -N1 --exclusive true);"
        "flux job wait-event -t 20 $id start >/dev/null;"
        f"flux job wait-event -t 20 $({SUBMIT_IN.format(0.1, 'chemistry')} -n1 true) clean >/dev/null; sleep 0.5;"
        "RELOAD policy=fair; flux kvs get fluxsched.accounts >first;"
        'until_so \'flux module stats sched-fluxsched | grep -q "\\"running\\": 1"\'; sleep 0.5;'
        "RELOAD policy=fair; flux kvs get fluxsched.accounts >second;"
        "flux cancel $id; flux job wait-event $id clean >/dev/null; RELOAD policy=fair;"
        "flux kvs get fluxsched.accounts >third"
    )
    first, second, third = (json.loads((tmp_path / name).read_text()) for name in ("first", "second", "third"))
    assert (first["version"], first["signal"], first["half-life"]) == (1, "decayed-usage", 600.0)
    ours = getpass.getuser()
    before, after, later = ({tuple(path): both for path, *both in one["accounts"]} for one in (first, second, third))
    assert {("physics", ours), ("chemistry", ours)} < before.keys() == after.keys()
    assert 0 < before["physics", ours][0] < after["physics", ours][0] < 2 * 0.2, "it goes on rising to the 2 cores held"
    assert after["chemistry", ours][0] < before["chemistry", ours][0], "it goes on falling"
    assert before["physics", ours][1] == after["physics", ours][1] == 2.0, "what is held, and may not be preempted"
    assert 1.0 < later["physics", ours][1] < 2.0, "the job has ended"


@pytest.mark.parametrize("damage", ["{", '{"version": 9}', '{"version": 1, "saved": 99999999999.0}'])
def test_history_that_is_of_no_use_is_set_aside_and_the_module_serves(fair, damage):
    said = fair(
        f"flux kvs put --raw 'fluxsched.accounts={damage}'; RELOAD policy=fair;"
        "until_so 'flux kvs get fluxsched.accounts-set-aside >aside 2>/dev/null'; cat aside;"
        "until_so 'flux dmesg | grep -o \"the saved history of accounts is .*\"';"
        f"{SUBMIT_IN.format(0.01, 'physics')} -n1 --quiet true; flux queue drain; flux jobs -ano {{result}}"
    )
    aside, text, result = said.splitlines()
    assert aside == damage
    assert text.endswith("; it is set aside, and history begins anew")
    assert result == "COMPLETED"


def test_a_bad_table_is_named_in_the_log(fair, tmp_path):
    (tmp_path / "fluxsched.toml").write_text('[fair]\nsignal = "loud"\n')
    said = fair("! flux module load --name=again MODULE policy=fair; flux dmesg | grep again.err")
    assert "signal" in said


def test_a_preemptible_job_ends_when_an_account_under_its_share_needs_its_node(fair):
    """chemistry holds all four nodes, of which one is its share: physics gets one of those that may be preempted.

    Which those are, and whose, is known after a reload by their jobspecs.
    """
    said = fair(
        "RELOAD policy=fair;"
        f"{SUBMIT_IN.format(300, 'chemistry')} -N1 --exclusive --quiet true;"
        f"ids=$({SUBMIT_IN.format(300, 'chemistry')} --cc=1-3 -N1 --exclusive --setattr=preemptible-after=0 true);"
        "for id in $ids; do flux job wait-event -t 20 $id start >/dev/null; done; RELOAD policy=fair;"
        f"id=$({SUBMIT_IN.format(0.01, 'physics')} -N1 --exclusive true);"
        "flux job wait-event -t 20 $id clean >/dev/null;"
        "for one in $ids; do flux job eventlog --format=json $one | jq -c 'select(.name==\"exception\").context'; done;"
        "flux jobs -ano {status}:{id.f58plain} | sort | uniq -c; echo $id; flux cancel --all; flux queue drain"
    )
    context, *listed, beneficiary = said.splitlines()
    exception = json.loads(context)
    assert (exception["type"], exception["severity"]) == ("preempt", 0)
    assert exception["note"].startswith(f"preempted so that job {beneficiary} can start: ")
    assert exception["note"].endswith("; Flux does not submit it again")
    states = [line.split()[1].split(":")[0] for line in listed]
    assert sorted(states) == ["COMPLETED", "FAILED", "RUN", "RUN", "RUN"]


OUTAGES = """
begin=$(date +%s)
printf '[[outages]]\\nname = "upd"\\nreason = "kernel"\\ntargets = "0-1"\\nfrom = %s\\n' $begin >fluxsched.toml
printf 'for = "4s"\\nevery = "12s"\\n' >>fluxsched.toml
flux config reload; RELOAD policy=firstfit;
"""
"""Of the four nodes two are in an outage of four seconds, every twelve seconds."""


def test_an_outage_drains_its_targets_in_flux_and_no_start_crosses_it(fair, tmp_path):
    """The long jobs cross the next outage, one of them on any nodes of its size; the short ones fit in between."""
    said = fair(
        OUTAGES + f"{SUBMIT.format(60)} -N2 --exclusive -t 1h true;"
        f"long=$({SUBMIT.format(60).replace(' --quiet', '')} -N2 --exclusive -t 1h true);"
        "until_so 'flux resource drain -no {ranks}:{reason} | grep \"^0-1:outage upd: kernel$\"';"
        f"short=$({SUBMIT.format(0.01).replace(' --quiet', '')} --cc=1-3 -N2 --exclusive -t 2s true);"
        "for id in $short; do flux job wait-event -t 60 -f json $id start; done;"
        "until_so 'test -z \"$(flux resource drain -no {reason})\"'; echo undrained; echo $begin;"
        "flux jobs -no {nodelist} -f running; flux jobs -no {annotations.sched.reason_pending} $long;"
        "flux cancel --all; flux queue drain"
    )
    drain, *starts, undrained, begin, hosts, why = said.splitlines()
    assert drain.startswith("0-1:")
    assert undrained == "undrained"
    assert len(starts) == 3
    for start in starts:
        since_s = (json.loads(start)["timestamp"] - float(begin)) % 12.0
        assert 4.0 <= since_s < 10.5, "it starts when the outage is over, and ends before the next one"
    assert hosts.endswith("[2-3]")
    assert why.startswith("outage upd keeps")
    assert why.endswith("the limit of 1h crosses it") or "it fits with --time-limit" in why
