"""The program itself: wrong arguments, errors of the configuration, completion, help, and how fast commands start."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("[resource]\nexlude = '0'\n", "site.toml:2: [resource] unknown key 'exlude'"),
        ("[resource.groups]\na = '0-1'\nb = '1-2'\n", "site.toml:3: [resource.groups] b: "),
        ("[resource]\npath = 'absent.json'\n", "absent.json"),
        ("\0", "site.toml"),
    ],
)
def test_an_error_of_the_configuration_names_file_line_and_key(user: Any, text: str, want: str) -> None:
    (user.directory / "site.toml").write_text(text)
    options = [] if "path" in text else ["--fake", "4x4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FLUXSCHED_URI", raising=False)
        found = user("start", "--config", "site.toml", *options, "--", "true", status=1)
    assert found.err.startswith("fluxsched: start: ")
    assert want in found.err
    assert "Traceback" not in found.err
    assert not [path for path in user.directory.iterdir() if path.name.startswith("fluxsched-")]


@pytest.mark.parametrize("text", ["{", '{"version": 2, "execution": {}}'])
def test_a_bad_r_file_is_refused(user: Any, text: str) -> None:
    (user.directory / "R.json").write_text(text)
    found = user("start", "--R", "R.json", "--", "true", status=1)
    assert found.err.startswith("fluxsched: start: ")
    assert "R.json" in found.err


def test_completion_offers_values_of_the_instance_and_is_silent_without(user: Any, site: Any) -> None:
    line = "fluxsched resource drain fa"
    for who, want in ((site, [f"plain,fake{rank}" for rank in range(4)]), (user, [])):
        there = who.at(who.uri or f"ipc://{who.directory}/nothing")
        there.environ = {"_FLUXSCHED_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": "3"}
        found = there.process(status=None)
        assert (found.out.split(), found.err) == (want, "")


def test_no_instance_is_said_with_the_remedy(user: Any) -> None:
    found = user("jobs", status=1)
    assert found.err == (
        "fluxsched: jobs: no fluxsched instance found: start one with `fluxsched start`, "
        "or name a running one with --uri or FLUXSCHED_URI\n"
    )
    for uri in (f"ipc://{user.directory}/nothing", "tcp://127.0.0.1:1", "nonsense", "http://x"):
        found = user("jobs", "--uri", uri, status=1)
        assert found.err.startswith("fluxsched: jobs: ")
        assert uri in found.err
        assert found.err.count("\n") == 1
