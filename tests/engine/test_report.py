"""Reports of hosts and the introduction, as lines that a keeper and its instance exchange."""

from __future__ import annotations

import msgspec
import pytest

from fluxsched.config.discovery import CORES_MAX, GPUS_MAX, MachineTopology
from fluxsched.core.idset import Idset
from fluxsched.core.quantities import AMOUNT_MAX
from fluxsched.core.resources import ResourceSet
from fluxsched.engine.report import (
    INTRODUCTION_BYTES_MAX,
    LINE_BYTES_MAX,
    PART_BYTES,
    PARTS_MAX,
    REPORT_BYTES_MAX,
    TEXT_CHARS_MAX,
    HostReport,
    Introduction,
    ReportPart,
    ReportReader,
    check_versions,
    introduction_line,
    read_introduction,
    report_lines,
    resources_of,
    within_job,
)
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.executor.wire import VERSION

BOOT = "5b6c2c1e-7d8f-4a57-8f0e-000000000001"


def report(host: str = "n1", cores: int = 2, gpus: int = 0, memory_bytes: int = 0) -> HostReport:
    pus = tuple([Idset.of([id, id + cores]) for id in range(cores)])
    ids = tuple([f"0000:0{id}:00.0" for id in range(gpus)])
    return HostReport.of(MachineTopology(host, pus, ids, "sysfs", memory_bytes), BOOT)


def introduction() -> Introduction:
    return Introduction("tcp://10.0.0.1:5555", "ab" * 32, "cd" * 32, "ef" * 32, 2.0, 10.0)


def read(lines: bytes) -> list[HostReport]:
    reader = ReportReader()
    return [found for line in lines.splitlines() if (found := reader.read(line)) is not None]


def test_a_report_is_one_line_and_describes_the_machine() -> None:
    wanted = report("n1", 4, 2, 1 << 30)
    lines = report_lines(wanted)
    assert lines.count(b"\n") == 1
    assert lines.endswith(b"\n")
    assert read(lines) == [wanted]
    topology = wanted.topology()
    assert topology.cores[1] == Idset.of([1, 5])
    assert topology.gpus == ("0000:00:00.0", "0000:01:00.0")
    assert topology.memory_bytes == 1 << 30


def test_a_report_may_be_of_another_host_name() -> None:
    topology = report("real").topology()
    assert HostReport.of(topology, BOOT, "p0").host == "p0"


def test_cores_without_processing_units_are_left_out() -> None:
    topology = MachineTopology("n1", (Idset(), Idset.of([3])), (), "hwloc")
    assert HostReport.of(topology, BOOT).cores == ["3"]


def test_a_long_report_is_sent_in_parts_that_may_mix_with_those_of_other_hosts() -> None:
    one, other = report("n1", 256), report("n2", 256)
    lines, others = report_lines(one).splitlines(), report_lines(other).splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) < LINE_BYTES_MAX
    assert len(lines[0]) > PART_BYTES
    mixed = [line for both in zip(lines, others, strict=True) for line in both]
    assert read(b"\n".join(mixed)) == [one, other]
    assert read(b"\n".join(reversed(lines))) == [one]


def test_the_largest_host_fits_into_a_report() -> None:
    assert read(report_lines(report("n1", CORES_MAX)))[0].topology().cores[4095] == Idset.of([4095, 8191])


@pytest.mark.parametrize("line", [b"", b"Welcome to n1", b'{"type":"other"}', b"\xff\xfe", b"srun: error"])
def test_other_lines_are_no_reports(line: bytes) -> None:
    assert ReportReader().read(line) is None


def changed(**values: object) -> bytes:
    return msgspec.json.encode({"type": "host-report", **msgspec.to_builtins(report()), **values})


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"type":"host-report"', "cannot be read"),
        (b'{"type":"host-report"}', "missing required field"),
        (changed(host="a b"), "has spaces"),
        (changed(cores=[]), "at least one"),
        (changed(cores=["0", ""]), "processing units of its own"),
        (changed(cores=["0-1", "1"]), "processing units of its own"),
        (changed(cores=["x"]), "idset"),
        (changed(cores=[str(id) for id in range(CORES_MAX + 1)]), f"{CORES_MAX + 1} cores are above"),
        (changed(gpus=["g"] * (GPUS_MAX + 1)), f"{GPUS_MAX + 1} GPUs are above"),
        (changed(memory_bytes=AMOUNT_MAX + 1), f"not within 0-{AMOUNT_MAX}"),
        (changed(memory_bytes=-1), "not within"),
        (changed(method="m" * (TEXT_CHARS_MAX + 1)), f"limit of {TEXT_CHARS_MAX} characters"),
        (changed(gpus=["g" * REPORT_BYTES_MAX]), f"the limit is {REPORT_BYTES_MAX}"),
        (msgspec.json.encode(ReportPart("n1", 0, PARTS_MAX + 1, b"")), f"the limit is {PARTS_MAX}"),
        (msgspec.json.encode(ReportPart("n1", 2, 2, b"")), "part 2 of 2"),
        (msgspec.json.encode(ReportPart("n1", 0, 1, b"no report")), "cannot be read"),
    ],
)  # fmt: skip
def test_a_wrong_report_is_refused(line: bytes, text: str) -> None:
    with pytest.raises(InvalidValue, match=text):
        ReportReader().read(line)


