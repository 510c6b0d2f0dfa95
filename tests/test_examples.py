"""Every file of examples/ is run for real, as examples/README.md says, and says what it should.

The commands are read from that page's table, so that what people are told to type is what is tested.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fluxsched.sched.policies.backfill import Easy
from fluxsched.sched.registry import make_plugin
from fluxsched.sim import PluginSite

EXAMPLES = Path(__file__).parents[1] / "examples"
PAGE = (EXAMPLES / "README.md").read_text()
COMMANDS = {
    name: command.replace("\\|", "|")  # as a table has it
    for name, command in re.findall(r"^\| `([a-z_]+\.(?:py|sh|toml))`.*\| `([^`]+)` \|$", PAGE, re.MULTILINE)
}

EXIT_CODES = r"ƒ\w+ success\nƒ\w+ exit code 1\nƒ\w+ exit code 2\n"
CLIENT = EXIT_CODES + r"ƒ\w+ exception cancel: enough slept\ndrained: \[\('1', 'from Python'\)\]\n"

# What each prints, as a pattern of all of it.
PRINTS = {
    "policy_smallest.py": r"[\w.-]+\n",
    "policy_power.py": r"([\w.-]+\n){2}",
    "policy_predicted.py": r"[\w.-]+\n",
    "plugin_night.py": r"[\w.-]+\n",
    "submit_filter.py": r"duration: 1h\n",
    "submit_filter.toml": r"examples/submit_filter\.toml: no faults: 1 target, 1 queue, 1 scheduler\n",
    "plugin_costart.py": r"(ƒ\w+\n){3}",
    "site.toml": (
        r"QUEUE +EN ST GROUP +POLICY +TDEFAULT +TLIMIT +NNODES REQUIRES\n"
        r"batch +✔ +✔ default +easy +1h +2d +1-6\ngpu +✔ +✔ default +firstfit:order=sjf +1h +2d +1-6 gpu\n"
        r"long +✔ +✔ default +easy +1h +1-6 its hosts\n"
        r"debug +✔ +✔ interactive +fifo:placement=best-fit +10m +30m +1-1\n"
    ),
    "fair_site.toml": r"examples/fair_site\.toml: no faults: 1 target, 2 queues, 1 scheduler\n",
    "si_two_rms.toml": r"(?s)GROUP .*\nblue +2 .*\ngreen +2 .*\n",
    "si_two_rms.py": (
        r"(?s)== Two groups .*\n\{'blue': \['fake0/0', 'fake1/1'\], 'green': \['fake2/2', 'fake3/3'\]\}\n"
        r".*\none core\n.*\ntwo nodes\ntwo nodes\n"
        r".*SCHED: the scheduler service was asked\nrule: no other job waits under policy si: .*"
        r"\n\{'blue': \['fake0/0', 'fake1/1', 'fake2/2'\], 'green': \['fake3/3'\]\}\n"
        r".*exception node-failure: fake2 left the group.*ended with status 143\n"
        r"\{'blue': \['fake0/0', 'fake1/1'\], 'green': \['fake2/2', 'fake3/3'\]\}\n"
        r".*sleep RUN fake\d\nsleep RUN fake\d\n.*"
    ),
    "fair_site.py": (
        r"(?s)== Standby jobs .*\nstandby +0\.01 +100 +100 .* 8 +0\n.*"
        r"== Physics is .* exception type=\"preempt\" severity=0 note=\"preempted so that job ƒ\w+ can start.*"
        r"== They were .* S +1 .* PR +1 .*again as ƒ\w+; .*attempt 1 of 100.*"
        r"\nphysics +3 .* 0 +1 +0\n.*standby .* 3 +5 +3\n.*"
        r"== When .*\{'standby': 8, 'standby/[\w.-]+': 8\}\n.*canceled 8 jobs\n"
    ),
    "acquire_client.py": r"grow \{'online': '0-3', 'offline': ''\}\noffline \{'targets': '1'\}\n",
    "worker_pool.py": (
        r"now: nodes with a worker: 1\ngrow: nodes with a worker: 3\nshrink: nodes with a worker: 2\n"
        r"numbers that were lost: 0\n"
    ),
    "operator_job.py": r"compute: found it\n((guess|search): exception cancel: another way led there\n){2}",
    "client_async.py": CLIENT,
    "client_sync.py": CLIENT,
    "drain_by_script.py": r"0,3 +drained +\w+ +fan speed below limit\n",
    "si_client.py": r"node n1\napplication app\n" + r"allocated task on n1\nreleased task\n" * 2,
    "launcher.py": (
        r"acquired rank\[0-3\]/core\[0-7\]\n"
        r"launch web on target 0, 3 left\nlaunch database on target 1, 2 left\n"
        r"target 3 went offline, 1 left\ntarget 2 was taken away and released, 0 left\n"
    ),
}
# What the tour shows, in this order: the mission of the project in one run.
TOUR = (
    'resource.acquire         {"group":"default"',
    '{"type":"grow","resources":',
    "$ fluxsched run hostname",
    "sched.alloc ",
    "task 0 of 1",
    "exit code 3",
    '{"type":"offline","targets":"0"}',
    "draining",
    "SCHED: needs 1 slot of 1 core",
    '{"type":"online","targets":"0"}',
    '{"type":"shrink","targets":"0"}',
    "job-manager.raise",
    'resource.release         {"group":"default","targets":"0"}',
    'sched-firstfit-debug response resource.acquire         {"type":"grow"',
    "exception node-failure: ",
    " left the group",
    "\nhome again\n",
    "The instance has exited with status 0",
)
LINES_MAX = {
    "policy_smallest.py": 25, "policy_power.py": 40, "policy_predicted.py": 50,
    "plugin_night.py": 25, "plugin_costart.py": 26, "acquire_client.py": 45,
    "submit_filter.py": 50,
    "operator_job.py": 30, "worker_pool.py": 100,
    "si_client.py": 80,
}  # fmt: skip
NEEDS = {"si_client.py": "grpc_tools", "si_two_rms.py": "grpc"}


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_the_example_prints_what_it_should(program: Callable[..., tuple[int, str]], name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    status, text = program(*shlex.split(COMMANDS[name]))
    assert status == 0, text
    assert re.fullmatch(PRINTS[name], text), text


@pytest.mark.flux
def test_the_operator_with_the_commands_of_flux(program: Callable[..., tuple[int, str]]) -> None:
    if shutil.which("flux") is None:
        pytest.skip("no flux on PATH: put flux-core 0.88 or later there")
    status, text = program(*shlex.split(COMMANDS["operator_flux.sh"]))
    assert (status, text) == (0, "compute COMPLETED\nguess CANCELED\n")


def test_the_tour_shows_the_whole_way(program: Callable[..., tuple[int, str]]) -> None:
    status, text = program(*shlex.split(COMMANDS["tour.py"]))
    assert status == 0, text
    place = 0
    for words in TOUR:
        found = text.find(words, place)
        assert found >= 0, f"{words!r} does not come after the others in:\n{text}"
        place = found + len(words)


def test_the_page_names_every_example_and_they_are_short() -> None:
    files = {path.name: path.read_text().count("\n") for path in EXAMPLES.glob("*.[pt]*")}
    scripts = {"batch.sh", "operator_flux.sh", "slurm_batch.sh"}
    assert set(COMMANDS) - scripts == set(files) == {*PRINTS, "tour.py"}
    assert {name: files[name] for name, lines in LINES_MAX.items() if files[name] > lines} == {}


def test_the_night_plugin_has_jobs_wait_for_the_night() -> None:
    site = PluginSite(Easy(), [make_plugin(str(EXAMPLES / "plugin_night.py"))], begin_s=86_400.0 * 9 + 3600.0 * 7)
    began_s = site.now_s
    night, day = site.submit(10.0, {"bank": "night"}), site.submit(10.0, {"bank": "day"})
    site.turn()
    assert "plugin 'night': waits for 22:00 UTC" in site.why(night)
    site.run(86_400.0)
    assert site.started == [(day, began_s), (night, began_s + 15 * 3600.0)]


def test_the_costart_plugin_starts_a_set_at_once_or_none_of_it() -> None:
    site = PluginSite(Easy(), [make_plugin(str(EXAMPLES / "plugin_costart.py"))], machine="2x4")
    blocker = site.submit(30.0, cores_per_task=4)
    site.turn()
    jobs = [site.submit(50.0, {"costart": {"set": "a", "size": 3}}, cores_per_task=2) for _ in range(3)]
    site.turn()
    assert set(site.running) == {blocker}
    assert "2 of 3 jobs are there" in site.why(jobs[0])
    site.run(300.0)
    assert {jobid for jobid, start_s in site.started if start_s == site.started[0][1] + 30.0} == set(jobs)
    alone = site.submit(50.0, {"costart": {"set": "b", "size": 2}}, cores_per_task=4)
    site.run(59.0)
    assert alone in site.waiting
    assert "1 of 2 jobs are there" in site.why(alone)
