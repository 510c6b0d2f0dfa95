"""The configuration file: each key, each fault with its line, each default."""

from __future__ import annotations

import errno
import math
import tomllib
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.config import reader, values
from fluxsched.config.discovery import MachineTopology
from fluxsched.config.inventory import build_inventory, fake_resources
from fluxsched.config.policies import composed
from fluxsched.config.reader import (
    SCHEDULERS_MAX,
    Config,
    HostEntry,
    Limits,
    changes,
    fair_settings,
    load_config,
    parse_config,
    queue_configs,
)
from fluxsched.config.toml import DEPTH_MAX, FAULTS_SHOWN_MAX, Lines
from fluxsched.config.values import (
    CLUSTERS_MAX,
    ENGINE_TIME_MAX_S,
    KEPT_ORPHAN_TIMEOUT_S,
    KILL_TIMEOUT_S,
    ORPHAN_TIMEOUT_S,
    ClusterSettings,
    EngineSettings,
)
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import LIMITS_MAX, SiteLimit
from fluxsched.core.jobid import parse_jobid
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.quantities import parse_duration
from fluxsched.core.request import Count
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import TOPOLOGY_BYTES_MAX, Topology
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded
from fluxsched.instance.reloading import rewired
from fluxsched.jobs.queues import QueueConfig
from fluxsched.protocol import framing
from fluxsched.sched.fair.accounts import ACCOUNTS_MAX, WEIGHTS, Bank, FairSettings, Signal

# Configuration: every key is read, every fault has its file, line and key, and a TOML text's lines are found.


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


def test_every_key_is_read():
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


def test_queues_for_the_job_manager_have_their_own_policy_or_the_general_one():
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


def test_without_named_queues_the_general_policy_is_the_anonymous_queue():
    assert queue_configs(None) == queue_configs(Config()) == queue_configs(parse_config("", "x.toml")) == {}
    found = queue_configs(parse_config('policy.limits.duration = "1h"', "x.toml"))
    assert list(found) == [None]
    assert (found[None].name, found[None].duration_limit_s) == (None, 3600.0)


def test_silence_is_counted_in_heartbeats_unless_said_otherwise():
    def times_s(text):
        r = parse_config(f"[resource]\n{text}", "x.toml").resource
        return r.heartbeat_s, r.torpid_after_s, r.offline_after_s, r.lost_after_s

    assert times_s("") == (2.0, 6.0, 20.0, None)
    assert times_s("heartbeat = 10") == (10.0, 30.0, 100.0, None)
    assert times_s("offline-after = 4") == (2.0, 4.0, 4.0, None)
    assert times_s('torpid-after = "1m"') == (2.0, 60.0, 60.0, None)
    assert times_s('offline-after = "infinity"\nlost-after = "infinity"') == (2.0, 6.0, math.inf, None)


def test_limits_name_users_banks_and_queues():
    first = "[queues.a]\n[[limits]]\nuser = 'root'\nqueue = '*'\nrunning = 2\n"
    assert parse_config(first + "[[limits]]\nbank = 'b'\nminutes = 90\ngpus = 0", "s").site_limits == (
        SiteLimit(user=0, queue="*", running=2, user_name="root"), SiteLimit(bank="b", gpus=0, minutes=90)
    )  # fmt: skip
    many = "[[limits]]\nuser = '*'\nrunning = 1\n" * (LIMITS_MAX + 1)
    with pytest.raises(InvalidValue, match=f"is above the maximum of {LIMITS_MAX} limits: use '\\*' for each"):
        parse_config(many, "s")


