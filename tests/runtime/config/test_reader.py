"""Configuration: every key is read, every fault has its file, line and key, and a TOML text's lines are found."""

from __future__ import annotations

import errno
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.runtime.config import reader as configs
from fluxsched.runtime.config.reader import Config, HostEntry, Limits, load_config, parse_config, queue_configs
from fluxsched.runtime.config.schedulers import SCHEDULERS_MAX
from fluxsched.runtime.config.toml_lines import Lines
from fluxsched.runtime.config.toml_reader import DEPTH_MAX, FAULTS_SHOWN_MAX

FULL = """\
[resource]
exclude = "node0"
heartbeat = "500ms"
torpid-after = 3
offline-after = "1m"
lost-after = "1h"

[[resource.config]]
hosts = "node[0-3]"
cores = "0-7"
gpus = "0-1"

[[resource.config]]
hosts = "node[2-3]"
properties = ["ssd", "fast@cpu"]
amounts = { memory = "2KiB", fpga = 2 }

[resource.shared]
matlab = 25

[resource.groups]
batch = "node[1-2]"
spare = ""

[policy]
limits.duration = "1d"
limits.job-size.max = { nnodes = 4, ncores = 32, ngpus = 8 }
limits.job-size.min.nnodes = 1
jobspec.defaults.system.duration = "10m"
jobspec.defaults.system.queue = "day"

[queues.day]
requires = ["ssd", "^slow"]
policy.limits.duration = "2h"
policy.limits.job-size.max.nnodes = -1
policy.scheduler.policy = "conservative:compress"

[queues.night]
group = "batch"
policy.jobspec.defaults.system.duration = "0"

[queues.all]
hosts = "all"
policy.limits.duration = "infinity"

[queues.quick]
policy = "firstfit:order=sjf"

[[scheduler]]
policy = "fifo:placement=best-fit"
name = "main"

[[scheduler]]
policy = "./mine.py"
groups = ["batch", "spare"]

[exec]
kill-timeout = "1.5s"
"""


def test_every_key_is_read() -> None:
    config = parse_config(FULL, "etc/site.toml")
    resource = config.resource
    assert resource.entries == (
        HostEntry("node[0-3]", "0-7", "0-1"),
        HostEntry("node[2-3]", properties=("ssd", "fast@cpu"), amounts=(("fpga", 2), ("memory", 2048))),
    )
    assert resource.shared == (("matlab", 25),)
    assert (resource.path, resource.exclude, resource.groups) == (None, "node0", {"batch": "node[1-2]", "spare": ""})
    times_s = (resource.heartbeat_s, resource.torpid_after_s, resource.offline_after_s, resource.lost_after_s)
    assert times_s == (0.5, 3.0, 60.0, 3600.0)
    assert [(s.policy, s.name, s.groups) for s in config.schedulers] == [
        ("fifo:placement=best-fit", "main", ()),
        (str(Path("etc/mine.py").absolute()), None, ("batch", "spare")),
    ]
    assert config.kill_timeout_s == 1.5
    assert (config.defaults.queue, config.defaults.duration_s) == ("day", 600.0)
    assert config.limits == Limits(86400.0, 1, 4, 32, 8)
    assert config.raw == tomllib.loads(FULL)
    assert [(name, queue.policy) for name, queue in config.queues.items()] == [
        ("day", "conservative:compress"), ("night", None), ("all", None), ("quick", "firstfit:order=sjf")
    ]  # fmt: skip
    assert [config.queues[name].duration_limit_s for name in ("day", "quick")] == [7200.0, 86400.0]


