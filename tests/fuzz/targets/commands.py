"""Parsers of what people type: formats, policies with options, environments, templates of jobs, addresses."""

from __future__ import annotations

from fluxsched.cli import bulksubmit, jobspec_options
from fluxsched.cli.batch import merged_config
from fluxsched.cli.jobs import FIELDS
from fluxsched.cli.jobspec_options import edited_environment, split_templates
from fluxsched.cli.options import parse_since, parse_value
from fluxsched.cli.output import parse_format, parse_sort, render
from fluxsched.core.jobspec import Jobspec, parse_part
from fluxsched.sched.loading import join_plugins, parse_spec, split_plugins
from fluxsched.sched.registry import OWN, join_queues, make, split_queues
from fluxsched.transport.base import ipc_path, local_path
from fluxsched.yunikorn.wire import parse_address
from tests.fuzz.target import Target, of_text, texts


def _format(text: str) -> None:
    render([], parse_format(text, FIELDS), FIELDS)


def _sort(text: str) -> None:
    parse_sort(text, FIELDS)


def _policy(text: str) -> None:
    general, own = split_queues(text)
    assert split_queues(join_queues(general, own)) == (general, own)
    for spec in (general, *own.values()):
        policy, plugins = split_plugins(spec)
        assert split_plugins(join_plugins(policy, plugins)) == (policy, plugins)
        name, options = parse_spec(policy)
        if name in OWN and options.get("order", "") in ("", *OWN):
            make(name, options)


def _request(text: str) -> None:
    jobspec_options.amounts_for("job", [jobspec_options.parse_request(text)])


def _part(text: str) -> None:
    part = parse_part(text)
    jobspec = Jobspec.from_command([], parts=[part, part._replace(label=f"{part.label[:200]}2")])
    assert [one.command for one in jobspec.parts] == [tuple(part.command)] * 2


def _times(text: str) -> None:
    for parse in (jobspec_options.parse_begin_time, parse_since, jobspec_options.parse_preemptible_after):
        parse(text)


def _environment(text: str) -> None:
    rules = [rule for rule in text.split("\0") if not rule.startswith("^")]
    made = edited_environment({"A": "b", "PATH": "/bin", "X_Y": "1"}, rules)
    split_templates(made)


def _bulk(text: str) -> None:
    words, lists = bulksubmit.split_words(text.split("\0"))
    rows = bulksubmit.combine(bulksubmit.read_inputs(lists, "\\n", lambda name: "1\n2\n"))
    for row in rows[:3]:
        for word in words:
            bulksubmit.fill(word, row, bulksubmit.METHODS)


def _setting(text: str) -> None:
    if text.startswith("^"):  # names a file
        return
    jobspec_options.with_attribute({"attributes": {"system": {"duration": 0}}}, text)


def _endpoint(text: str) -> None:
    ipc_path(text)
    local_path(text)


TARGETS = (
    Target(
        "format",
        of_text(_format),
        texts("{id.f58:>12} {name:10.10+}", "{status!D:h<8}{{x}}", "{ntasks:%5}", "{duration!F:.2f}"),
        words=("{", "}", "{id", "!D", ":h", ":>", ".f58", "+", "?:"),
    ),
    Target("sort", of_text(_sort), texts("name,-id", "t_submit"), words=("-", ",", "name")),
    Target(
        "policy",
        of_text(_policy),
        texts(
            "fifo",
            "easy:depth=5,order=sjf",
            "hybrid:reservation-depth=4;debug=fifo",
            "fair:policy=easy,half-life=1d|./x.py:a=b",
            "tree:a",
        ),
        words=(*OWN, ":", ",", "=", ";", "|", "depth=", "order=", "half-life="),
    ),
    Target(
        "request",
        of_text(_request),
        texts("memory=4GiB,scratch=1TB/node,matlab=1/job"),
        words=("/job", "/node", "=", ","),
    ),
    Target(
        "part",
        of_text(_part),
        texts("lead:1=./lead", "work:4-10:2:gpu & !old=./work 'a b' \"c\"", "a:2+:host:n[0-3]=x"),
        words=(":", "=", "4-10", "gpu", "'", '"', "\\"),
    ),
    Target(
        "times",
        of_text(_times),
        texts("+1h", "2030-01-31T12:00", "1700000000.5", "-1d", "now"),
        words=("+", "T", "Z", "+25:00", ":"),
    ),
    Target("flags", of_text(jobspec_options.parse_flags), texts("debug,waitable", "novalidate")),
    Target(
        "dependency",
        of_text(jobspec_options.parse_dependency),
        texts("afterok:ƒ2", "begin-time:+1h"),
        words=("after:", "begin-time:"),
    ),
    Target("copies", of_text(jobspec_options.parse_copies), texts("0-3", "1,7")),
    Target(
        "setting",
        of_text(_setting),
        texts("system.x.y=1", ".a=[1]", "duration=2", 'x={"a": 1}'),
        words=("system.", "=", ".", "{"),
    ),
    Target(
        "environment",
        of_text(_environment),
        texts("-*\0A=b", "-A\0/X_.*/", "B=${A}-$PATH", "X_?", "-/.*(/"),
        words=("\0", "-", "*", "$", "${", "}", "/", "="),
    ),
    Target(
        "bulk",
        of_text(_bulk),
        texts("echo\0{} {1}\0:::\0a\0b\0:::+\0c\0d", "x\0{seq1:03}{0.%}{./%}\0::::\0f", "{cc}"),
        words=("\0", ":::", "::::", ":::+", "{seq}", "{0.%}", "{:>5}", "{1./}"),
    ),
    Target("value", of_text(parse_value), texts("1", "[1, 2]", "x", '"y"')),
    Target(
        "batch-config",
        of_text(lambda text: merged_config(text.split("\0"))),
        texts('{"a": {"b": 1}}\0[a]\nc = 2\n', "resource.exclude=0-3", "a.b=true"),
        words=("\0", "=", "[a]", "{", '"a"'),
    ),
    Target(
        "address",
        of_text(parse_address),
        texts("unix:///tmp/x", "127.0.0.1:3333", "[::1]:0", "localhost:1"),
        words=("unix:", "[", "]", ":", "%"),
    ),
    Target(
        "endpoint",
        of_text(_endpoint),
        texts("ipc:///tmp/x", "tcp://127.0.0.1:*", "local:///tmp/y"),
        words=("tcp://", "ipc://", "[::1]", ":1"),
    ),
)
