"""Where R comes from: files, hwloc, this machine, Slurm's words, and its expiration."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace

import pytest

from fluxsched.config.discovery import (
    CORES_MAX,
    GPUS_MAX,
    TEST_SIZE_MAX,
    MachineTopology,
)
from fluxsched.config.inventory import (
    Sources,
    build_inventory,
    fake_resources,
    read_resources,
    resources_of_entries,
    unexpired,
)
from fluxsched.config.reader import Config, HostEntry, parse_config
from fluxsched.core.hostlist import HOSTS_MAX
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.instance.restarts import with_ranks
from fluxsched.resource.inventory import Inventory
from fluxsched.system.clock import local_moment

# Sources: each way resources come in, which one wins, and groups looked up among the targets there are.


HERE = MachineTopology("me", (Idset.parse("0,2"), Idset.parse("1,3")), ("0000:01:00.0",), "hwloc")
R_TEXT = json.dumps(
    {
        "version": 1,
        "execution": {
            "R_lite": [{"rank": "0-3", "children": {"core": "0-1"}}],
            "nodelist": ["node[0-2],me"],
            "properties": {"ssd": "1", "+other": "2"},
            "nslots": 4,
        },
    }
)


def here():
    return HERE


def unasked():
    raise AssertionError("this machine does not matter here")


def texts(sets):
    return {name: str(ids) for name, ids in sets.items()}


def test_discovery_is_the_last_resort_and_dynamic():
    found = build_inventory(None, topology=here)
    assert (found.inventory.method, found.inventory.dynamic) == ("dynamic-discovery", True)
    assert found.inventory.resources.summary() == "rank0/core[0-1],gpu0"
    assert (found.real, found.made_up, found.topology, found.groups) == (True, False, HERE, {"exclude": EMPTY})


def test_made_up_targets():
    found = build_inventory(None, fake="1000x64+4", topology=unasked)
    assert found.inventory.resources.summary() == "rank[0-999]/core[0-63],gpu[0-3]"
    assert str(found.inventory.resources.nodelist) == "fake[0-999]"
    assert (found.inventory.method, found.inventory.dynamic) == ("configuration", False)
    assert (found.real, found.made_up, found.topology) == (False, True, None)
    assert str(fake_resources("1x1").nodelist) == "fake0"


@pytest.mark.parametrize(
    "spec", ["", "4", "4x", "x4", "4x4+", "-1x4", "4X4", "4x4+1 ", "٤x4", "4x4x4", "9" * 10 + "x1", "1e3x4"]
)
def test_a_text_that_is_no_made_up_machine(spec):
    with pytest.raises(InvalidValue, match="is not HOSTSxCORES or HOSTSxCORES"):
        build_inventory(None, fake=spec, topology=unasked)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (f"{HOSTS_MAX + 1}x1", f"{HOSTS_MAX + 1} hosts is not within 1..{HOSTS_MAX}"),
        ("0x4", "0 hosts is not within"),
        ("4x0", "0 cores a host is not within"),
        (f"4x{CORES_MAX + 1}", f"cores a host is not within 1..{CORES_MAX}"),
        (f"1x1+{GPUS_MAX + 1}", f"GPUs a host is not within 0..{GPUS_MAX}"),
    ],
)
def test_limits_of_made_up_machines(spec, told):
    with pytest.raises(LimitExceeded, match=told):
        fake_resources(spec)


def test_several_targets_that_stand_for_this_machine():
    this = replace(HERE, memory_bytes=1 << 30)
    found = build_inventory(None, test_size=4, topology=lambda: this)
    assert found.inventory.resources.count("memory") == 0, "there is only once as much, for all of them"
    assert found.inventory.resources.summary() == "rank[0-3]/core[0-1],gpu0"
    assert str(found.inventory.resources.ranks_of("me")) == "0-3"
    assert (found.real, found.made_up, found.inventory.dynamic, found.topology) == (True, False, False, this)
    for n in (0, -1, TEST_SIZE_MAX + 1):
        with pytest.raises(InvalidValue, match=f"{n} targets"):
            build_inventory(None, test_size=n, topology=here)


def test_resources_of_a_file(tmp_path):
    path = tmp_path / "R.json"
    path.write_text(R_TEXT)
    found = build_inventory(None, r_path=path, topology=here)
    resources = found.inventory.resources
    assert (resources.summary(), resources.nslots, list(resources.properties)) == ("rank[0-3]/core[0-1]", None, ["ssd"])
    assert (found.inventory.method, found.real, found.made_up, found.topology) == ("configuration", False, False, HERE)


def test_cores_that_this_machine_does_not_have_are_not_pinned(tmp_path):
    path = tmp_path / "R.json"
    path.write_text(R_TEXT.replace('"0-1"', '"0-63"'))
    found = build_inventory(None, r_path=path, topology=here)
    assert found.topology is not None
    assert (found.topology.host, found.topology.cores) == ("me", ())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "R is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"version": 2}', "version must be 1"),
        (R_TEXT.replace("node[0-2],me", "me"), "nodelist names 1 host for 4 ranks"),
        (json.dumps({"version": 1, "execution": {"R_lite": []}}), "R has no targets"),
        (
            json.dumps({"version": 1, "execution": {"R_lite": [{"rank": "0", "children": {"core": "0"}}]}}),
            "R has no nodelist",
        ),
    ],
)
def test_a_file_with_bad_resources_is_named(tmp_path, text, told):
    path = tmp_path / "R.json"
    path.write_text(text)
    with pytest.raises(InvalidValue, match="R.json: .*" + told.replace("[", r"\[")):
        read_resources(path)
    config = parse_config('[resource]\n\npath = "R.json"', str(tmp_path / "s.toml"))
    with pytest.raises(InvalidValue, match=r"s\.toml:3: \[resource\] path: .*R\.json: .*" + told.replace("[", r"\[")):
        build_inventory(config, topology=here)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidValue, match="cannot be read: No such file"):
        build_inventory(None, r_path=tmp_path / "none", topology=here)


def test_the_configuration_names_a_file(tmp_path):
    (tmp_path / "R.json").write_text(R_TEXT)
    config = parse_config('resource.path = "R.json"', str(tmp_path / "s.toml"))
    assert build_inventory(config, enclosing=HERE.resources(), topology=here).inventory.resources.count("node") == 4


ENTRIES = (
    HostEntry("a[0-3],b", "0-3"),
    HostEntry("b,c", "4-7", "0-1", ("gpu",)),
    HostEntry("a[1-2],c,c", properties=("ssd", "gpu")),
)


def test_entries_about_the_same_host_add_up():
    resources = resources_of_entries(ENTRIES)
    assert resources.summary() == "rank[0-3]/core[0-3] rank4/core[0-7],gpu[0-1] rank5/core[4-7],gpu[0-1]"
    assert str(resources.nodelist) == "a[0-3],b,c"
    assert texts(resources.properties) == {"gpu": "1-2,4-5", "ssd": "1-2,5"}
    assert ResourceSet.parse(resources.to_json()) == resources


def test_amounts_of_hosts_and_of_the_instance():
    text = "config = [{hosts = 'a,b', cores = '0', amounts = {memory = '1KiB'}}, {hosts = 'b', amounts.memory = 8}]"
    config = parse_config(f"[resource]\n{text}\nshared.matlab = 3", "s.toml")
    resources = build_inventory(config, topology=here).inventory.resources
    assert resources.summary() == "rank[0-1]/core0,memory:1024 matlab:3"


ELSEWHERE = """\
[resource]
shared.matlab = 3