def test_a_relative_path_counts_from_the_file(tmp_path):
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
            "offline-after, path, shared, spares, torpid-after, withhold; did you mean 'exclude'?",
        ),
        (
            "[resorce]\n",
            "site.toml:1: unknown key 'resorce'; known keys: access, cluster, engine, epilog, exec, fair, "
            "health, ingest, job-manager, limits, log, metrics, notify, outages, policy, prolog, queues, resource, "
            "scheduler, topology, web; did you mean 'resource'?",
        ),
        ('[engine]\nkind = "pbs"', "[engine] kind: 'pbs' is not one of slurm, flux, ssh, processes, auto, none"),
        ('[engine]\nkind = "ssh"', '[engine] kind: ssh needs hosts = "n[1-4]"'),
        ('[engine]\nkind = "slurm"\nhosts = "n1"', "[engine] hosts: is for kind ssh: the hosts of slurm are those of"),
        ('[engine]\nkind = "ssh"\nhosts = "n[1-"', "[engine] hosts: hostlist: "),
        ('[engine]\nhosts = "n1"', 'site.toml:2: [engine] hosts: is for kind ssh: give kind = "ssh", or name'),
        ('[engine]\nkind = "auto"\nstart-timeout = 0', "[engine] start-timeout: 0 s is not within 1 s and 86400 s"),
        ('[engine]\nkind = "auto"\norphan-timeout = "2d"', "orphan-timeout: 172800 s is not within 4 s and 86400 s"),
        ('[engine]\nkind = "auto"\n[resource]\npath = "R"', "the hosts report their resources: remove"),
        ("\n[exec]\nimp = 1", "site.toml:3: [exec] unknown key 'imp'; known keys: kill-timeout, preempt-timeout"),
        ("a = 1\nb = [1,\n", "site.toml:3: not TOML: "),
        ("[resource\n", "site.toml:1: not TOML: "),
        ('[exec]\nkill-timeout = "1s"\nkill-timeout = "2s"', "site.toml:3: not TOML: Cannot overwrite a value"),
        (RESOURCE + "path = 3", "site.toml:2: [resource] path: must be a string, not an integer"),
        (RESOURCE + "exclude = true", "site.toml:2: [resource] exclude: must be a string, not a boolean"),
        (RESOURCE + "heartbeat = true", "heartbeat: must be a string or a number, not a boolean"),
        (RESOURCE + "heartbeat = 1979-05-27", "not a date or time"),
        ('[access]\nauthorized-keys = ""', "site.toml:2: [access] authorized-keys: a path must not be empty"),
        (RESOURCE + "heartbeat = inf", "heartbeat: inf is not a duration: write 'infinity'"),
        (RESOURCE + 'heartbeat = "infinity"', "heartbeat: inf s is not within 0.02 s"),
        (RESOURCE + 'heartbeat = "2 weeks"', "site.toml:2: [resource] heartbeat: duration '2 weeks' is not"),
        (RESOURCE + 'heartbeat = "1ms"', "heartbeat: 0.001 s is not within 0.02 s and infinity"),
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
            '[policy.jobspec.defaults.system]\nduration = "2h"\n[queues.a]\npolicy.limits.duration = "1h"',
            "site.toml:3: [queues.a] the default duration of [policy], 7200 s, is above its limit of 3600 s: "
            "set policy.jobspec.defaults.system.duration for this queue",
        ),
        (
            '[queues.a.policy.jobspec.defaults.system]\nqueue = "a"',
            "site.toml:2: [queues.a.policy.jobspec.defaults.system] unknown key 'queue'; known keys: duration",
        ),
        ('[policy]\naccess.allow-user = ["me"]', "site.toml:2: [policy] unknown key 'access'"),
        ("[policy.limits.job-size.max]\nnnodes = -2", "[policy.limits.job-size.max] nnodes: -2 is below -1"),
        (
            '[policy.jobspec.defaults.system]\n\nqueue = "x"\n[queues.a]',
            "site.toml:3: [policy.jobspec.defaults.system] queue: queue 'x' is not configured; there is only a",
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
        ("[[limits]]\nrunning = 3", "site.toml:1: [[limits]] names no user, bank or queue: user = '*' is each user"),
        ("[[limits]]\nuser = '*'", "site.toml:1: [[limits]] bounds nothing: give one of running, waiting"),
        ("[queues.a]\n[[limits]]\nqueue = 'x'\ncores = 1", "site.toml:3: [[limits]] queue: 'x' is not configured"),
        ("[[limits]]\nuser = 'nobody-at-all'\ncores = 1", "site.toml:2: [[limits]] user: "),
        ("[[limits]]\nuser = '*'\ncores = -1", "site.toml:3: [[limits]] cores"),
        ("[[limits]]\nuser = '*'\nspeed = 1\ncores = 2", "site.toml:3: [[limits]] unknown key 'speed'"),
        ("exec = 3", "site.toml:1: exec: must be a table, not an integer"),
        ("[queues.x]\ngroup = 7", "site.toml:2: [queues.x] group"),
        ("[policy.limits]\nduration = 'soon'", "site.toml:2: [policy.limits] duration"),
        ("[[scheduler]]\npolicy = 'fifo'\nspeed = 3", "site.toml:3: [[scheduler]] unknown key 'speed'"),
        ("[exec]\n\npreempt-timeout = -1", "site.toml:3: [exec] preempt-timeout: "),
        ('[exec]\npreempt-timeout = "soon"', "site.toml:2: [exec] preempt-timeout: duration 'soon' is not"),
    ],
)
def test_a_fault_is_named_with_file_line_and_key(text, told):
    with pytest.raises(InvalidValue) as caught:
        parse_config(text, "site.toml")
    assert told in str(caught.value)
    assert str(caught.value).startswith("site.toml:")