def test_queues_for_the_job_manager_have_their_own_policy_or_the_general_one() -> None:
    queues = queue_configs(parse_config(FULL, "site.toml"))
    day, night, everywhere = queues["day"], queues["night"], queues["all"]
    assert (day.name, day.group, str(day.requires)) == ("day", "default", "ssd and not slow")
    assert (day.duration_limit_s, day.default_duration_s) == (7200.0, 600.0)
    assert (day.nodes_min, day.nodes_max, day.cores_max, day.gpus_max) == (1, None, 32, 8)
    assert (night.group, night.requires) == ("batch", None)
    assert (night.duration_limit_s, night.default_duration_s) == (86400.0, 0.0)
    assert everywhere.requires is not None
    assert everywhere.requires.to_json() == {"properties": ["+all"]}
    assert everywhere.duration_limit_s == 0.0


def test_without_named_queues_the_general_policy_is_the_anonymous_queue() -> None:
    assert queue_configs(None) == queue_configs(Config()) == queue_configs(parse_config("", "x.toml")) == {}
    found = queue_configs(parse_config('policy.limits.duration = "1h"', "x.toml"))
    assert list(found) == [None]
    assert (found[None].name, found[None].duration_limit_s) == (None, 3600.0)


def test_silence_is_counted_in_heartbeats_unless_said_otherwise() -> None:
    def times_s(text: str) -> tuple[float, float, float, float | None]:
        r = parse_config(f"[resource]\n{text}", "x.toml").resource
        return r.heartbeat_s, r.torpid_after_s, r.offline_after_s, r.lost_after_s

    assert times_s("") == (2.0, 6.0, 20.0, None)
    assert times_s("heartbeat = 10") == (10.0, 30.0, 100.0, None)
    assert times_s("offline-after = 4") == (2.0, 4.0, 4.0, None)
    assert times_s('torpid-after = "1m"') == (2.0, 60.0, 60.0, None)
    assert times_s('offline-after = "infinity"\nlost-after = "infinity"') == (2.0, 6.0, math.inf, None)


def test_a_relative_path_counts_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('[resource]\npath = "R.json"\n')
    assert load_config(file).resource.path == str(tmp_path / "R.json")
    assert parse_config('[resource]\npath = "/etc/R"', "a/site.toml").resource.path == "/etc/R"


