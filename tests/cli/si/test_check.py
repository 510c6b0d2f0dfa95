"""`fluxsched si check`: faults with their paths, or what a configuration says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("yaml")

GOOD = """
partitions:
- name: default
  placementrules: [{name: provided, create: true}, {name: tag, value: namespace}]
  queues:
  - name: root
    submitacl: "*"
    queues:
    - {name: batch, maxapplications: 5, resources: {guaranteed: {vcore: 2, memory: 4Gi}, max: {vcore: 2500m}}}
    - name: teams
      queues: [{name: gpu, properties: {application.sort.policy: fair}, limits: [{users: ["*"], maxapplications: 1}]}]
"""
SUMMARY = """\
partition default: node order fair, preemption off
placement rules: provided (creating), tag namespace
submission: open to everyone
root
  batch  guaranteed memory 4Gi, vcore 2; max vcore 2500m; max applications 5; fifo
  teams
    gpu  limits 1; fair
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "queues.yaml"


def test_a_configuration_without_faults_is_summed_up(cli, file: Path) -> None:
    file.write_text(GOOD)
    done = cli("si", "check", str(file))
    assert (done.code, done.out, done.err) == (0, SUMMARY, "")


def test_all_faults_are_told_with_their_paths(cli, file: Path) -> None:
    file.write_text("partitions: [{queues: [{name: a b}, {name: c, resources: {max: {vcore: x}}}]}]")
    faults = [
        "partitions[0].queues[0].name: 'a b' cannot be a queue's name: use 1 to 64 letters, digits, `_` and `-`",
        "partitions[0].queues[1].resources.max.vcore: 'x' is not a quantity such as 2, 500m or 4Gi",
    ]
    done = cli("si", "check", str(file))
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines() == [f"{file}: {fault}" for fault in faults]
    done = cli("si", "check", "--json", str(file))
    assert (done.code, json.loads(done.out)["faults"]) == (1, faults)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a: [", "not YAML"),
        (b"\xff", "not UTF-8: look at byte 0"),
        (b"#" * (1 << 20) + b"#", "above the limit of 1048576"),
        (b"a: \0", "not YAML"),
    ],
)
def test_what_is_not_yaml_is_told(cli, file: Path, content: bytes, says: str) -> None:
    file.write_bytes(content)
    done = cli("si", "check", str(file))
    assert (done.code, done.out) == (1, "")
    assert says in done.err


def test_a_file_that_is_not_there_is_told(cli, file: Path) -> None:
    done = cli("si", "check", str(file))
    assert (done.code, done.out) == (1, "")
    assert "No such file" in done.err