def test_a_report_above_the_limit_is_not_written() -> None:
    with pytest.raises(LimitExceeded, match=str(REPORT_BYTES_MAX)):
        report_lines(msgspec.structs.replace(report(), gpus=["g" * 1000] * 200))


def test_resources_have_one_target_a_host_in_the_order_of_the_reports() -> None:
    found = resources_of([report("b", 2), report("a", 4, 1, 1 << 20), report("c", 2)])
    assert found.nodelist.hosts == ("b", "a", "c")
    assert str(found.children(0)) == "core[0-1]"
    assert str(found.children(1)) == f"core[0-3],gpu0,memory:{1 << 20}"
    assert found.children(2) == found.children(0)
    assert len(found.entries) == 2
    assert found == type(found).parse(found.to_json())


def test_hosts_that_report_twice_are_named() -> None:
    with pytest.raises(InvalidValue, match=r"more than one report of n1, n3: start one keeper a host"):
        resources_of([report(host) for host in ("n1", "n2", "n3", "n1", "n3")])


def test_in_a_job_hosts_have_its_gpus_and_amounts_and_the_cores_that_are_bound_to_it() -> None:
    reported = resources_of([report("b", 2, 4, 1 << 30), report("a", 1, 4, 1 << 30)])
    lite = [{"rank": "4", "children": {"core": "7", "gpu": "1"}, "amounts": {"memory": 512}},
            {"rank": "9", "children": {"core": "2-3", "gpu": "0,3"}}]  # fmt: skip
    execution = {"R_lite": lite, "nodelist": ["a", "b"], "properties": {"big": "9"}, "shared": {"licence": 2}}
    found = within_job(reported, ResourceSet.parse({"version": 1, "execution": execution}))
    assert str(found.nodelist) == "b,a"
    assert [str(found.children(rank).cores) for rank in (0, 1)] == ["0-1", "0"]
    assert [str(found.children(rank).gpus) for rank in (0, 1)] == ["0,3", "1"]
    assert [found.children(rank).amounts for rank in (0, 1)] == [(), (("memory", 512),)]
    assert {name: str(ranks) for name, ranks in found.properties.items()} == {"big": "0"}
    assert found.shared == (("licence", 2),)


def test_no_report_makes_no_resources() -> None:
    with pytest.raises(InvalidValue, match="no host has reported"):
        resources_of([])


def test_hosts_of_another_version_are_named() -> None:
    check_versions([report("n1")])
    other = msgspec.structs.replace(report("n2"), version=VERSION + 1)
    with pytest.raises(InvalidValue, match=rf"keepers of n2 \({VERSION + 1}\) do not understand version {VERSION}"):
        check_versions([report("n1"), other])


def test_an_introduction_is_one_line() -> None:
    line = introduction_line(introduction())
    assert line.count(b"\n") == 1
    assert read_introduction(line) == introduction()
    assert read_introduction(line).own_keys().secret == b"\xef" * 32


def test_an_introduction_shows_no_key() -> None:
    assert repr(introduction()) == "Introduction('tcp://10.0.0.1:5555', ...)"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"secret_key": "sEcReT"}, "secret key: a key has 64 hexadecimal digits"),
        ({"server_key": ""}, "server key"),
        ({"ping_s": 10.0}, "do not fit"),
        ({"ping_s": 0.0}, "do not fit"),
        ({"endpoint": 3}, "cannot be read"),
        ({"endpoint": "t" * INTRODUCTION_BYTES_MAX}, f"limit of {INTRODUCTION_BYTES_MAX}"),
    ],
)
def test_a_wrong_introduction_is_refused_without_its_secret(values: dict[str, object], text: str) -> None:
    line = msgspec.json.encode({"type": "introduction", **msgspec.to_builtins(introduction()), **values})
    with pytest.raises(InvalidValue, match=text) as caught:
        read_introduction(line)
    assert "sEcReT" not in str(caught.value)
    assert "efef" not in str(caught.value)