RESOURCE = "[resource]\n"
ENTRY = '[[resource.config]]\nhosts = "a"\ncores = "0"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '[resource]\npath = "R"\n\nexlude = "0"\n',
            "site.toml:4: [resource] unknown key 'exlude'; known keys: config, exclude, groups, heartbeat, lost-after, "
            "offline-after, path, shared, torpid-after, did you mean 'exclude'?",
        ),
        (
            "[resorce]\n",
            "site.toml:1: unknown key 'resorce'; known keys: access, cluster, exec, fair, job-manager, log, metrics, "
            "policy, queues, resource, scheduler, topology, web, did you mean 'resource'?",
        ),
        ("\n[exec]\nimp = 1", "site.toml:3: [exec] unknown key 'imp'; known keys: kill-timeout, preempt-timeout"),
        ("a = 1\nb = [1,\n", "site.toml:3: not TOML: "),
        ("[resource\n", "site.toml:1: not TOML: "),
        ('[exec]\nkill-timeout = "1s"\nkill-timeout = "2s"', "site.toml:3: not TOML: Cannot overwrite a value"),
        (RESOURCE + "path = 3", "site.toml:2: [resource] path: must be a string, not an integer"),
        (RESOURCE + "exclude = true", "site.toml:2: [resource] exclude: must be a string, not a boolean"),
        (RESOURCE + "heartbeat = true", "heartbeat: must be a string or a number, not a boolean"),
        (RESOURCE + "heartbeat = 1979-05-27", "not a date or time"),
        ('[access]\nauthorized-keys = ""', "site.toml:2: [access] authorized-keys: a path is not empty"),
        (RESOURCE + "heartbeat = inf", "heartbeat: inf is not a duration: write 'infinity'"),
        (RESOURCE + 'heartbeat = "infinity"', "heartbeat: inf s is not between 0.02 s"),
        (RESOURCE + 'heartbeat = "2 weeks"', "site.toml:2: [resource] heartbeat: duration '2 weeks' is not"),
        (RESOURCE + 'heartbeat = "1ms"', "heartbeat: 0.001 s is not between 0.02 s and infinity"),
        (RESOURCE + "offline-after = 1", "[resource] offline-after: 1 s is not above the heartbeat of 2 s"),
        (RESOURCE + "torpid-after = 9\noffline-after = 5", "site.toml:2: [resource] torpid-after: 9 s is above"),
        (RESOURCE + 'config = ["a"]', "[resource] config: item 0 must be a table, not a string"),
        ("[scheduler]", "scheduler: must be an array of tables, not a table: write [[scheduler]] for [scheduler]"),
        ("[resource.config]", "config: must be an array of tables, not a table: write [[resource.config]] for"),
        (RESOURCE + 'config = "a"', "[resource] config: must be an array, not a string"),
        (RESOURCE + 'path = "R"\n' + ENTRY, "site.toml:2: [resource] path: give either path or [[resource.config]]"),
        (
            ENTRY + ENTRY + 'core = "1"',
            "site.toml:7: [[resource.config]] unknown key 'core'; known keys: amounts, cores",
        ),
        (ENTRY + '[[resource.config]]\ncores = "0"', "site.toml:4: [[resource.config]] has no hosts"),
        ('[[resource.config]]\nhosts = "a"', "site.toml:1: [[resource.config]] has none of cores, gpus, properties"),
        ('[[resource.config]]\nhosts = "a["\ncores = "0"', "site.toml:2: [[resource.config]] hosts: hostlist"),
        ('[[resource.config]]\nhosts = "a"\ncores = "0-4000000000"', "site.toml:3: [[resource.config]] cores: id"),
        ('[[resource.config]]\nhosts = "a"\nproperties = ["a|b", 3]', "properties: property 'a|b' has |"),
        ('[[resource.config]]\nhosts = "a"\nproperties = ["a|b", 3]', "properties: item 1 must be a string"),
        ('[resource.groups]\ndefault = "0"', "site.toml:2: [resource.groups] default: cannot be configured"),
        ('[resource.groups]\n"a b" = "0"', "site.toml:2: [resource.groups] \"a b\": group name 'a b' must"),
        ('[resource.groups]\na = ["0"]', "site.toml:2: [resource.groups] a: must be a string, not an array"),
        (
            '[resource]\nexclude = "0"\ngroups.exclude = "1"',
            "site.toml:2: [resource] exclude: is [resource.groups] exclude too",
        ),
        ('[queues.a]\ngroup = "fst"', "site.toml:2: [queues.a] group: group 'fst' is not in [resource.groups]; there"),
        ('[queues.a]\ngroup = "exclude"', "site.toml:2: [queues.a] group: group 'exclude' cannot be acquired"),
        ('[queues."a/b"]', "site.toml:1: [queues] \"a/b\": name 'a/b' must be"),
        ('[queues.a]\npolicy = "fofi"', "site.toml:2: [queues.a] policy: no policy 'fofi': there are conservative, "),
        ('[queues.a]\npolicy = "easy:depth=1"', "[queues.a] policy: policy 'easy': no option 'depth'; it has order, "),
        ("[queues.a]\npolicy = 3", "site.toml:2: [queues.a] policy: must be a table, not an integer"),
        (
            '[queues.a.policy]\nscheduler.policy = "easy;b=fifo"',
            "site.toml:2: [queues.a.policy.scheduler] policy: no policy 'easy;b=fifo'",
        ),
        ('[queues.a.policy.scheduler]\nname = "x"', "[queues.a.policy.scheduler] unknown key 'name'"),
        (
            '[[scheduler]]\npolicy = "fifo"\nhung-after = "0.1s"',
            "site.toml:3: [[scheduler]] hung-after: 0.1 s is below 0.2 s",
        ),
        (
            '[queues.a]\n[[scheduler]]\npolicy = "easy;b=fifo"',
            "site.toml:3: [[scheduler]] policy: queue 'b' has a policy in 'easy;b=fifo', but is not configured",
        ),
        (
            '[resource.groups]\nlab = ""\n[queues.a]\ngroup = "lab"\n[[scheduler]]\npolicy = "easy;a=fifo"',
            "site.toml:6: [[scheduler]] policy: queue 'a' has a policy in 'easy;a=fifo', but group 'lab' serves it",
        ),
        (
            '[queues.a]\n[[scheduler]]\npolicy = "easy;a=hybrid:depth=some"',
            "site.toml:3: [[scheduler]] policy: queue 'a': policy 'hybrid': depth='some'",
        ),
        ("[queues.a]\nparent = 1", "site.toml:2: [queues.a] unknown key 'parent'"),
        ('[queues.a]\nrequires = ["^"]', "site.toml:2: [queues.a] requires: "),
        ('[queues.a]\nhosts = "b"\nrequires = ["x"]', "site.toml:2: [queues.a] hosts: and requires cannot both"),
        (
            '[queues.a.policy]\nlimits.duration = "1h"\njobspec.defaults.system.duration = "2h"',
            "site.toml:1: [queues.a] its default duration of 7200 s is above its limit of 3600 s",
        ),
        (
            '[queues.a.policy.jobspec.defaults.system]\nqueue = "a"',
            "site.toml:2: [queues.a.policy.jobspec.defaults.system] unknown key 'queue'; known keys: duration",
        ),
        ('[policy]\naccess.allow-user = ["me"]', "site.toml:2: [policy] unknown key 'access'"),
        ("[policy.limits.job-size.max]\nnnodes = -2", "[policy.limits.job-size.max] nnodes: -2 is below -1"),
        (
            '[policy.jobspec.defaults.system]\n\nqueue = "x"\n[queues.a]',
            "site.toml:3: [policy.jobspec.defaults.system] queue: queue 'x' is not configured; there are: a",
        ),
        ("[[scheduler]]\n", "site.toml:1: [[scheduler]] has no policy"),
        ('[[scheduler]]\npolicy = ":a=b"', "site.toml:2: [[scheduler]] policy: ':a=b' names no policy"),
        (
            '[[scheduler]]\npolicy = "fifo"\n[[scheduler]]\npolicy = "fifo"',
            "site.toml:3: [[scheduler]] group 'default' is served by scheduler number 1 already",
        ),
        (
            '[[scheduler]]\npolicy = "a"\nname = "x"\n[[scheduler]]\npolicy = "a"\nname = "x"\ngroups = ["b"]',
            "site.toml:6: [[scheduler]] name: two schedulers are named 'x'",
        ),
        ("exec = 3", "site.toml:1: exec: must be a table, not an integer"),
    ],
)
def test_a_fault_is_named_with_file_line_and_key(text: str, told: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_config(text, "site.toml")
    assert told in str(caught.value)
    assert str(caught.value).startswith("site.toml:")


def test_all_faults_come_at_once_in_the_order_of_the_file() -> None:
    text = '[exec]\nx = 1\n[queues.a]\ny = 2\n[resource]\nz = 3\nheartbeat = "no"\n'
    with pytest.raises(InvalidValue) as caught:
        parse_config(text, "s")
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["2", "4", "6", "7"]


def test_too_many_faults_are_counted_only() -> None:
    text = "[exec]\n" + "".join(f"x{n} = 1\n" for n in range(FAULTS_SHOWN_MAX + 5))
    with pytest.raises(InvalidValue) as caught:
        parse_config(text, "s")
    lines = str(caught.value).splitlines()
    assert len(lines) == FAULTS_SHOWN_MAX + 1
    assert lines[-1] == "s: and 5 more faults; fix these first"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = " + "[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1), f"deeper than the limit of {DEPTH_MAX}"),
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("".join(f"[queues.q{n}]\n" for n in range(configs.QUEUES_MAX + 1)), "[queues] 257 names are above the limit"),
    ],
)
def test_limits_are_polite(text: str, told: str) -> None:
    with pytest.raises(InvalidValue, match="^s.*" + told.replace("[", r"\[")):
        parse_config(text, "s")


