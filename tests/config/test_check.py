"""What a reload may change, what `config check` tries, and the policies that it loads."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from fluxsched.config.policies import (
    check_policies,
    composed,
    fault_of,
    located,
    may_keep_accounts,
    policies,
    policy_of,
)
from fluxsched.config.reader import (
    LIVE,
    Config,
    SchedulerSettings,
    changes,
    in_force,
    in_full,
    load_config,
    parse_config,
    queue_configs,
    read_site,
)
from fluxsched.config.values import NO_LIMIT
from fluxsched.core.text import toml_text
from fluxsched.errors import InvalidValue
from fluxsched.instance.launch import StartOptions, schedulers_of, settings_of

# A configuration's faults come all at once: those of its text, of the policies' files, and of the targets.


FAULTY = """\
[resource]
exclude = "node7"
heartbeat = "0s"

[[resource.config]]
hosts = "node[0-3]"
cores = "0-1"

[resource.groups]
a = "node[0-1]"
b = "node1"

[queues.x]
group = "a"
hosts = "node9"
limit = 3

[queues.y]
policy = "./absent.py"

[[scheduler]]
policy = "also-absent.py:depth=3"

[[scheduler]]
policy = "fifo"
name = "resource"
groups = ["b"]

[policy.limits.job-size]
min.nnodes = 4
max.nnodes = 2
"""


def lines_of(path):
    with pytest.raises(InvalidValue) as caught:
        settings_of(StartOptions(config=path))
    return [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()]


def test_faults_of_text_files_and_targets_come_at_once(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(FAULTY)
    assert lines_of(path) == [
        "2: [resource] exclude: unknown hosts node7: give hosts of this instance, or ranks",
        "3: [resource] heartbeat: 0 s is not within 0.02 s and infinity",
        "11: [resource.groups] b: rank 1 (node1) in group 'a' too (" + f"{path}:10): a target belongs to one group",
        "15: [queues.x] hosts: unknown hosts node9: give hosts of this instance, or ranks",
        "16: [queues.x] unknown key 'limit'; known keys: group, groups, hosts, plugins, policy, requires",
        f"19: [queues.y] policy: there is no file {tmp_path / 'absent.py'}",
        f"22: [[scheduler]] policy: there is no file {tmp_path / 'also-absent.py'}",
        "26: [[scheduler]] name: 'resource' is a part of the instance: give another name",
        "30: [policy.limits.job-size.min] nnodes: 4 is above the most, 2: no job could be submitted",
    ]


def test_targets_are_not_checked_where_they_are_unknown(tmp_path):
    """Else each group would be at fault for hosts that are only spelled wrongly elsewhere."""
    path = tmp_path / "site.toml"
    path.write_text(FAULTY.replace('"node[0-3]"', '"node[0-"'))
    assert [line.partition(":")[0] for line in lines_of(path)] == ["3", "6", "16", "19", "22", "26", "30"]
    path.write_text(FAULTY.replace('cores = "0-1"', 'properties = ["x"]'))
    found = lines_of(path)
    assert [line.partition(":")[0] for line in found] == ["3", "5", "16", "19", "22", "26", "30"]
    assert "no entry gives hosts node[0-3] any cores" in found[1]


def test_a_default_duration_above_the_limit_without_queues(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text('[policy]\nlimits.duration = "1h"\njobspec.defaults.system.duration = "2h"\n')
    assert lines_of(path) == ["1: [policy] its default duration of 7200 s is above its limit of 3600 s"]


def test_policies_of_a_configuration_count_from_its_directory(tmp_path, monkeypatch):
    """Whoever starts the instance stands somewhere else."""
    site = tmp_path / "etc"
    site.mkdir()
    (site / "mine.py").touch()
    path = site / "site.toml"
    path.write_text(
        '[queues.a]\npolicy = "./mine.py:x=1"\n[queues.b]\n[[scheduler]]\npolicy = "mine.py;b=../etc/mine.py:y=2"\n'
    )
    monkeypatch.chdir(tmp_path)
    config, faults = read_site(Path("etc/site.toml"))
    mine = str(site / "mine.py")
    assert (config.schedulers[0].policy, config.queues["a"].policy) == (f"{mine};b={mine}:y=2", f"{mine}:x=1")
    assert faults == []
    assert load_config(path) == config or config.name != str(path)


@pytest.mark.slow
def test_plugins_of_queues_are_tried_as_they_will_be_used(tmp_path):
    """A queue may have plugins and no policy of its own."""
    (tmp_path / "night.py").write_text("class Night:\n    name = 'night'\n    def look(self, job, rank): ...\n")
    (tmp_path / "bad.py").write_text("import no_such_module\n")
    path = tmp_path / "site.toml"
    path.write_text(
        '[queues.a]\nplugins = ["./night.py"]\n[queues.b]\nplugins = ["./night.py", "./bad.py", "quota"]\n'
        '[queues.c]\nplugins = ["absent.py"]\n[[scheduler]]\npolicy = "easy"\nplugins = ["night.py:hour=2"]\n'
    )
    _, faults = read_site(path, trying=True)
    bad = tmp_path / "bad.py"
    assert [(fault.line, fault.text) for fault in faults] == [
        (9, "[[scheduler]] plugins: plugin 'night': no option 'hour'; it has none"),
        (4, f"[queues.b] plugins: plugin file {bad} cannot be loaded: No module named 'no_such_module'"),
        (4, "[queues.b] plugins: plugin 'quota' needs a file of queues: quota:config=q.yaml"),
        (6, f"[queues.c] plugins: there is no file {tmp_path / 'absent.py'}"),
    ]


def test_a_configuration_may_be_json_by_its_name():
    text = '{"queues": {"debug": {}}, "resource": {"exclude": "0"}}'
    assert set(parse_config(text, "conf.json").queues) == {"debug"}
    with pytest.raises(InvalidValue, match=r"conf\.json:1: \[resource\] unknown key 'excluded'"):
        parse_config('{"resource": {"excluded": "0"}}', "conf.json")
    with pytest.raises(InvalidValue, match=r"conf\.json is not JSON"):
        parse_config("{", "conf.json")


# What is different between two configurations: every key, once, and whether it needs a restart.


OLD = """
resource.heartbeat = "2s"
resource.exclude = "0"
policy.limits.duration = "2h"
[queues.a]
[queues.b.policy]
limits.duration = "1h"
limits.job-size.max.nnodes = 4
[[scheduler]]
policy = "easy"
[exec]
kill-timeout = "5s"
"""


@pytest.mark.parametrize(
    ("words", "by", "changed", "restart"),
    [
        ('"2h"', '"1h"', [("policy.limits.duration", "2h", "1h")], []),
        ('"2s"', '"1s"', [], [("resource.heartbeat", "2s", "1s")]),
        ("[queues.a]", 'policy.unsatisfiable = "deny"\n[queues.a]', [], [("policy.unsatisfiable", None, "deny")]),
        ('"easy"', '"fifo"', [], [("scheduler", [{"policy": "easy"}], [{"policy": "fifo"}])]),
        ("[queues.a]", '[queues.a]\ngroup = "x"', [("queues.a.group", None, "x")], []),
        ("[queues.a]", '["queues"."c d"]', [('queues."c d"', None, {}), ("queues.a", {}, None)], []),
        ("limits.job-size.max.nnodes = 4", "", [("queues.b.policy.limits.job-size", {"max": {"nnodes": 4}}, None)], []),
        ('policy.limits.duration = "2h"', "", [("policy.limits", {"duration": "2h"}, None)], []),
        ('[exec]\nkill-timeout = "5s"', "[exec]", [], [("exec.kill-timeout", "5s", None)]),
        ('"2s"', '"2s" # as ever', [], []),
        ('policy = "easy"', 'policy = "easy"\n[future]\nkey = 1', [], [("future.key", None, 1)]),
    ],
)
def test_every_key_that_differs_is_named_once(words, by, changed, restart):
    old, new = tomllib.loads(OLD), tomllib.loads(OLD.replace(words, by))
    found = changes(old, new)
    assert [one[:3] for one in found if one.is_live] == changed
    assert [one[:3] for one in found if not one.is_live] == restart
    merged = in_force(old, new)
    assert changes(merged, new) == [one for one in found if not one.is_live]  # these are told until the restart
    assert all(not one.is_live for one in changes(merged, new))


@pytest.mark.parametrize(
    "raw",
    [
        tomllib.loads(OLD),
        {},
        {"a": {"b c": {}, "d": [1, 2.5, True, 'x\n"\x7f\x01']}, "t": [{"p": "q", "in": {"x": {}, "y": 1}}], "e": []},
        {"n": float("inf"), "x": {"y": {"z": {}}}},
    ],
)
def test_what_is_shown_is_read_back_as_the_same(raw):
    assert tomllib.loads(toml_text(raw)) == raw


# Which policy orders which queue: the scheduler's words, the queue's configuration, the scheduler's policy.


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
def test_a_scheduler_s_words_win_over_the_queue_s(specs, groups, want):
    assert composed(specs, groups, CONFIG.queues) == want


def test_the_policy_of_a_queue():
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
def test_a_wrong_policy_is_refused_before_anything_starts(specs, told):
    with pytest.raises(InvalidValue, match=told):
        schedulers_of(StartOptions(schedulers=(specs,)), CONFIG)


def test_without_queues_none_has_a_policy():
    with pytest.raises(InvalidValue, match=r"queue 'debug' .* is not configured: there are none"):
        schedulers_of(StartOptions(schedulers=("easy;debug=fifo",)), Config())
    assert schedulers_of(StartOptions(), CONFIG) == (SchedulerSettings("conservative"),)


def test_only_files_that_are_there(tmp_path):
    path = tmp_path / "mine.py"
    with pytest.raises(InvalidValue, match="there is no file"):
        schedulers_of(StartOptions(schedulers=(str(path),)), Config())
    path.write_text("1 / 0\n")
    assert schedulers_of(StartOptions(schedulers=(f"{path}:n=1",)), Config()) == (SchedulerSettings(f"{path}:n=1"),)
    assert check_policies(f"fifo;debug={path}") == ("fifo", {"debug": str(path)})  # not run, not even looked for


def test_a_plugin_within_a_policy_of_ours_is_not_run_either(tmp_path):
    """The instance checks specifications: a plugin that is imported there may end it, or make it hang."""
    path = tmp_path / "mine.py"
    spec = f"fair:cap=2,backfill={path},depth=3"
    with pytest.raises(InvalidValue, match=f"there is no file {path}"):
        schedulers_of(StartOptions(schedulers=(spec,)), Config())
    path.write_text("import sys\nsys.exit(3)\n")
    assert check_policies(f"fifo;debug={spec}") == ("fifo", {"debug": spec})
    assert schedulers_of(StartOptions(schedulers=(spec,)), Config()) == (SchedulerSettings(spec),)
    told = fault_of(spec, import_s=60.0)
    assert told is not None
    assert "3" in told
    with pytest.raises(InvalidValue, match="cap='x'"):
        check_policies(f"fair:cap=x,backfill={path}")
    with pytest.raises(InvalidValue, match="no policy 'nope'"):
        check_policies("fair:backfill=nope")
    with pytest.raises(InvalidValue, match="runs another policy itself"):
        check_policies("fair:backfill=fair")


def test_the_file_of_a_policy_within_another_counts_from_the_same_directory(tmp_path):
    specs = "fair:cap=2,backfill=./mine.py,depth=3;a=fair:backfill=mine.py;b=easy:order=sjf;c=mine.py:x=1;d=fair"
    mine = tmp_path / "mine.py"
    assert located(specs, tmp_path) == (
        f"fair:cap=2,backfill={mine},depth=3;a=fair:backfill={mine};b=easy:order=sjf;c={mine}:x=1;d=fair"
    )
    assert located("fair:signal=flow,backfill=easy", tmp_path) == "fair:signal=flow,backfill=easy"


def test_the_list_has_ours_with_options_and_words():
    listed = {one.name: one for one in policies()}
    assert {"conservative", "easy", "fifo", "firstfit", "hybrid"} <= listed.keys()
    assert listed["hybrid"].options == "depth=8 order=fifo placement=worst-fit"
    assert all(one.says.endswith(".") for one in listed.values())


def test_what_a_queue_says_in_short_is_told_in_full_since_flux_queue_list_looks_into_the_table():
    assert in_full(CONFIG.raw)["queues"] == {
        "debug": {"policy": {"scheduler": {"policy": "fifo"}}},
        "batch": {},
        "test": {"group": "lab", "policy": {"scheduler": {"policy": "firstfit"}}},
    }
    assert in_full({}) == {}


# rfc/config.md tells of every key that is read, with examples that are taken; examples/site.toml shows them.


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "rfc/config.md").read_text()
SOURCE = "".join(path.read_text() for path in (ROOT / "fluxsched/config").rglob("*.py"))
KINDS = "text|texts|choice|flag|integer|number|duration_s|duration_within|table|tables|joined"
READ = set(re.findall(rf"""\.(?:{KINDS})\("([\w-]+)\"""", SOURCE))
SHARES = (ROOT / "rfc/fair.md").read_text()
EXAMPLES = re.findall(r"^```toml\n(.*?)^```$", PAGE + SHARES, re.DOTALL | re.MULTILINE)


