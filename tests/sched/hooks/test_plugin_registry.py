"""Plugins by name: files, options, several texts in one; what is wrong is said when they are loaded."""

import pytest

from fluxsched.config.policies import (
    absent_files,
    check_policies,
    composed,
    default_name,
    located,
    policy_of,
    with_plugins,
)
from fluxsched.errors import InvalidValue
from fluxsched.flux.handle import parse_options
from fluxsched.jobs.queues import QueueConfig
from fluxsched.sched.hooks import POINTS
from fluxsched.sched.loading import join_plugins, split_plugins
from fluxsched.sched.registry import ARGUMENTS, check_plugin_class, has_plugin, load, make_plugin
from fluxsched.sim import Ask, Trace, TraceJob, run

NIGHT = """
from fluxsched.sched.hooks import PASS, Later, Option
from tests.sched.site import policy_of

class Night:
    name = "night"
    OPTIONS = {"from-hour": Option(22, parse=int, help="an hour")}

    def __init__(self, from_hour):
        self.from_hour = from_hour

    def look(self, job, rank):
        return PASS
"""


@pytest.fixture
def night(tmp_path):
    file = tmp_path / "night.py"
    file.write_text(NIGHT)
    return file


def test_policies_and_plugins_of_queues_in_one_text(night):
    found = load(f"easy:order=sjf|{night}:from-hour=20;debug=fifo;batch=|{night}")
    assert (found.policy.name, {queue: policy.name for queue, policy in found.own.items()}) == (
        "easy",
        {"debug": "fifo"},
    )
    assert list(found.plugins) == ["", "batch"]
    assert [plugin.from_hour for each in found.plugins.values() for plugin in each] == [20, 22]
    assert load("fifo").plugins == {}
    assert split_plugins("a:b=c|d|e") == ("a:b=c", ["d", "e"])
    assert join_plugins("a", ["d", "e"]) == "a|d|e"
    assert has_plugin(f"easy|{night}")
    assert not has_plugin("easy")


def test_what_is_wrong_with_a_plugin_is_said_when_it_is_loaded(night, tmp_path):
    none = tmp_path / "none.py"
    none.write_text("class Policy:\n    name = 'x'\n")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("class Wrong:\n    name = 'wrong'\n    def look(self, job):\n        pass\n")
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name\n")
    for spec, fault in (
        ("nosuch", "no plugin 'nosuch'"),
        (f"{night}:hour=2", "plugin 'night': no option 'hour'; it has from-hour"),
        (f"{night}:from-hour=late", "plugin 'night': from-hour='late'"),
        (f"{none}", "at least one hook of pre_enqueue, .*; it has none, since Policy lacks one of these"),
        (f"{wrong}", r"plugin 'wrong': look\(self, job\) should take self and 2 more"),
        (f"{broken}", "plugin file .*broken.py cannot be loaded: No module named"),
        (f"{tmp_path}/absent.py", "cannot be loaded"),
    ):
        with pytest.raises(InvalidValue, match=fault):
            make_plugin(spec)
    with pytest.raises(InvalidValue, match="queue 'debug': no plugin 'nosuch'"):
        load("easy;debug=|nosuch")
    with pytest.raises(InvalidValue, match="no plugin 'nosuch'"):
        check_policies("easy|nosuch")
    with pytest.raises(InvalidValue, match="names no policy"):
        check_policies("|nosuch.py")
    with pytest.raises(InvalidValue, match="should be a class"):
        check_plugin_class(make_plugin(str(night)))
    assert set(ARGUMENTS) == set(POINTS)


def test_texts_with_plugins_in_configurations(night, tmp_path):
    queues = {
        "debug": QueueConfig("debug", policy="|./night.py"),
        "batch": QueueConfig("batch", policy="fifo|./night.py"),
    }
    specs = composed("easy", ("default",), queues)
    assert specs == "easy;debug=|./night.py;batch=fifo|./night.py"
    assert located(specs, tmp_path) == f"easy;debug=|{night};batch=fifo|{night}"
    assert list(absent_files(specs)) == ["./night.py", "./night.py"]
    assert list(absent_files(located(specs, tmp_path))) == []
    located_quota = located("easy|quota:a=n[1,2],config=q.yaml", tmp_path)
    assert located_quota == f"easy|quota:a=n[1,2],config={tmp_path}/q.yaml"
    assert policy_of("debug", specs) == "easy|./night.py"
    assert policy_of("batch", specs) == "fifo|./night.py"
    assert with_plugins("easy:order=sjf;debug=fifo", ["a.py", "b"]) == "easy:order=sjf|a.py|b;debug=fifo"
    assert default_name("easy|./night.py", ()) == "sched-easy"


def test_simulations_and_flux_take_the_same_texts(night):
    night.write_text(NIGHT.replace("return PASS", "return PASS if rank != 0 else Later('not there')"))
    jobs = [TraceJob(1, 0.0, 60.0, 120.0, Ask(1)), TraceJob(2, 0.0, 5.0, 10.0, Ask(1))]
    found = run(Trace.of(jobs), f"easy|{night}", procs=2, placements=True).jobs
    assert (found.start, found.ranks) == ([0.0, 60.0], ["1", "1"])
    options = parse_options([f"plugins={night}|{night}:from-hour=3", "policy=fifo"], "sched-fluxsched")
    assert [plugin.name for plugin in options.plugins] == ["night", "night"]