[[resource.config]]
hosts = "fake[0-9],fake1,me"
cores = "0"

[[resource.config]]
hosts = "fake[1-2,8-9]"
properties = ["gpu", "ssd"]
amounts = { memory = 8 }

[[resource.config]]
hosts = "fake2,fake[2-3],me"
properties = ["ssd"]
gpus = "0-3"
amounts = { memory = 5, fpga = 1 }
"""


@pytest.fixture
def warned(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("fluxsched"), "propagate", True)  # whoever set up the log before
    return caplog


def test_made_up_targets_keep_what_the_configuration_says_of_hosts_of_their_names(
    warned,
):
    config = parse_config(ELSEWHERE, "s.toml")
    resources = build_inventory(config, fake="5x2", topology=unasked).inventory.resources
    assert resources.summary() == (
        "rank[0,4]/core[0-1] rank1/core[0-1],memory:8 rank2/core[0-1],fpga:1,memory:8 "
        "rank3/core[0-1],fpga:1,memory:5 matlab:3"
    )
    assert texts(resources.properties) == {"gpu": "1-2", "ssd": "1-3"}
    assert warned.messages == [
        "s.toml:4: [[resource.config]]: properties and amounts of hosts fake[8-9],me are dropped: the hosts here are "
        "fake[0-4]"
    ]


def test_several_targets_of_this_machine_keep_them_too(warned):
    config = parse_config(ELSEWHERE, "s.toml")
    resources = build_inventory(config, test_size=2, topology=here).inventory.resources
    assert resources.summary() == "rank[0-1]/core[0-1],gpu0,fpga:1,memory:5 matlab:3"
    assert texts(resources.properties) == {"ssd": "0-1"}
    assert [text.endswith("fake[1-2,8-9,3] are dropped: the hosts here are me") for text in warned.messages] == [True]


def test_nothing_is_said_of_hosts_that_only_have_cores(warned):
    config = parse_config("[[resource.config]]\nhosts = 'a'\ncores = '0'", "s.toml")
    assert build_inventory(config, fake="1x1", topology=unasked).inventory.resources.summary() == "rank0/core0"
    assert warned.messages == []


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ((HostEntry("a", "0"), HostEntry("b[0-1],a", properties=("x",))), r"no entry gives hosts b\[0-1\] any cores"),
        ((HostEntry("", "0"),), "no entry names a host"),
        ((HostEntry(f"a[1-{HOSTS_MAX}]", "0"), HostEntry("b", "0")), f"{HOSTS_MAX + 1} hosts are above the limit"),
    ],
)
def test_entries_that_make_no_machine(entries, told):
    with pytest.raises(InvalidValue, match=told):
        resources_of_entries(entries)


SITE = """\
[[resource.config]]
hosts = "node[0-9]"
cores = "0-3"

