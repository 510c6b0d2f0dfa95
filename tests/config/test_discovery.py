"""Discovery of this machine: hwloc's XML, /sys and the affinity mask, on recorded and on this machine's own data."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fluxsched.config import discovery
from fluxsched.config.discovery import (
    LSTOPO,
    TEST_SIZE_MAX,
    MachineTopology,
    discover,
    parse_topology,
    run_lstopo,
    system_cores,
    system_gpus,
    system_memory,
)
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import InvalidValue, LimitExceeded

XML = (Path(__file__).parent / "lstopo_two_gpus.xml").read_text()


def ids(*texts):
    return tuple(Idset.parse(text) for text in texts)


def test_recorded_topology():
    """Two packages of two cores of two threads; a display adapter, one GPU that two runtimes know, one AMD GPU."""
    found = parse_topology(XML, Idset.parse("0-7"))
    assert found == (ids("0,4", "2,6", "1,5", "3,7"), ("0000:3b:00.0", "0000:af:00.0"))


def test_only_what_the_affinity_mask_allows():
    assert parse_topology(XML, Idset.parse("2-4")) == (ids("4", "2", "3"), ("0000:3b:00.0", "0000:af:00.0"))


@pytest.mark.parametrize(
    "xml",
    [
        "",
        "<topology>",
        "no XML",
        "<topology/>",
        "<topology><object type='Core'><object type='PU' os_index='x'/></object></topology>",
        "<topology><object type='Core'><object type='PU'/></object></topology>",
        "<topology><object type='PU' os_index='0'/></topology>",
    ],
)
def test_a_topology_that_does_not_cover_us_is_not_believed(xml):
    assert parse_topology(xml, Idset.parse("0-1")) is None


def test_units_outside_cores_are_cores():
    units = "<object type='PU' os_index='1'/><object type='PU' os_index='0'/>"
    xml = f"<topology><object type='Machine'>{units}</object></topology>"
    assert parse_topology(xml, Idset.parse("0-1")) == (ids("1", "0"), ())


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_cores_by_sysfs(tmp_path):
    for pu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        name = "core_cpus_list" if pu != 1 else "thread_siblings_list"
        write(tmp_path / f"sys/devices/system/cpu/cpu{pu}/topology/{name}", siblings + "\n")
    assert system_cores(tmp_path, Idset.parse("0-3")) == ids("0,2", "1,3")
    assert system_cores(tmp_path, Idset.parse("1-2")) == ids("1", "2")
    assert system_cores(tmp_path, Idset.parse("0-4")) == ()
    write(tmp_path / "sys/devices/system/cpu/cpu4/topology/core_cpus_list", "garbage")
    assert system_cores(tmp_path, Idset.parse("0-4")) == ()


def test_gpus_by_their_drivers(tmp_path):
    assert system_gpus(tmp_path) == ()
    (tmp_path / "proc/driver/nvidia/gpus/0000:3b:00.0").mkdir(parents=True)
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for node, gpu_id, properties in (
        (0, "0", "simd_count 0\n"),
        (1, "4711", "domain 1\nlocation_id 49408\nname of three\n"),
        (2, "x", "domain 0\n"),
        (3, "5", "domain ?\n"),
    ):
        write(nodes / f"{node}/gpu_id", gpu_id)
        write(nodes / f"{node}/properties", properties)
    assert system_gpus(tmp_path) == ("0000:3b:00.0", "0001:c1:00.0")


LIMIT_V2, LIMIT_V1 = "memory.max", "memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("groups", "limits", "mib"),
    [
        ("", {}, 4095),
        ("0::/job/step\n", {f"job/step/{LIMIT_V2}": "max\n", f"job/{LIMIT_V2}": f"{2 << 30}\n"}, 2048),
        ("0::/job/step\n", {f"job/step/{LIMIT_V2}": f"{1 << 30}\n", f"job/{LIMIT_V2}": f"{2 << 30}\n"}, 1024),
        ("0::/not/there\n", {LIMIT_V2: f"{1 << 29}\n"}, 512),
        ("0::/\n", {LIMIT_V2: f"{1 << 60}\n"}, 4095),
        ("3:cpu:/a\n2:memory:/a/b:c\n0::/\n", {f"memory/a/b:c/{LIMIT_V1}": f"{3 << 20}\n"}, 3),
        ("2:memory:/a\n", {f"memory/a/{LIMIT_V1}": "9223372036854771712\n", LIMIT_V1: "1"}, 4095),
        ("2:cpu:/a\nnonsense\n", {f"memory/a/{LIMIT_V1}": "7\n"}, 4095),
        ("0::/\n", {LIMIT_V2: "-1\n"}, 0),
    ],
)
def test_memory_is_that_of_the_machine_or_the_lowest_limit(tmp_path, groups, limits, mib):
    """In whole MiB, also where neither of them is one."""
    write(tmp_path / "proc/meminfo", f"HugePages: 3\nMemTotal:  {(4 << 20) - 7} kB\nMemFree: 1 kB\n")
    write(tmp_path / "proc/self/cgroup", groups)
    for name, text in limits.items():
        write(tmp_path / "sys/fs/cgroup" / name, text)
    assert system_memory(tmp_path) == mib << 20
    found = discover(root=tmp_path, lstopo=lambda: None).resources()
    assert found.count("memory") == mib << 20
    assert found.count("core") > 0


@pytest.mark.parametrize("text", [None, "", "MemTotal:\n", "MemTotal: many kB\n", "MemFree: 1 kB\n"])
def test_memory_that_is_not_told_is_not_counted(tmp_path, text):
    if text is not None:
        write(tmp_path / "proc/meminfo", text)
    assert system_memory(tmp_path) == 0
    assert "amounts" not in str(discover(root=tmp_path, lstopo=lambda: None).resources().to_json())


def test_discover_asks_hwloc_then_sysfs_then_the_mask(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "affinity", lambda: Idset.parse("0-3"))
    found = discover(root=tmp_path, lstopo=lambda: XML)
    assert (found.method, found.cores, len(found.gpus)) == ("hwloc", ids("0", "2", "1", "3"), 2)
    (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    found = discover(root=tmp_path, lstopo=lambda: "broken")
    assert (found.method, found.cores, found.gpus) == ("affinity", ids("0", "1", "2", "3"), ("0000:01:00.0",))
    for pu in range(4):
        write(tmp_path / f"sys/devices/system/cpu/cpu{pu}/topology/core_cpus_list", f"{pu & 2}-{pu | 1}")
    found = discover(root=tmp_path, lstopo=lambda: None)
    assert (found.method, found.cores) == ("sysfs", ids("0-1", "2-3"))


def test_this_machine():
    found = discover(lstopo=lambda: None)
    assert found.host
    union = EMPTY
    for pus in found.cores:
        assert pus
        assert union.isdisjoint(pus)
        union |= pus
    assert union == discovery.affinity()
    assert found.resources().count("core") == len(found.cores)


@pytest.mark.skipif(shutil.which(LSTOPO) is None, reason=f"{LSTOPO} (hwloc) is not installed")
def test_lstopo_of_this_machine():
    xml = run_lstopo()
    assert xml is not None
    found = parse_topology(xml, discovery.affinity())
    assert found is not None
    assert sum(map(len, found[0])) == len(discovery.affinity())


def test_a_program_that_is_not_there_or_fails():
    assert run_lstopo("/nonexistent/lstopo") is None
    assert run_lstopo(shutil.which("false") or "false") is None


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity masks")
def test_affinity_is_the_kernels():
    assert set(discovery.affinity()) == os.sched_getaffinity(0)


def test_host_name_that_is_no_host_name(monkeypatch):
    class Name:
        nodename = "a[0]"

    monkeypatch.setattr(os, "uname", Name)
    assert discovery.host_name() == "localhost"


HERE = MachineTopology("me", ids("0,2", "1,3"), ("0000:01:00.0",), "hwloc")


def test_resources_of_a_topology():
    assert HERE.resources().summary() == "rank0/core[0-1],gpu0"
    many = HERE.resources(3)
    assert (many.summary(), str(many.nodelist)) == ("rank[0-2]/core[0-1],gpu0", "me,me,me")
    assert type(many).parse(many.to_json()) == many
    with pytest.raises(InvalidValue, match="0 targets cannot represent"):
        HERE.resources(0)
    with pytest.raises(LimitExceeded, match=f"limit of {TEST_SIZE_MAX}"):
        HERE.resources(TEST_SIZE_MAX + 1)


def test_other_core_ids():
    numbered = HERE.numbered(Idset.parse("1,4"))
    assert numbered.cores == (EMPTY, Idset.parse("0,2"), EMPTY, EMPTY, Idset.parse("1,3"))
    assert str(numbered.core_ids) == "1,4"