def test_a_limit_on_a_user_that_does_not_exist_has_one_fault():
    with pytest.raises(InvalidValue) as caught:
        parse_config("[[limits]]\nuser = 'nobody-at-all'\ncores = 1", "site.toml")
    assert len(str(caught.value).splitlines()) == 1


def test_all_faults_come_at_once_in_the_order_of_the_file():
    text = '[exec]\nx = 1\n[queues.a]\ny = 2\n[resource]\nz = 3\nheartbeat = "no"\n'
    with pytest.raises(InvalidValue) as caught:
        parse_config(text, "s")
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["2", "4", "6", "7"]


def test_too_many_faults_are_counted_only():
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
        ("".join(f"[queues.q{n}]\n" for n in range(reader.QUEUES_MAX + 1)), "[queues] 257 names are above the limit"),
    ],
)
def test_limits_are_polite(text, told):
    with pytest.raises(InvalidValue, match="^s.*" + told.replace("[", r"\[")):
        parse_config(text, "s")


def test_too_many_schedulers_are_refused():
    text = '[[scheduler]]\npolicy = "fifo"\ngroups = []\n' * (SCHEDULERS_MAX + 1)
    with pytest.raises(InvalidValue) as caught:
        parse_config(text, "s")
    assert "is above the limit of 64 schedulers" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(InvalidValue, match=r"configuration .*none\.toml cannot be read: No such file") as caught:
        load_config(tmp_path / "none.toml")
    assert caught.value.errnum == errno.ENOENT
    bad = tmp_path / "bad.toml"
    bad.write_bytes(b"[exec]\n# \xff\n")
    with pytest.raises(InvalidValue, match=r"bad\.toml:2: configuration is not UTF-8"):
        load_config(bad)
    monkeypatch.setattr(reader, "CONFIG_BYTES_MAX", 4)
    with pytest.raises(LimitExceeded, match="longer than the limit of 4 bytes"):
        load_config(bad)


def test_where_finds_lines():
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
def test_lines_of_toml(text, path, line):
    tomllib.loads(text)
    assert Lines(text).of(path) == line


VALUES = st.recursive(
    st.sampled_from(["1", "-2.5e3", '"#]"', '"""\n[x]\n"""', "'''\n=\n'''", "1979-05-27 07:32:00", "'\"'", '""']),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: "[" + ",\n ".join(items) + "]"),
    max_leaves=6,
)


def _paths(obj, path):
    yield path
    for key, value in obj.items() if isinstance(obj, dict) else enumerate(obj) if isinstance(obj, list) else ():
        yield from _paths(value, (*path, key))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["", "[t{}]", "[[a]]", "[['q #']]", "[t{}.u]"]), VALUES), max_size=8))
def test_every_key_is_found_where_it_is_written(parts):
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


# `[topology]`: both forms, and each fault at its key.


HERE = MachineTopology("me", (), (), "affinity")
TWO_LEAVES = """
[[topology.switch]]
name = "leaf0"
hosts = "fake[0-3]"
[[topology.switch]]
name = "leaf1"
hosts = ["fake[4-5]", "fake6,fake7"]
[[topology.switch]]
name = "spine"
switches = "leaf[0-1]"
"""


def test_switches_are_read():
    topology = parse_config(TWO_LEAVES, "site.toml").network.topology
    assert topology.hops("fake0", "fake7") == 4
    assert [switch.name for switch in topology.switches.values()] == ["leaf0", "leaf1", "spine"]