def test_every_key_that_is_read_is_on_the_page_and_in_the_example():
    kinds = {"heartbeat", "requires", "nnodes", "scheduler", "kill-timeout", "cap", "signal"}
    assert kinds - READ == set()
    titles = set(re.findall(r"[\w-]+", " ".join(re.findall(r"^#+ `(.*)`$", PAGE, re.MULTILINE))))
    rows = set(re.findall(r"[\w-]+", " ".join(re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE))))
    assert READ - titles - rows == set()
    shown = set(re.findall(r"[\w-]+", (ROOT / "examples/site.toml").read_text()))
    assert READ - shown - {"lost-after", "min", "ncores", "ngpus"} == set()


def test_the_page_says_which_keys_are_live():
    page = PAGE.partition("| section | keys that take effect at once")[2].partition("\n\n")[0]
    said = []
    for table, keys in re.findall(r"^\| `\[+(\w+)\]+` \| ([^|]*) \|", page, re.MULTILINE):
        said += [(table,)] if keys == "all" else [(table, key) for key in re.findall(r"`([a-z-]+)`", keys)]
    assert said == list(LIVE)


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_the_examples_of_the_page_are_taken(text):
    assert parse_config(text, "site.toml").raw


def test_a_queue_wants_no_limit_as_the_page_says():
    text = (
        "[policy.limits]\nduration = '2d'\njob-size.max.nnodes = 6\n"
        "[queues.a.policy.limits]\nduration = 'infinity'\njob-size.max.nnodes = -1\n"
        "[queues.b.policy.limits]\nduration = 0\n"
    )
    queues = queue_configs(parse_config(text, "x"))
    assert NO_LIMIT == -1
    assert (queues["a"].duration_limit_s, queues["a"].nodes_max) == (0, None)
    assert (queues["b"].duration_limit_s, queues["b"].nodes_max) == (0, 6)


def test_the_example_says_what_its_comments_say():
    config = load_config(ROOT / "examples/site.toml")
    assert config.resource.exclude == "fake0"
    assert {name: queue.group for name, queue in config.queues.items() if queue.group != "default"} == {
        "debug": "interactive"
    }
    assert (config.queues["long"].duration_limit_s, config.queues["debug"].nodes_max) == (0, 1)


@pytest.mark.parametrize(
    ("specs", "keeps"),
    [
        ("fair:half_life=1d|quota", True), ("easy;debug=fair", True), ("easy;debug=./mine.py:x=1", True),
        ("builtin", False), ("easy|./night.py", False), ("easy;fair=fifo", False),
    ],
)  # fmt: skip
def test_which_policies_may_keep_accounts(specs: str, keeps: bool) -> None:
    assert may_keep_accounts(specs) is keeps