def test_too_many_schedulers_are_refused() -> None:
    text = '[[scheduler]]\npolicy = "fifo"\ngroups = []\n' * (SCHEDULERS_MAX + 1)
    with pytest.raises(InvalidValue) as caught:
        parse_config(text, "s")
    assert "is above the limit of 64 schedulers" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValue, match=r"configuration .*none\.toml cannot be read: No such file") as caught:
        load_config(tmp_path / "none.toml")
    assert caught.value.errnum == errno.ENOENT
    bad = tmp_path / "bad.toml"
    bad.write_bytes(b"[exec]\n# \xff\n")
    with pytest.raises(InvalidValue, match=r"bad\.toml:2: configuration is not UTF-8"):
        load_config(bad)
    monkeypatch.setattr(configs, "CONFIG_BYTES_MAX", 4)
    with pytest.raises(LimitExceeded, match="longer than the limit of 4 bytes"):
        load_config(bad)


def test_where_finds_lines() -> None:
    config = parse_config(FULL, "site.toml")
    assert config.where("resource.groups", "batch") == "site.toml:22"
    assert config.where("resource.groups") == "site.toml:21"
    assert config.where("resource.config", 1) == "site.toml:13"
    assert config.where("resource", "none") == "site.toml:1"
    assert config.where("nothing") == "site.toml:1"


