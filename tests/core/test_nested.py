"""Jobs that are an instance: known by the command that Flux's batch and alloc write."""

from __future__ import annotations

import pytest

from fluxsched.core.batch import CONFIG, SCRIPT, Nested, is_nested, nested_jobspec, parse_nested
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("flux broker {{tmpdir}}/script a -b", Nested(("{{tmpdir}}/script", "a", "-b"))),
        ("flux broker -Sbroker.rc2_none=1", Nested((), stays=True)),
        ("flux broker -S broker.rc2_none=1 -v", Nested((), stays=True)),
        ("/usr/bin/flux broker --setattr=log-level=7 -- -x", Nested(("-x",))),
        ("flux broker -c{{tmpdir}}/conf.json x", Nested(("x",), config="{{tmpdir}}/conf.json")),
        ("flux broker --config-path /etc/x -v3 --verbose=2", Nested((), config="/etc/x")),
    ],
)
def test_the_command_of_flux_batch_and_alloc(words: str, found: Nested) -> None:
    assert is_nested(words.split())
    assert parse_nested(words.split()) == found


@pytest.mark.parametrize("words", ["flux", "flux run broker", "broker flux", "my-flux broker"])
def test_other_commands_are_tasks(words: str) -> None:
    assert not is_nested(words.split())


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("-Z x", "has no option -Z"),
        ("--nope=1", "has no option --nope"),
        ("-S", "-S needs a value"),
        ("--conf=x", "give the configuration to batch"),
    ],
)
def test_an_option_that_no_broker_has(words: str, error: str) -> None:
    with pytest.raises(InvalidValue, match=error):
        parse_nested(["flux", "broker", *words.split()])


def test_what_batch_makes_is_read_again() -> None:
    slots = Jobspec.from_command(["x"], ntasks=4).to_json()
    nested = Nested((SCRIPT, "arg"))
    jobspec = Jobspec.parse(nested_jobspec(slots, nested, "#!/bin/sh\n", {"queues": {"debug": {}}}))
    assert parse_nested(jobspec.command) == nested._replace(config=f"{{{{tmpdir}}}}/{CONFIG}")
    assert set(jobspec.files) == {"script", CONFIG}
    assert jobspec.raw["attributes"]["system"]["shell"]["options"]["per-resource"] == {"type": "node"}
    assert parse_nested(nested_jobspec(slots, Nested((), stays=True), None, None)["tasks"][0]["command"]).stays