def test_slurms_file_is_read_beside_the_configuration(tmp_path):
    (tmp_path / "site.toml").write_text('[topology]\npath = "topology.conf"\n')
    (tmp_path / "topology.conf").write_text("SwitchName=a Nodes=fake[0-1]\n")
    assert load_config(tmp_path / "site.toml").network.topology.leaf_of == {"fake0": "a", "fake1": "a"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            TWO_LEAVES.replace("fake6", "fake3"),
            "site.toml:7: [[topology.switch]] hosts: host fake3 is under switch leaf0 too: a host is under one leaf",
        ),
        (
            '[[topology.switch]]\nname = "a"\nswitches = "b"\n[[topology.switch]]\nname = "b"\nswitches = "a"\n',
            "site.toml:3: [[topology.switch]] switches: circle of switches: a, b, a (each under the next)",
        ),
        (
            TWO_LEAVES + 'hosts = "fake9"\n',
            "site.toml:8: [[topology.switch]] switch spine has both hosts and switches",
        ),
        (
            TWO_LEAVES.replace("leaf1", "leaf0", 1),
            "site.toml:6: [[topology.switch]] name: there is another switch of the name leaf0: rename one of them",
        ),
        (
            TWO_LEAVES.replace("leaf[0-1]", "leaf[0-2]"),
            "site.toml:10: [[topology.switch]] switches: no switch of the name leaf2: describe it, or leave it out",
        ),
        ('[[topology.switch]]\nhosts = "x"\n', "site.toml:1: [[topology.switch]] has no name: give it one"),
        ('[[topology.switch]]\nname = "a"\n', "site.toml:1: [[topology.switch]] switch a has neither hosts nor"),
        ('[[topology.switch]]\nname = 3\n', "site.toml:2: [[topology.switch]] name: must be a string, not an integer"),
        ('[[topology.switch]]\nname = "a"\nhosts = "x["\n', "site.toml:3: [[topology.switch]] hosts: hostlist"),
        ('[[topology.switch]]\nname = "a,b"\nhosts = "x"\n', "site.toml:2: [[topology.switch]] name: 'a,b' must be"),
        ('[topology]\nswitches = 3\n', "site.toml:2: [topology] unknown key 'switches'; known keys: path, switch; did"),
        ('[topology]\npath = "x"\nswitch = []\n', "site.toml:2: [topology] path: give either path or [[topology."),
        ('[topology]\npath = "absent"\n', "site.toml:2: [topology] path: topology absent cannot be read: No such file"),
    ],
)  # fmt: skip
def test_a_fault_has_its_table_and_line(text, told):
    with pytest.raises(InvalidValue) as caught:
        parse_config(text, "site.toml")
    assert told in str(caught.value)


def test_faults_of_slurms_file_have_its_lines(tmp_path, monkeypatch):
    (tmp_path / "t.conf").write_text("SwitchName=a Nodes=x\nSwitchName=b Nodes=x\nSwitchName=b Nodes=y\n")
    name = str(tmp_path / "site.toml")
    with pytest.raises(InvalidValue) as caught:
        parse_config('[topology]\npath = "t.conf"\n', name)
    place = f"{name}:2: [topology] path: {tmp_path}/t.conf"
    assert str(caught.value).split("\n") == [
        f"{place}:2: Nodes: host x is under switch a too: a host is under one leaf",
        f"{place}:3: SwitchName: there is another switch of the name b: rename one of them, or describe it once",
    ]
    assert TOPOLOGY_BYTES_MAX == 1 << 24
    monkeypatch.setattr(values, "TOPOLOGY_BYTES_MAX", 10)
    with pytest.raises(InvalidValue, match=r"t\.conf is longer than the limit of 10 bytes"):
        parse_config('[topology]\npath = "t.conf"\n', name)


def test_hosts_that_no_target_is_on_are_named_with_their_place(tmp_path):
    with pytest.raises(InvalidValue) as caught:
        build_inventory(parse_config(TWO_LEAVES, "site.toml"), fake="6x4", topology=lambda: HERE)
    assert str(caught.value) == (
        "site.toml:7: [[topology.switch]] hosts: no target is on fake[6-7], under switch leaf1: "
        "take it out, or add it to the resources"
    )
    (tmp_path / "t.conf").write_text("SwitchName=a Nodes=fake0,far\n")
    config = parse_config('[topology]\npath = "t.conf"\n', str(tmp_path / "site.toml"))
    with pytest.raises(InvalidValue, match=r":2: \[topology\] path: .*/t.conf:1: Nodes: no target is on far"):
        build_inventory(config, fake="6x4", topology=lambda: HERE)


def test_hosts_that_may_yet_be_discovered_are_taken():
    config = parse_config(TWO_LEAVES, "site.toml")
    assert build_inventory(config, topology=lambda: MachineTopology("me", HERE.cores, (), "x")).inventory.dynamic


def test_a_reload_tells_that_the_file_has_other_switches():
    before, after = Topology([]), parse_config(TWO_LEAVES, "site.toml").network.topology
    (told,) = rewired(before, after, [])
    assert (told.key, told.old, told.new) == ("topology", "switches: 0", "switches: 3, read anew")
    assert rewired(after, after, []) == []
    assert rewired(before, after, changes({}, {"topology": {"path": "x"}})) == []


# `[[cluster]]`: what is read, and what is wrong with its line and what to do.


ONE = '[[cluster]]\nname = "{}"\nuri = "ipc:///run/{}"\n'