LINES = '''\
# comment with [brackets] = 1
a = 1 # and another
b.c = """
[not.a.table] \\""" x = 1""""
"d e" = \'\'\'
x = 1\'\'\'

[t . "u.v"]   # header
k = [ # array
  1, "]",
  { x = 1, y = [2] }, # inline
]
z = 1979-05-27 07:32:00
[[r]]
[r.s]
n = 'it is [[no]]'
[[r]]
[[r.q]]
m = { a.b = "}", c = [] }
'''


@pytest.mark.parametrize("text", [LINES, LINES.replace("\n", "\r\n")])
@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("a",), 2),
        (("b", "c"), 3),
        (("d e",), 5),
        (("t", "u.v"), 8),
        (("t", "u.v", "k"), 9),
        (("t", "u.v", "k", 1), 10),
        (("t", "u.v", "k", 2, "y"), 11),
        (("t", "u.v", "z"), 13),
        (("r", 0), 14),
        (("r", 0, "s", "n"), 16),
        (("r", 1), 17),
        (("r", 1, "q", 0, "m", "a", "b"), 19),
        (("r", 1, "q", 0, "m", "c"), 19),
        (("r", 1, "nothing"), 17),
        (("nothing",), 1),
    ],
)
def test_lines_of_toml(text: str, path: tuple[str | int, ...], line: int) -> None:
    tomllib.loads(text)
    assert Lines(text).of(path) == line


VALUES = st.recursive(
    st.sampled_from(["1", "-2.5e3", '"#]"', '"""\n[x]\n"""', "'''\n=\n'''", "1979-05-27 07:32:00", "'\"'", '""']),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: "[" + ",\n ".join(items) + "]"),
    max_leaves=6,
)


def _paths(obj: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    yield path
    for key, value in obj.items() if isinstance(obj, dict) else enumerate(obj) if isinstance(obj, list) else ():
        yield from _paths(value, (*path, key))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["", "[t{}]", "[[a]]", "[['q #']]", "[t{}.u]"]), VALUES), max_size=8))
def test_every_key_is_found_where_it_is_written(parts: list[tuple[str, str]]) -> None:
    text, expected, tables = "", {}, 0
    for number, (header, value) in enumerate(parts):
        if header:
            tables += 1
            text += header.format(number) + "\n"
        expected[f"k{number}"] = text.count("\n") + 1
        text += f"k{number} = {value} # end\n"
    lines = Lines(text)
    for path in _paths(tomllib.loads(text), ()):
        if path and path[-1] in expected:
            assert lines.of(path) == expected[str(path[-1])], (text, path)