[resource]
exclude = "9"

[resource.groups]
batch = "node[0-3]"
debug = "4,6"

[queues.batch]
hosts = "node[0-1]"

[queues.any]
hosts = "all"
"""


def test_groups_and_queue_members_of_the_configuration():
    found = build_inventory(parse_config(SITE, "s.toml"), enclosing=HERE.resources(), topology=here)
    assert texts(found.groups) == {"batch": "0-3", "debug": "4,6", "exclude": "9"}
    assert texts(found.inventory.resources.properties) == {"+batch": "0-1", "+any": "0-9"}
    assert (found.inventory.method, found.real, found.made_up) == ("configuration", False, False)


def test_groups_hold_when_the_resources_are_replaced():
    config = parse_config(SITE.replace("node", "fake"), "s.toml")
    found = build_inventory(config, fake="20x2", topology=unasked)
    assert texts(found.groups) == {"batch": "0-3", "debug": "4,6", "exclude": "9"}


def test_every_group_and_queue_with_unknown_targets_is_named():
    config = parse_config(SITE, "s.toml")
    with pytest.raises(InvalidValue) as caught:
        build_inventory(config, fake="5x2", topology=unasked)
    assert str(caught.value).splitlines() == [
        "s.toml:6: [resource] exclude: unknown ranks 9: the ranks here are 0-4",
        "s.toml:9: [resource.groups] batch: unknown hosts node[0-3]: give hosts of this instance, or ranks",
        "s.toml:10: [resource.groups] debug: unknown ranks 6: the ranks here are 0-4",
        "s.toml:13: [queues.batch] hosts: unknown hosts node[0-1]: give hosts of this instance, or ranks",
    ]


def test_groups_that_overlap_name_line_targets_and_both_groups():
    text = SITE.replace('"4,6"', '"2-4"').replace('exclude = "9"', 'exclude = "node[4,0]"')
    with pytest.raises(InvalidValue) as caught:
        build_inventory(parse_config(text, "s.toml"), topology=here)
    assert str(caught.value).splitlines() == [
        "s.toml:6: [resource] exclude: rank 0 (node0) in group 'batch' too (s.toml:9): a target belongs to one group",
        "s.toml:6: [resource] exclude: rank 4 (node4) in group 'debug' too (s.toml:10): a target belongs to one group",
        "s.toml:10: [resource.groups] debug: ranks 2-3 (node[2-3]) in group 'batch' too (s.toml:9): a target belongs "
        "to one group",
    ]


def test_spares_are_a_group_that_no_scheduler_acquires():
    def groups(text):
        return build_inventory(parse_config(text, "s.toml"), fake="5x2", topology=unasked).groups

    by_key, by_group = groups('[resource]\nspares = "3-4"'), groups('[resource.groups]\nspares = "fake[3-4]"')
    assert by_key == by_group
    assert str(by_key["spares"]) == "3-4"
    for text, told in (
        ('spares = "4"\nexclude = "4"', "s.toml:2: [resource] spares: rank 4 (fake4) in group 'exclude' too"),
        ('spares = "4"\ngroups.spares = "3"', "s.toml:2: [resource] spares: is [resource.groups] spares too"),
        ('spares = "7"', "s.toml:2: [resource] spares: unknown ranks 7"),
    ):
        with pytest.raises(InvalidValue, match=re.escape(told)):
            groups(f"[resource]\n{text}")
    with pytest.raises(InvalidValue, match="group 'spares' cannot be acquired"):
        parse_config('[resource]\nspares = "4"\n[[scheduler]]\ngroups = ["spares"]\npolicy = "fifo"', "s.toml")


def test_exclude_among_the_groups_has_its_own_line():
    config = parse_config('[resource.groups]\nexclude = "7"', "s.toml")
    with pytest.raises(InvalidValue, match=r"^s\.toml:2: \[resource\.groups\] exclude: unknown ranks 7"):
        build_inventory(config, fake="5x2", topology=unasked)


def test_withheld_cores_are_in_no_r():
    text = (
        '[resource]\nwithhold = "0-1@fake[0-1] 3@property:ssd"\n'
        '[[resource.config]]\nhosts = "fake[1-2]"\nproperties = ["ssd"]'
    )
    found = build_inventory(parse_config(text, "s.toml"), fake="4x4+1", topology=unasked)
    assert found.inventory.resources.summary() == (
        "rank0/core[2-3],gpu0 rank1/core2,gpu0 rank2/core[0-2],gpu0 rank3/core[0-3],gpu0"
    )
    assert str(found.inventory.resources.nodelist) == "fake[0-3]"
    assert {rank: str(parts) for rank, parts in found.inventory.withheld.of.items()} == {
        0: "core[0-1]", 1: "core[0-1,3]", 2: "core3"
    }  # fmt: skip


def test_what_is_configured_keeps_its_hosts_in_the_ranks_of_the_last_session():
    text = (
        '[resource]\nwithhold = "0@fake0"\n[resource.groups]\nb = "fake1"\n'
        '[[outages]]\nname = "upd"\ntargets = "fake0"\nfrom = 100\nfor = "1h"\nreason = "x"\n'
    )
    found = build_inventory(parse_config(text, "s.toml"), fake="3x2", topology=unasked)
    last = found.inventory.resources.rerank_by({0: 1, 1: 0, 2: 2}).to_json()
    again = with_ranks(found, {"R": last}, lambda: True)
    assert again.inventory.resources.summary() == "rank[0,2]/core[0-1] rank1/core1"
    assert ([*again.inventory.withheld.of], str(again.groups["b"])) == ([1], "0")
    assert [str(each.targets) for each in again.outages] == ["1"]


@pytest.mark.parametrize(
    ("withhold", "named"),
    [
        ("0-1@fake[0-9]", r"\[resource\] withhold 0-1@fake\[0-9\]: unknown hosts fake\[5-9\]"),
        ("2@0", r"rank 0 \(fake0\) have no cores 2, or no others"),
        ("0-1@all", r"ranks 0-4 \(fake\[0-4\]\) have no cores 0-1, or no others: leave each a core"),
        ("0-1", "'0-1' is not CORES@TARGETS"),
        ("x@0", "'x' is neither"),
    ],
)
def test_withheld_cores_that_cannot_be_have_their_line(withhold, named):
    def start():
        config = parse_config(f'[resource]\nwithhold = "{withhold}"', "s.toml")
        build_inventory(config, fake="5x2", topology=unasked)

    with pytest.raises(InvalidValue, match=rf"s\.toml:2: .*{named}"):
        start()


def test_a_queue_needs_a_host():
    with pytest.raises(InvalidValue, match=r"s\.toml:2: \[queues\.a\] hosts: names no host"):
        build_inventory(parse_config('[queues.a]\nhosts = ""', "s.toml"), fake="5x2", topology=unasked)


def test_entries_that_are_wrong_have_a_line():
    config = parse_config('\n[[resource.config]]\nhosts = "a"\nproperties = ["x"]', "s.toml")
    with pytest.raises(InvalidValue, match=r"^s\.toml:2: \[\[resource\.config\]\]: no entry gives hosts a any cores"):
        build_inventory(config, topology=here)


def job_r(ranks, cores, nodelist):
    entry = {"rank": ranks, "children": {"core": cores}}
    execution = {"R_lite": [entry], "nodelist": [nodelist], "nslots": 2, "starttime": 1.0, "expiration": 99.0}
    return ResourceSet.parse({"version": 1, "execution": execution})


def test_the_enclosing_job_is_reranked_and_keeps_its_cores_and_its_end():
    found = build_inventory(Config(), enclosing=job_r("7", "3,5", "me"), topology=here)
    resources = found.inventory.resources
    assert (resources.summary(), resources.nslots, resources.expiration_s) == ("rank0/core[3,5]", None, 99.0)
    assert (found.inventory.method, found.inventory.dynamic) == ("job-info", False)
    assert (found.real, found.made_up) == (True, False)
    assert found.topology is not None
    assert (found.topology.cores[3], found.topology.cores[5]) == HERE.cores


@pytest.mark.parametrize(
    ("enclosing", "summary", "real"),
    [
        (job_r("4-5", "0-63", "fake[4-5]"), "rank[0-1]/core[0-63]", False),
        (job_r("3", "0-1", "other"), "rank0/core[0-1]", False),
        (job_r("3", "0-2", "me"), "rank0/core[0-2]", True),
    ],
)
def test_an_enclosing_job_whose_cores_are_not_to_be_told_here(enclosing, summary, real):
    found = build_inventory(None, enclosing=enclosing, topology=here)
    assert found.inventory.resources.summary() == summary
    assert (found.real, found.made_up, found.topology) == (real, True, None)


def test_an_enclosing_job_without_targets():
    with pytest.raises(InvalidValue, match="no targets"):
        build_inventory(None, enclosing=EMPTY_R, topology=here)


def test_only_one_source_is_named(tmp_path):
    with pytest.raises(InvalidValue, match="--R and --fake exclude each other"):
        build_inventory(None, r_path=tmp_path, fake="1x1", topology=here)


# Resources whose time is over are refused, with the time and the remedy.


def found(expiration_s, method):
    resources = fake_resources("2x2").with_expiration(0.0, expiration_s)
    return Sources(Inventory(resources, method), {}, real=False, made_up=False, topology=None)


def test_the_enclosing_jobs_time_is_over():
    """An instance in a job that has ended, or whose R was kept."""
    with pytest.raises(InvalidValue, match=r"the resources of the enclosing job expired at .*start inside a job that"):
        unexpired(found(100.0, "job-info"), None, 100.0)


@pytest.mark.parametrize("expiration_s", [0.0, 100.5])
def test_no_end_or_a_later_one_is_taken(expiration_s):
    sources = found(expiration_s, "configuration")
    assert unexpired(sources, None, 100.0) is sources


def test_an_r_that_was_sent_has_no_file():
    with pytest.raises(InvalidValue, match=r"^R expired at "):
        unexpired(found(100.0, "configuration"), None, 200.0)


def test_times_beyond_the_calendar():
    assert local_moment(1e300).endswith(" s since the epoch")