def test_a_cluster_is_read_and_is_a_group():
    text = ONE.format("east", "east") + 'queue = "batch"\nkey = "keys/east.key"\nreturn-after = "2m"\n'
    text += '[queues.far]\ngroup = "east"\n[[scheduler]]\npolicy = "easy"\ngroups = ["east"]\n'
    config = parse_config(text, "/s/t")
    assert config.clusters == (ClusterSettings("east", "ipc:///run/east", "batch", "/s/keys/east.key", 120.0),)
    assert not config.clusters[0].is_flux
    flux = parse_config('[[cluster]]\nname = "f"\nuri = "local:///run/flux/local"\n', "t").clusters[0]
    assert (flux.is_flux, flux.return_after_s) == (True, 60.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[cluster]]\nuri = "ipc:///x"\n', 't:1: [[cluster]] has no name, such as name = "east"'),
        ('[[cluster]]\nname = "a"\n', "has no uri, such as uri ="),
        ('[[cluster]]\nname = "a"\nuri = "http://x"\n', "t:3: [[cluster]] uri: 'http://x' is not the address"),
        ('[[cluster]]\nname = "default"\nuri = "ipc:///x"\n', "there is a group 'default' already"),
        (f"{ONE.format('a', 'a')}{ONE.format('a', 'b')}", "t:5: [[cluster]] name: there is a group 'a' already"),
        ('[resource.groups]\na = "0"\n' + ONE.format("a", "a"), "t:4: [[cluster]] name: there is a group 'a' already"),
        (ONE.format("a b", "x"), "group name 'a b' must be letters"),
        (ONE.format("a", "a") + 'return-after = "0s"\n', "t:4: [[cluster]] return-after: 0 s is not above 0"),
        (ONE.format("a", "a") + "weight = 1\n", "unknown key 'weight'"),
    ],
)
def test_faults_have_their_line_and_the_remedy(text, said):
    with pytest.raises(InvalidValue) as caught:
        parse_config(text, "t")
    assert said in str(caught.value).replace(" number 1", "").replace(" number 2", "")


def test_there_is_a_limit():
    many = "".join(ONE.format(f"c{number}", number) for number in range(CLUSTERS_MAX + 1))
    with pytest.raises(InvalidValue, match="above the limit of 64 clusters"):
        parse_config(many, "t")


# `[fair]` is read by one reader, from a file and from what `config.get` gives, with each fault at its line.


SITE = """
[fair]
signal = "flow"
half-life = "2d"
usage = "dominant"
weights = { core = 1, gpu = 10, memory = "0.25/GiB", matlab = 3.5 }
shares = "all"
cap = 1.2
budget = 600
rate = 0
[fair.banks]
physics = 3
optics = { parent = "physics", weight = 2, cap = 1.0, users = { ann = 2 } }
"""
SETTLED = FairSettings(
    Signal.FLOW,
    2 * 86_400.0,
    True,
    MappingProxyType({"core": 1.0, "gpu": 10.0, "memory": 0.25 / 2**30, "matlab": 3.5}),
    True,
    1.2,
    600.0,
    0,
    {"physics": Bank(3.0), "optics": Bank(2.0, "physics", 1.0, {"ann": 2.0})},
)


def test_every_key_is_read_and_alike_from_the_object_that_a_scheduler_gets():
    assert parse_config(SITE, "site.toml").fair == SETTLED
    assert fair_settings(tomllib.loads(SITE)) == SETTLED


@pytest.mark.parametrize("config", [{}, {"fair": {}}, {"resource": {"exclude": "0"}}])
def test_without_a_table_everything_has_its_default(config):
    assert fair_settings(config) == FairSettings()
    assert FairSettings().weights == WEIGHTS


