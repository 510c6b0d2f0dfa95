"""A configuration's faults come all at once: those of its text, of the policies' files, and of the targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.runtime.config.check import read_site
from fluxsched.runtime.config.reader import load_config, parse_config
from fluxsched.runtime.instance.launch import StartOptions, settings_of

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


def lines_of(path: Path) -> list[str]:
    with pytest.raises(InvalidValue) as caught:
        settings_of(StartOptions(config=path))
    return [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()]


def test_faults_of_text_files_and_targets_come_at_once(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(FAULTY)
    assert lines_of(path) == [
        "2: [resource] exclude: unknown hosts node7: give hosts of this instance, or ranks",
        "3: [resource] heartbeat: 0 s is not between 0.02 s and infinity",
        "11: [resource.groups] b: rank 1 (node1) in group 'a' too (" + f"{path}:10): a target belongs to one group",
        "15: [queues.x] hosts: unknown hosts node9: give hosts of this instance, or ranks",
        "16: [queues.x] unknown key 'limit'; known keys: group, hosts, plugins, policy, requires",
        f"19: [queues.y] policy: there is no file {tmp_path / 'absent.py'}",
        f"22: [[scheduler]] policy: there is no file {tmp_path / 'also-absent.py'}",
        "26: [[scheduler]] name: 'resource' is a part of the instance: give another name",
        "30: [policy.limits.job-size.min] nnodes: 4 is above the most, 2: no job could be submitted",
    ]


def test_targets_are_not_checked_where_they_are_unknown(tmp_path: Path) -> None:
    """Else each group would be at fault for hosts that are only spelled wrongly elsewhere."""
    path = tmp_path / "site.toml"
    path.write_text(FAULTY.replace('"node[0-3]"', '"node[0-"'))
    assert [line.partition(":")[0] for line in lines_of(path)] == ["3", "6", "16", "19", "22", "26", "30"]
    path.write_text(FAULTY.replace('cores = "0-1"', 'properties = ["x"]'))
    found = lines_of(path)
    assert [line.partition(":")[0] for line in found] == ["3", "5", "16", "19", "22", "26", "30"]
    assert "no entry gives hosts node[0-3] any cores" in found[1]


def test_a_default_duration_above_the_limit_without_queues(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text('[policy]\nlimits.duration = "1h"\njobspec.defaults.system.duration = "2h"\n')
    assert lines_of(path) == ["1: [policy] its default duration of 7200 s is above its limit of 3600 s"]


def test_policies_of_a_configuration_count_from_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_plugins_of_queues_are_tried_as_they_will_be_used(tmp_path: Path) -> None:
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
        (8, "[[scheduler]] policy: plugin 'night': no option 'hour'; it has none"),
        (4, f"[queues.b] plugins: plugin file {bad} cannot be loaded: No module named 'no_such_module'"),
        (4, "[queues.b] plugins: plugin 'quota' needs a file of queues: quota:config=q.yaml"),
        (6, f"[queues.c] plugins: there is no file {tmp_path / 'absent.py'}"),
    ]


def test_a_configuration_may_be_json_by_its_name() -> None:
    text = '{"queues": {"debug": {}}, "resource": {"exclude": "0"}}'
    assert set(parse_config(text, "conf.json").queues) == {"debug"}
    with pytest.raises(InvalidValue, match=r"conf\.json:1: \[resource\] unknown key 'excluded'"):
        parse_config('{"resource": {"excluded": "0"}}', "conf.json")
    with pytest.raises(InvalidValue, match=r"conf\.json is not JSON"):
        parse_config("{", "conf.json")
