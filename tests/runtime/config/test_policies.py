"""Which policy orders which queue: the scheduler's words, the queue's configuration, the scheduler's policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.runtime.config.policies import check_policies, composed, located, policy_of
from fluxsched.runtime.config.policy_list import fault_of, policies
from fluxsched.runtime.config.reader import Config, SchedulerSettings, in_full, parse_config
from fluxsched.runtime.instance.launch import StartOptions, schedulers_of

CONFIG = parse_config(
    '[resource.groups]\nlab = ""\n'
    '[queues.debug]\npolicy = "fifo"\n[queues.batch]\n'
    '[queues.test]\ngroup = "lab"\npolicy.scheduler.policy = "firstfit"\n'
    '[[scheduler]]\npolicy = "conservative"\n',
    "site.toml",
)


@pytest.mark.parametrize(
    ("specs", "groups", "want"),
    [
        ("easy", ["default"], "easy;debug=fifo"),
        ("easy", ["lab"], "easy;test=firstfit"),
        ("easy", ["lab", "default"], "easy;debug=fifo;test=firstfit"),
        ("easy;batch=firstfit", ["default"], "easy;batch=firstfit;debug=fifo"),
        ("easy;debug=easy:order=sjf", ["default"], "easy;debug=easy:order=sjf"),
    ],
)
def test_a_scheduler_s_words_win_over_the_queue_s(specs: str, groups: list[str], want: str) -> None:
    assert composed(specs, groups, CONFIG.queues) == want


def test_the_policy_of_a_queue() -> None:
    specs = "easy;debug=fifo:placement=best-fit"
    found = [policy_of(queue, specs) for queue in ("debug", "batch", None)]
    assert found == ["fifo:placement=best-fit", "easy", "easy"]


@pytest.mark.parametrize(
    ("specs", "told"),
    [
        ("easy;debgu=fifo", "queue 'debgu' has a policy in .*, but is not configured: there are debug, batch"),
        ("easy;test=fifo", "queue 'test' .*, but group 'lab' serves it, and this scheduler default"),
        ("easy;debug=fofi", "queue 'debug': no policy 'fofi'"),
        ("easy;debug=fifo:order=sjf", "queue 'debug': policy 'fifo': no option 'order'; it has placement"),
        ("easy;debug=./absent.py", "there is no file ./absent.py"),
        ("easy;fifo", "'fifo' is not QUEUE=POLICY"),
        ("fair:signal=flow;batch=fair:signal=decayed-usage", "contradict each other: signal is flow for one"),
    ],
)
def test_a_wrong_policy_is_refused_before_anything_starts(specs: str, told: str) -> None:
    with pytest.raises(InvalidValue, match=told):
        schedulers_of(StartOptions(schedulers=(specs,)), CONFIG)


def test_without_queues_none_has_a_policy() -> None:
    with pytest.raises(InvalidValue, match=r"queue 'debug' .* is not configured: there are none"):
        schedulers_of(StartOptions(schedulers=("easy;debug=fifo",)), Config())
    assert schedulers_of(StartOptions(), CONFIG) == (SchedulerSettings("conservative"),)


def test_only_files_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    with pytest.raises(InvalidValue, match="there is no file"):
        schedulers_of(StartOptions(schedulers=(str(path),)), Config())
    path.write_text("1 / 0\n")
    assert schedulers_of(StartOptions(schedulers=(f"{path}:n=1",)), Config()) == (SchedulerSettings(f"{path}:n=1"),)
    assert check_policies(f"fifo;debug={path}") == ("fifo", {"debug": str(path)})  # not run, not even looked for


def test_a_plugin_within_a_policy_of_ours_is_not_run_either(tmp_path: Path) -> None:
    """The instance checks specifications: a plugin that is imported there may end it, or make it hang."""
    path = tmp_path / "mine.py"
    spec = f"fair:cap=2,backfill={path},depth=3"
    with pytest.raises(InvalidValue, match=f"there is no file {path}"):
        schedulers_of(StartOptions(schedulers=(spec,)), Config())
    path.write_text("import sys\nsys.exit(3)\n")
    assert check_policies(f"fifo;debug={spec}") == ("fifo", {"debug": spec})
    assert schedulers_of(StartOptions(schedulers=(spec,)), Config()) == (SchedulerSettings(spec),)
    told = fault_of(spec)
    assert told is not None
    assert "3" in told
    with pytest.raises(InvalidValue, match="cap='x'"):
        check_policies(f"fair:cap=x,backfill={path}")
    with pytest.raises(InvalidValue, match="no policy 'nope'"):
        check_policies("fair:backfill=nope")
    with pytest.raises(InvalidValue, match="runs another policy itself"):
        check_policies("fair:backfill=fair")


def test_the_file_of_a_policy_within_another_counts_from_the_same_directory(tmp_path: Path) -> None:
    specs = "fair:cap=2,backfill=./mine.py,depth=3;a=fair:backfill=mine.py;b=easy:order=sjf;c=mine.py:x=1;d=fair"
    mine = tmp_path / "mine.py"
    assert located(specs, tmp_path) == (
        f"fair:cap=2,backfill={mine},depth=3;a=fair:backfill={mine};b=easy:order=sjf;c={mine}:x=1;d=fair"
    )
    assert located("fair:signal=flow,backfill=easy", tmp_path) == "fair:signal=flow,backfill=easy"


def test_the_list_has_ours_with_options_and_words() -> None:
    listed = {one.name: one for one in policies()}
    assert {"conservative", "easy", "fifo", "firstfit", "hybrid"} <= listed.keys()
    assert listed["hybrid"].options == "depth=8 order=fifo placement=worst-fit"
    assert all(one.says.endswith(".") for one in listed.values())


def test_what_a_queue_says_in_short_is_told_in_full_since_flux_queue_list_looks_into_the_table() -> None:
    assert in_full(CONFIG.raw)["queues"] == {
        "debug": {"policy": {"scheduler": {"policy": "fifo"}}},
        "batch": {},
        "test": {"group": "lab", "policy": {"scheduler": {"policy": "firstfit"}}},
    }
    assert in_full({}) == {}