def test_an_empty_table_of_banks_knows_no_bank():
    assert parse_config("[fair.banks]", "site.toml").fair.banks == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[fair]\nsignal = 'flows'", "2: [fair] signal: 'flows' is not one of flow, decayed-usage"),
        ("[fair]\nhalf-life = 0", "2: [fair] half-life: 0 s is not a time of at least 1 s"),
        ("[fair]\nhalf-life = 'infinity'", "2: [fair] half-life: inf s is not"),
        ("[fair]\nusage = 3", "2: [fair] usage: must be a string, not an integer"),
        ("[fair]\nshares = 'some'", "2: [fair] shares: 'some' is not one of active, all"),
        ("[fair]\ncap = nan", "2: [fair] cap: nan is not a number of at least 0"),
        ("[fair]\ncap = '1.2'", "2: [fair] cap: must be a number, not a string"),
        ("[fair]\nbudget = -1", "2: [fair] budget: -1 is not a number of at least 0"),
        ("[fair]\nrate = 65537", "2: [fair] rate: 65537 is not within 0-65536"),
        ("[fair]\nrate = -1", "2: [fair] rate: -1 is below 0"),
        ("[fair]\ncaps = 1", "2: [fair] unknown key 'caps'; known keys: banks, budget, cap, "),
        ("[fair]\nweights.core = -1", "2: [fair.weights] core: -1 is not a number of at least 0"),
        ("[fair]\nweights.core = 'x'", "2: [fair.weights] core: 'x' is not a weight: give a number, or one by a unit"),
        ("[fair]\nweights.core = '1.2.3/GB'", "2: [fair.weights] core: '1.2.3' is not a number"),
        ("[fair]\nweights.memory = '1/GiG'", "2: [fair.weights] memory: unit 'GiG' is not known: give B, kB, "),
        ("[fair]\nweights.cores = 1", "2: [fair.weights] cores: cores is not counted: give weights for core, gpu"),
        ("[fair]\nweights.node = 1", "2: [fair.weights] node: node is not counted"),
        ("[fair]\nweights = {}", "2: [fair] weights: all are 0: nothing would count"),
        ("[fair.banks]\na = 1\nb = 0", "3: [fair.banks.b] weight: 0 is not a number above 0"),
        ("[fair.banks]\na = 1\nb = -0.5", "3: [fair.banks.b] weight: -0.5 is not a number above 0"),
        ("[fair.banks]\nb = nan", "2: [fair.banks.b] weight: nan is not a number above 0"),
        (f"[fair.banks]\nb = 1{'0' * 400}", "2: [fair.banks] b: is beyond the range of a double"),
        ("[fair.banks]\nb = '3'", "2: [fair.banks] b: must be a number or a table, not a string"),
        ("[fair.banks.b]\nwieght = 2", "2: [fair.banks.b] unknown key 'wieght'; known keys: cap, parent, users"),
        ("[fair.banks.b]\n\nusers.ann = 0", "3: [fair.banks.b.users] ann: 0 is not a number above 0"),
        ("[fair.banks.b]\n\nparent = 'a'", "3: [fair.banks.b] parent: there is no bank 'a'; there is only b"),
        (
            "[fair.banks]\na.parent = 'b'\nb.parent = 'a'",
            "2: [fair.banks.a] parent: parents in a circle, a -> b -> a: give one of them another parent, or none",
        ),
        (
            "[fair.banks]\n" + "".join(f"b{at} = {{ parent = 'b{at - 1}' }}\n" for at in range(1, 9)) + "b0 = 1",
            "8: [fair.banks] b7: is 8 levels deep, the limit is 7: give it another parent",
        ),
        (
            '[fair.banks]\na = 1\n"e\\u001b[31m\\n" = 1',
            r"""3: [fair.banks] "e\u001b[31m\n": 'e\x1b[31m\n' is not a name: it needs printable characters""",
        ),
        (
            "[policy.jobspec.defaults.system]\nbank = 'c'\n[fair.banks]\na = 1",
            "2: [policy.jobspec.defaults.system] bank: bank 'c' is not in [fair.banks]; there is only a",
        ),
        (
            '[policy.jobspec.defaults.system]\nbank = "a\\nb"',
            r"2: [policy.jobspec.defaults.system] bank: 'a\nb' is not a name: it needs printable characters",
        ),
    ],
)
def test_a_fault_is_named_with_line_and_key(text, told):
    with pytest.raises(InvalidValue) as refused:
        parse_config(text, "site.toml")
    assert str(refused.value).startswith(f"site.toml:{told}")
    assert str(refused.value).isprintable()


def test_all_faults_come_at_once_without_lines_where_there_is_no_file():
    with pytest.raises(InvalidValue) as refused:
        fair_settings({"fair": {"cap": -1, "rate": "x", "banks": {"a": {"weight": 0}}}})
    assert str(refused.value) == (
        "[fair] rate: must be an integer, not a string; [fair] cap: -1 is not a number of at least 0; "
        "[fair.banks.a] weight: 0 is not a number above 0"
    )
    with pytest.raises(InvalidValue, match="fair: must be a table, not an array"):
        fair_settings({"fair": [1]})


def test_more_accounts_than_a_tree_holds_are_refused():
    users = {f"u{at}": 1 for at in range(ACCOUNTS_MAX)}
    with pytest.raises(InvalidValue, match=f"{ACCOUNTS_MAX + 1} banks and users, the limit is {ACCOUNTS_MAX}"):
        fair_settings({"fair": {"banks": {"a": {"users": users}}}})
    with pytest.raises(InvalidValue, match=f"{ACCOUNTS_MAX + 1} names are above the limit of {ACCOUNTS_MAX}"):
        fair_settings({"fair": {"banks": users | {"a": 1}}})


