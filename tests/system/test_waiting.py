"""A job that was accepted waits through everything that happens to its group; what could never run is refused."""

from __future__ import annotations

import json
from typing import Any

WIDE = "needs 4 nodes of 1 core; "


def reason(here: Any, jobid: str) -> str:
    found: str = here("jobs", "-n", "-o", "{contextual_info}", jobid).word
    return found


def inventory(cores: str) -> str:
    lite = [{"rank": "0-3", "children": {"core": cores}}]
    return json.dumps({"version": 1, "execution": {
        "R_lite": lite, "starttime": 0.0, "expiration": 0.0, "nodelist": ["fake[0-3]"]
    }})  # fmt: skip


def test_pending_jobs_outlive_reload_exclude_include_and_assign(daemon: Any, until: Any) -> None:
    """The three of the issue: in each there is a moment in which the group is too small."""
    here = daemon("--fake", "4x2")
    here("resource", "drain", "0", "weather")
    waiting = here.submit("-N4", "true")
    until(lambda: "fake0 is out of service" in reason(here, waiting))
    (here.directory / "more.json").write_text(inventory("0-7"))
    here("resource", "reload", "more.json")
    here("resource", "exclude", "3")
    until(lambda: reason(here, waiting).startswith(f"{WIDE}the group has only 3 such nodes; it had 4 until "))
    why = here("job", "why", waiting).out
    assert "set aside" in why
    here("resource", "include", "3")
    until(lambda: "fake0 is out of service" in reason(here, waiting))
    here("resource", "assign", "0-3", "lab")
    until(lambda: "no node of the group matches; it had 4 until " in reason(here, waiting))
    here("module", "reload", "sched-fifo")
    until(lambda: "no node of the group matches, at least since " in reason(here, waiting))
    here("resource", "assign", "0-3", "default")
    here("resource", "undrain", "0")
    here("wait", waiting)


def test_an_accepted_job_waits_on_after_a_restart_on_less(daemon: Any, kill_hard: Any, until: Any) -> None:
    here = daemon("--fake", "4x2", "--statedir", "state")
    here("resource", "drain", "0", "weather")
    waiting = here.submit("-N4", "true")
    kill_hard(here.pid())
    here = daemon("--fake", "3x2", "--statedir", "state")
    until(lambda: reason(here, waiting).startswith(f"{WIDE}the group has only 3 such nodes, at least since "))
    here("cancel", waiting)


def test_a_job_that_is_allowed_to_be_infeasible_waits_for_more(daemon: Any, until: Any) -> None:
    here = daemon("--fake", "4x2")
    assert "can never run: " in here("run", "-n9", "true", status=1).err
    waiting = here.submit("-n9", "--allow-infeasible", "true")
    until(lambda: "only 8 such slots" in reason(here, waiting))
    (here.directory / "more.json").write_text(inventory("0-3"))
    here("resource", "reload", "more.json")
    here("wait", waiting)


def test_feasibility_ignores_availability_and_asks_the_queues_own_scheduler(daemon: Any, user: Any) -> None:
    (user.directory / "site.toml").write_text(
        "[resource.groups]\nlab = '2-3'\nnone = ''\n"
        "[queues.batch]\n[queues.lab]\ngroup = 'lab'\n[queues.far]\ngroup = 'none'\n"
        "[[scheduler]]\npolicy = 'fifo'\n[[scheduler]]\npolicy = 'fifo'\ngroups = ['lab']\n"
    )
    here = daemon("--fake", "5x2", "--config", "site.toml")
    here("resource", "drain", "0-4", "weather")
    here.submit("-q", "batch", "-N3", "true")
    here.submit("-q", "lab", "-N2", "true")
    here.submit("-q", "far", "-N99", "true")  # nobody can say
    assert "only 2 such nodes" in here("submit", "-q", "lab", "-N3", "true", status=1).err


def test_unsatisfiable_deny_brings_the_old_rule_back(daemon: Any, user: Any) -> None:
    (user.directory / "site.toml").write_text("[policy]\nunsatisfiable = 'deny'\n")
    here = daemon("--fake", "4x2", "--config", "site.toml")
    here("resource", "drain", "0", "weather")
    waiting = here.submit("-N4", "true")
    here("resource", "exclude", "3")
    assert f"exception alloc: {WIDE}the group has only 3 such nodes" in here("wait", waiting, status=1).err
    waiting = here.submit("-N4", "--allow-infeasible", "true")
    assert "exception alloc: " in here("wait", waiting, status=1).err


def test_a_wrong_word_for_unsatisfiable_names_line_and_words(user: Any) -> None:
    (user.directory / "site.toml").write_text("[policy]\nunsatisfiable = 'later'\n")
    found = user("start", "--config", "site.toml", "true", status=1)
    assert "site.toml:2: [policy] unsatisfiable: 'later' is not one of wait, deny" in found.err


def expired(user: Any) -> str:
    R = json.loads(inventory("0-1"))  # noqa: N806 - RFC 20's name
    R["execution"]["expiration"] = 1700000000.0
    (user.directory / "old.json").write_text(json.dumps(R))
    return "R expired at 2023-11-14 22:13:20 UTC (expiration 1700000000), so no job could ever start"


def test_an_expired_R_is_refused_at_start_and_reload(user: Any, daemon: Any) -> None:  # noqa: N802
    words = expired(user)
    user.environ["TZ"] = "UTC"
    remedy = "give its execution.expiration a later time, or 0 for no end"
    assert f"old.json: {words}: {remedy}\n" in user.process("start", "--R", "old.json", "true", status=1).err
    (user.directory / "site.toml").write_text("[resource]\npath = 'old.json'\n")
    assert f"old.json: {words}: {remedy}\n" in user.process("start", "--config", "site.toml", "true", status=1).err
    here = daemon("--fake", "4x2")
    assert f"old.json: {words}: {remedy}\n" in here("resource", "reload", "old.json", status=1).err
    here("run", "-N4", "true")  # and nothing was done


CAPPED = """
from fluxsched.sched.policy import Pending


class Capped:
    '''Holds every job.'''

    name = "capped"
    OPTIONS = {}

    def schedule(self, view, now_s):
        if view.first is not None:
            yield Pending(view.first.jobid, "power is capped")
"""
TWO_CORES = """
partitions: [{name: default, queues: [{name: root, queues: [
  {name: default, limits: [{limit: two, users: ["*"], maxresources: {vcore: 2}}]}]}]}]
"""


def test_what_a_policy_or_a_plugin_holds_back_is_not_explained_by_a_rule_that_would_start_it(
    user: Any, daemon: Any, until: Any
) -> None:
    (user.directory / "capped.py").write_text(CAPPED)
    (user.directory / "two.yaml").write_text(TWO_CORES)
    here = daemon("--fake", "1x4", "--scheduler", "./capped.py")
    jobid = here.submit("true")
    until(lambda: reason(here, jobid) == "power is capped")
    assert here("job", "why", jobid).out.splitlines() == [
        "SCHED: power is capped",
        "rule: no other job waits under policy capped: Holds every job.",
        "earliest start: not known: it fits now, and policy capped holds it back",
    ]
    here = daemon("--fake", "1x4", "--scheduler", "easy", "--plugin", "quota:config=two.yaml")
    here.running("-n2", "sleep", "100")
    for jobid in [here.submit("true"), here.submit("true")]:
        until(lambda waiting=jobid: "limit of user" in reason(here, waiting))
        assert here("job", "why", jobid).out.splitlines()[1:] == [
            "rule: a plugin refuses it for now; policy easy tries it again",
            "earliest start: not known: it is up to the plugin",
        ]
