"""Parsers of files: the configuration, YAML of the scheduler interface, traces, topologies."""

from __future__ import annotations

import io
from pathlib import Path

from fluxsched.config.discovery import parse_topology
from fluxsched.config.inventory import fake_resources
from fluxsched.config.reader import changes, in_force, read_config
from fluxsched.core.idset import Idset
from fluxsched.core.text import toml_text
from fluxsched.core.topology import Topology, parse_topology_conf
from fluxsched.sim.traces import print_lines, print_swf, read_lines, read_swf
from fluxsched.yunikorn.config import parse_quantity, quantity_text
from fluxsched.yunikorn.config import read_config as read_si_config
from fluxsched.yunikorn.sections import load_yaml
from tests.fuzz.target import Target, of_text, texts

ROOT = Path(__file__).parents[3]


def _config(text: str) -> None:
    config, faults = read_config(text, "site.toml")
    for fault in faults:
        str(fault)
    if not faults:
        again, others = read_config(toml_text(config.raw), "site.toml")
        assert not others, others
        assert again.raw == config.raw
        assert not changes(config.raw, again.raw)
        in_force(config.raw, again.raw)


def _yaml(text: str) -> None:
    load_yaml(text)


def _swf(text: str) -> None:
    trace = read_swf(io.StringIO(text), "trace")
    again = read_swf(print_swf(trace), "trace")
    assert len(again.jobs) == len(trace.jobs)


def _json_lines(text: str) -> None:
    trace = read_lines(io.StringIO(text), "trace")
    again = read_lines(print_lines(trace), "trace")
    assert len(again.jobs) == len(trace.jobs)


def _topology(text: str) -> None:
    found = parse_topology(text, Idset.span(0, 3))
    assert found is None or found[0]


def _switches(text: str) -> None:
    found, lines = parse_topology_conf(text, "topology.conf")
    assert Topology.parse(found.to_json()) == found
    assert lines.keys() == found.switches.keys()


def _quantity(text: str) -> None:
    kind, _, quantity = text.partition(" ")
    amount = parse_quantity(kind, quantity)
    assert parse_quantity(kind, quantity_text(kind, amount)) == amount


SI_CONFIG = """
partitions:
  - name: default
    placementrules:
      - name: tag
        value: namespace
        create: true
        filter: {type: allow, users: [a, "b.*"], groups: [g]}
      - {name: fixed, value: root.x, parent: {name: user, create: true}}
    limits: [{limit: all, users: ["*"], maxapplications: 3, maxresources: {vcore: 10, memory: 1Gi}}]
    preemption: {enabled: true}
    nodesortpolicy: {type: binpacking, resourceweights: {vcore: 1.5}}
    queues:
      - name: root
        submitacl: "*"
        queues:
          - &q
            name: a
            parent: false
            properties: {application.sort.policy: fair, preemption.delay: 1s, priority.offset: "3"}
            resources: {guaranteed: {vcore: 500m, memory: 2G}, max: {vcore: "3", nvidia.com/gpu: 4}}
            maxapplications: 5
          - <<: *q
            name: b
            childtemplate: {maxapplications: 2, resources: {max: {vcore: 1}}}
"""
SWF = """; Version: 2.2
; MaxProcs: 128
1 0 10 100 4 -1 -1 4 200 -1 1 3 2 1 1 -1 -1 -1
2 5.5 -1 60 -1 -1 -1 8 -1 -1 0 -1 -1 -1 -1 -1 1 10
"""
JSON_TRACE = """{"trace": 1, "name": "x", "machine": {"targets": 16, "cores": 64, "gpus": 4}}
{"job": 1, "submit": 0, "run": 10, "duration": 20, "nslots": 2, "cores": 2, "gpus": 1, "user": "a", "queue": "q"}
{"job": "b", "submit": 1.5, "run": 1, "nodes": 2, "exclusive": true, "constraint": {"properties": ["x"]}, "urgency": 20}
"""