def test_the_default_bank_is_read():
    text = "[policy.jobspec.defaults.system]\nbank = 'a'\n"
    assert parse_config(text, "x").defaults.bank == "a"
    assert parse_config(f"{text}[fair.banks]\na = 1", "x").defaults.bank == "a"
    with pytest.raises(InvalidValue, match=r"\[queues.q.policy.jobspec.defaults.system\] unknown key 'bank'"):
        parse_config("[queues.q.policy.jobspec.defaults.system]\nbank = 'a'\n", "x")


def test_a_reload_takes_all_of_it():
    found = changes({"fair": {"cap": 1}}, {"fair": {"cap": 2, "banks": {"a": 1}}})
    assert [(change.key, change.is_live) for change in found] == [("fair.cap", True), ("fair.banks.a", True)]


# `[queues.NAME] groups`: several groups of one scheduler.


GROUPS = '[resource.groups]\nb = ""\n[queues.a]\n'


def test_the_first_of_several_groups_stands_for_all():
    queue = parse_config(f'{GROUPS}groups = ["b", "default"]\n', "site.toml").queues["a"]
    assert (queue.group, queue.groups) == ("b", ("b", "default"))
    assert parse_config(f'{GROUPS}group = "b"\n', "site.toml").queues["a"].groups == ("b",)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('groups = ["b"]\ngroup = "b"', "site.toml:4: [queues.a] groups: and group cannot both be given: name all"),
        ('groups = ["default", "c"]', "site.toml:4: [queues.a] groups: group 'c' is not in [resource.groups]"),
        ("groups = []", "site.toml:4: [queues.a] groups: is empty: name at least one group, such as 'default'"),
        ('groups = ["b", "b"]', "site.toml:4: [queues.a] groups: names b twice"),
        (
            'groups = ["default", "b"]\n[[scheduler]]\npolicy = "easy;a=fifo"\ngroups = ["b"]',
            "site.toml:7: [[scheduler]] groups: queue 'a' has groups default, b, which need one scheduler, and this "
            "one serves b: add default to its groups",
        ),
    ],
)
def test_what_is_wrong_with_them(text, fault):
    with pytest.raises(InvalidValue) as caught:
        parse_config(GROUPS + text, "site.toml")
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scheduler_that_serves_some_of_them_is_not_loaded():
    queues = {"a": QueueConfig("a", "default", others=("b",))}
    with pytest.raises(InvalidValue, match="which need one scheduler, and this one serves b: add default"):
        composed("fifo", ("b",), queues)
    assert composed("fifo", ("b", "default"), queues) == "fifo"


# `[exec]`: the times from SIGTERM to SIGKILL, in general and for preempted jobs.


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        ("", (KILL_TIMEOUT_S, KILL_TIMEOUT_S)),
        ('kill-timeout = "7s"', (7.0, 7.0)),
        ('preempt-timeout = "2m"', (KILL_TIMEOUT_S, 120.0)),
        ('kill-timeout = "7s"\npreempt-timeout = 0', (7.0, 0.0)),
    ],
)
def test_preempted_jobs_have_the_general_grace_time_unless_said_otherwise(text, expected_s):
    config = parse_config(f"[exec]\n{text}", "site.toml")
    assert (config.kill_timeout_s, config.preempt_timeout_s) == expected_s


# A number of thousands of digits, which int() refuses to read, is a polite error wherever a number may stand.


HUGE = "9" * 5_000
READERS = {
    "idset": lambda: Idset.parse(f"0-{HUGE}"),
    "hostlist": lambda: Hostlist.parse(f"node[0-{HUGE}]"),
    "host": lambda: Hostlist.of([f"node{HUGE}"]),
    "count": lambda: Count.parse(f"1-{HUGE}"),
    "count as a number": lambda: Count.parse(10**7_000),
    "job id": lambda: parse_jobid(HUGE),
    "hexadecimal job id": lambda: parse_jobid("0x" + HUGE),
    "duration": lambda: parse_duration(f"{HUGE}s"),
    "jobspec": lambda: Jobspec.parse(f'{{"version": {HUGE}}}'),
    "R": lambda: ResourceSet.parse(f'{{"version": {HUGE}}}'),
    "local socket": lambda: framing.from_local(f'{{"id": {HUGE}}}\0'.encode()),
    "--fake": lambda: fake_resources(f"{HUGE}x1"),
}


@pytest.mark.parametrize("what", READERS)
def test_a_huge_number_is_a_polite_error(what):
    with pytest.raises(FluxschedError) as found:
        READERS[what]()
    assert len(str(found.value)) < 200
    assert "4300" not in str(found.value)


