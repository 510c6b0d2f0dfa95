"""Parsers of short texts: idsets, hostlists, durations, ids, counts, amounts, queries, directives, templates."""

from __future__ import annotations

import json
import math
from pathlib import Path

from fluxsched.core.batch import check_script, is_nested, parse_directives, parse_nested
from fluxsched.core.constraint import Constraint, parse_constraint_text, parse_query, parse_targets
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import (
    JOB_TAGS,
    TASK_TAGS,
    check_template,
    fill,
    format_dothex,
    format_f58,
    format_hex,
    has_tags,
    id_tag,
    is_shared,
    parse_jobid,
    parse_jobids,
)
from fluxsched.core.quantities import amounts_setting, format_duration, parse_amount, parse_duration
from fluxsched.core.request import Count
from fluxsched.core.resources import ResourceSet
from fluxsched.core.text import UNPRINTABLE, printable, printable_lines
from tests.fuzz.target import Target, of_text, texts

VECTORS = Path(__file__).parents[2] / "vectors"
FIRST_VALUES = 1000
HOSTS_COMPARED = 10_000
"""More take a second to be read, printed and compared thrice."""


def vector_texts(name: str) -> list[bytes]:
    """All texts in a file of vectors."""
    found: list[str] = []
    todo = [json.loads((VECTORS / name).read_text())]
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict | list):
            todo += [*(value.values() if isinstance(value, dict) else value)]
    return [text.encode() for text in found]


def _idset(text: str) -> None:
    ids = Idset.parse(text)
    assert Idset.parse(str(ids)) == ids
    assert str(Idset.parse(str(ids))) == str(ids)


def _hostlist(text: str) -> None:
    hosts = Hostlist.parse(text)
    printed = str(hosts)
    if len(hosts) <= HOSTS_COMPARED:
        assert Hostlist.parse(printed) == hosts
        assert Hostlist.parse(str(hosts.unique())) == hosts.unique()


def _duration(text: str) -> None:
    seconds = parse_duration(text)
    assert parse_duration(format_duration(seconds)) == seconds
    assert seconds >= 0
    assert not math.isnan(seconds)


def _jobid(text: str) -> None:
    first, last = parse_jobids(text)
    assert first <= last
    for print_id in (format_f58, format_dothex, format_hex, str):
        assert parse_jobid(print_id(first)) == first


def _count(text: str) -> None:
    count = Count.parse(text)
    assert Count.parse(str(count)) == count
    assert Count.parse(count.to_json()) == count
    largest = count.largest(FIRST_VALUES)
    assert largest is None or largest in count


def _amount(text: str) -> None:
    amount = parse_amount(text)
    setting = amounts_setting((("memory", amount),))
    assert parse_amount(setting.partition("=")[2]) == amount


def _query(text: str) -> None:
    asked = parse_query(text)
    constraint = Constraint.parse(asked)
    assert Constraint.parse(constraint.to_json()) == constraint
    parse_constraint_text(text)


SITE = ResourceSet.parse(
    {
        "version": 1,
        "execution": {
            "R_lite": [{"rank": "0-9", "children": {"core": "0-3"}}],
            "nodelist": ["a[0-4],b[08-11],x"],
            "starttime": 0,
            "expiration": 0,
        },
    }
)


def _targets(text: str) -> None:
    ranks = parse_targets(text, SITE)
    assert ranks <= SITE.ranks
    assert parse_targets(str(ranks), SITE) == ranks


def _directives(text: str) -> None:
    try:
        check_script(text, "script")
    finally:
        for directive in parse_directives(text):
            assert directive.words[0].startswith("-")


def _template(text: str) -> None:
    has_tags(text)
    is_shared(text)
    assert fill(text, lambda tag: None) == text
    fill(text, lambda tag: id_tag(tag, 7))
    check_template(text, "output")


def _nested(text: str) -> None:
    words = ["flux", "broker", *text.split("\0")]
    assert is_nested(words)
    parse_nested(words)


def _printable(text: str) -> None:
    assert not UNPRINTABLE.search(printable(text))
    printable(text).encode()
    printable_lines(text).encode()


TARGETS = (
    Target("idset", of_text(_idset), lambda: vector_texts("rfc22_idset.json"), words=("0-", "4194304", ",", "[", "]")),
    Target(
        "hostlist", of_text(_hostlist), lambda: vector_texts("rfc29_hostlist.json"), words=("[0-3]", "[08-11]", "a")
    ),
    Target(
        "duration", of_text(_duration), lambda: vector_texts("rfc23_duration.json"), words=("ms", "h", "0x1p-3", "e")
    ),
    Target("jobid", of_text(_jobid), lambda: vector_texts("rfc19_fluid.json"), words=("ƒ", "f", "..", "0x", "0.0.0.1")),
    Target(
        "count",
        of_text(_count),
        texts("4", "2-4", "2+", "2-8:2:*", "2+:2:^", "1,3,5-7", "[0-3]"),
        words=(":", "^", "*", "+"),
    ),
    Target("amount", of_text(_amount), texts("2", "512GiB", "4 kB", "1PiB"), words=("KiB", "GB", "B")),
    Target(
        "query",
        of_text(_query),
        lambda: vector_texts("rfc31_constraint.json"),
        words=("rank:", "hosts:", "and", "or", "not", "-", "!", "(", ")", '"', "'", "^"),
    ),
    Target(
        "targets", of_text(_targets), texts("0-3", "a[0-2],b09", "0,x", "[0-9]", "a[0-4],3-5,x"), words=("x", "a[0-1]")
    ),
    Target(
        "directives",
        of_text(_directives),
        texts(
            "#!/bin/sh\n#FLUX: -N4 --job-name='a b'\n# flux: -n 4 # a comment\necho\n",
            '#!/bin/sh\n#flux: --setattr=x="""\n#flux: {"a": 1}\n#flux: """\n',
            '#!/usr/bin/python\n# FLUX: \\-N4 "a\\"b"\'c\'\n',
        ),
        words=("#flux: ", "#FLUX:", '"""', "'''", "\\", "-N4", "\n"),
    ),
    Target(
        "template",
        of_text(_template),
        lambda: [f"a-{{{{{tag}}}}}".encode() for tag in (*JOB_TAGS, *TASK_TAGS, "id.f58")],
        words=("{{", "}}", "id.", "tmpdir", "node.name"),
    ),
    Target(
        "nested",
        of_text(_nested),
        texts("-Sbroker.rc2_none=1", "--config-path=a\0x", "-c\0a\0--\0sh\0-c", "-vv\0--conf\0x"),
        words=("\0", "--", "-S", "--setattr=", "broker.rc2_none"),
    ),
    Target("printable", of_text(_printable), texts("a b", "\x1b[31m", "\u202e", "x\ny")),
)