def _configs() -> list[bytes]:
    sites = [*ROOT.glob("examples/*.toml"), *ROOT.glob("tests/**/site.toml")]
    return [
        *(file.read_bytes() for file in sites),
        b'[resource]\nexclude = "0-3"\n[resource.groups]\nx = "fake[0-1]"\n'
        b'[queues.a]\npolicy = "easy:order=sjf"\ngroup = "x"\n',
        b'[[resource.config]]\nhosts = "a[0-3]"\ncores = "0-3"\nproperties = ["x"]\namounts = {memory = "4GiB"}\n',
        b'[[topology.switch]]\nname = "l0"\nhosts = "a[0-3]"\n[[topology.switch]]\nname = "s"\nswitches = ["l0"]\n',
        b'[fair]\nsignal = "decayed"\nhalf-life = "7d"\n[fair.banks.a]\nweight = 2\ncap = 1.5\nusers = {ann = 2}\n',
        b'[policy]\nunsatisfiable = "deny"\n[policy.jobspec.defaults.system]\nduration = "1h"\nqueue = "a"\n'
        b'[queues.a.policy.limits]\nduration = "2h"\n[policy.limits.job-size.max]\nnnodes = 4\n'
        b'[exec]\nkill-timeout = "5s"\n[access]\nallow-guest-user = true\n',
    ]


TARGETS = (
    Target(
        "config",
        of_text(_config),
        _configs,
        words=(
            "[resource]",
            "[[resource.config]]",
            "[queues.a]",
            "[fair.banks.x]",
            " = ",
            "true",
            "1979-05-27T07:32:00Z",
            "{a = 1}",
            "[policy.limits]",
            "0x10",
            "1_000",
            '"""',
            "[[a]]",
            "a.b.c",
        ),
    ),
    Target(
        "topology-conf",
        of_text(_switches),
        texts(
            "SwitchName=s0 Nodes=t[0-5]\nSwitchName=s1 \\\n Nodes=t6 LinkSpeed=9 # x\nSwitchName=s2 Switches=s0,s1\n",
            "SwitchName=a Switches=b\nSwitchName=b Switches=a\n",
            'switchname = "a" Nodes=x,x\nSwitchName=a Nodes=x Switches=a\nSwitchName=b\n',
            "BlockName=b Nodes=x\nNodes=y\nSwitchName=a,b Nodes=x[\n",
        ),
        words=("SwitchName=", "Switches=", "Nodes=", "LinkSpeed=", "\\\n", "#", '"', "s[0-1]", "BlockName="),
    ),
    Target(
        "si-config",
        of_text(lambda text: read_si_config(text)),
        texts(SI_CONFIG, "partitions:\n- name: default\n  queues: [{name: root}]\n"),
        words=(
            "&a",
            "*a",
            "<<: *q",
            "- ",
            ": ",
            "\n  ",
            "!!int",
            "|",
            ">",
            "name:",
            "resources:",
            "---\n",
            "? ",
            "1Gi",
            "m",
        ),
    ),
    Target(
        "yaml",
        of_text(_yaml),
        texts(SI_CONFIG, "a: [1, {b: c}]\n? [x]\n: y\n", "&a [*a]"),
        words=("&a", "*a", "!!set", "? ", "---", "...", "%YAML"),
    ),
    Target(
        "si-quantity",
        of_text(_quantity),
        texts("vcore 500m", "memory 2Gi", "x 1e3", "vcore 1.5", "memory 1E"),
        words=("Ki", "m", "E", "e", ".", "n"),
    ),
    Target("swf", of_text(_swf), texts(SWF), words=("-1", "1e5", "nan", "; MaxProcs: ", "\n", " ")),
    Target(
        "json-trace",
        of_text(_json_lines),
        texts(JSON_TRACE),
        words=('"job"', '"submit"', '"jobspec"', "\n", '"nodes"', '"constraint"'),
    ),
    Target(
        "topology",
        of_text(_topology),
        texts(
            '<topology><object type="Machine"><object type="Core"><object type="PU" os_index="0"/>'
            '<object type="PU" os_index="1"/></object>'
            '<object type="PU" os_index="2"/><object type="PU" os_index="3"/>'
            '<object type="PCIDev" pci_busid="0000:01:00.0">'
            '<object type="OSDev" name="cuda0"/></object></object></topology>'
        ),
        words=(
            "<object ",
            "/>",
            "</object>",
            'type="PU"',
            'os_index="1"',
            "&lt;",
            "<!DOCTYPE a [<!ENTITY b 'c'>]>",
            "&b;",
            "<![CDATA[",
            "]]>",
        ),
    ),
    Target("fake", of_text(fake_resources), texts("4x4", "1000x64+4"), words=("x", "+")),
)