@pytest.mark.parametrize("line", ["x = {}", "[resource]\nx = -{}", '[[resource.config]]\nhosts = "n"\namounts.x = {}'])
def test_a_huge_number_in_toml_is_named_with_its_line(tmp_path, line):
    (tmp_path / "c.toml").write_text(f"# mine\n{line.format(HUGE)}\n")
    with pytest.raises(LimitExceeded) as found:
        load_config(tmp_path / "c.toml")
    at = 2 + line.count("\n")
    assert str(found.value) == f"{tmp_path}/c.toml:{at}: a number of thousands of digits: the largest is 2**63 - 1"


def test_an_engine_has_defaults_that_depend_on_a_state_directory() -> None:
    assert parse_config("", "site.toml").engine == EngineSettings()
    text = '[engine]\nkind = "ssh"\nhosts = ["n1", "n[3-4]"]\nstart-timeout = "2m"\naddress = "login1"'
    found = parse_config(text, "site.toml").engine
    assert found == EngineSettings("ssh", "n1,n[3-4]", 120.0, None, "login1")
    assert found.orphan_timeout(is_kept=False) == ORPHAN_TIMEOUT_S
    assert found.orphan_timeout(is_kept=True) == KEPT_ORPHAN_TIMEOUT_S
    given = parse_config(f"{text}\norphan-timeout = {ENGINE_TIME_MAX_S}", "site.toml").engine
    assert given.orphan_timeout(is_kept=True) == ENGINE_TIME_MAX_S


def test_times_and_address_of_an_engine_that_the_command_line_names_need_no_kind() -> None:
    found = parse_config('[engine]\norphan-timeout = "30s"\naddress = "login1"', "site.toml").engine
    assert found == EngineSettings(orphan_timeout_s=30.0, address="login1")
    assert found.named("slurm") == EngineSettings("slurm", orphan_timeout_s=30.0, address="login1")


@pytest.mark.parametrize(
    ("text", "kind", "hosts"),
    [
        ("slurm", "slurm", ""),
        ("auto", "auto", ""),
        ("none", "none", ""),
        ("ssh:n[1-2],x", "ssh", "n[1-2],x"),
        ("processes:3", "processes", "p[0-2]"),
    ],
)
def test_an_engine_is_named_by_a_text(text: str, kind: str, hosts: str) -> None:
    assert EngineSettings(address="a").named(text) == EngineSettings(kind, hosts, address="a")


@pytest.mark.parametrize(
    "text",
    ["", "pbs", "ssh", "ssh:", "slurm:4", "processes", "processes:0", "processes:x", "processes:9999999", "ssh:n["],
)
def test_a_text_that_names_no_engine_is_refused(text: str) -> None:
    said = r"is not one of slurm, flux, ssh:HOSTLIST, auto or none|names no hosts|hostlist: 'n\["
    with pytest.raises(InvalidValue, match=said):
        EngineSettings().named(text)


OUTAGE = '[[outages]]\ntargets = "0"\n'


def test_outages_are_read():
    first = f'{OUTAGE}from = "2026-01-04T02:00+00:00"\nfor = "2h"\nevery = "7d"\n'
    text = f'{first}{OUTAGE}name = "x"\nfrom = 5\nuntil = 6\nend-jobs = true\n'
    one, other = parse_config(text, "site.toml").outages
    assert (one.name, one.targets, one.from_s, one.until_s - one.from_s, one.every_s) == (
        "config1", "0", 1767492000.0, 7200.0, 604800.0
    )  # fmt: skip
    assert (one.ends_jobs, other.ends_jobs) == (False, True)
    assert (other.name, other.from_s, other.until_s, other.every_s, other.reason) == ("x", 5.0, 6.0, 0.0, "")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("from = 5", "has an end: give either until or for"),
        ("from = 5\nfor = 1\nuntil = 9", "has an end: give either until or for"),
        ("for = 5", "has no from"),
        ("from = 5\nuntil = 5", "ends as it begins"),
        ("from = 'soon'\nfor = 5", "'soon' is no date and time"),
        ("from = 5\nfor = '1h'\nevery = '1m'", "recurs every 1m and lasts 1h"),
        ("from = 5\nfor = 1\nname = 'a'\n[[outages]]\ntargets = '1'\nfrom = 5\nfor = 1\nname = 'a'", "two outages 'a'"),
    ],
)
def test_faults_of_outages_are_named(keys, told):
    with pytest.raises(InvalidValue, match=told):
        parse_config(f"{OUTAGE}{keys}\n", "site.toml")
