"""Plugin `quota` by itself: what it lets start, against sums over what is held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("yaml")

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue
from fluxsched.sched.hooks import PASS, SKIP, GroupSeen, JobSeen
from fluxsched.sched.pool.placement import Block, Fits, Shapes
from fluxsched.yunikorn.quota import Quota

CONFIG = """
partitions:
  - name: default
    placementrules:
      - {name: provided}
      - {name: tag, value: queue, create: true, parent: {name: fixed, value: root.any}}
    queues:
      - name: root
        queues:
          - name: default
          - {name: physics, resources: {max: {core: 8}}, queues: [
              {name: hot, maxapplications: 2},
              {name: cold, resources: {max: {node: 3, vcore: 6}},
               limits: [{limit: one each, users: ["*"], maxresources: {gpu: 1}}]}]}
          - {name: any, parent: true, resources: {max: {memory: 4Gi}}}
"""
SHAPES = Shapes()
GROUP: Any = GroupSeen("default", None, 1, lambda host: None, {})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("quota") / "q.yaml"
    path.write_text(CONFIG)
    return str(path)


def job(jobid: int, bank: str | None = None, queue: str | None = None, user: int = 0, **asked: Any) -> JobSeen:
    spec = Jobspec.from_command(["true"], duration_s=10.0, **asked)
    named = (("bank", bank), ("queue", queue), ("user", user))
    labels = tuple((name, value) for name, value in named if value is not None)
    return JobSeen(jobid, 16, user, 0.0, 10.0, SHAPES.of(spec.request, labels, ""), 0.0)


def fit(seen: JobSeen, cores: int | None = None) -> Fits:
    request = seen.request
    mine = request.cores * request.slots.min if cores is None else cores
    gpus = request.gpus * request.slots.min
    return Fits(seen.shape, (Block(0, 1, (1 << mine) - 1, (1 << gpus) - 1, request.amounts),), 1)


def start(quota: Quota, seen: JobSeen, cores: int | None = None) -> str:
    """What becomes of a job: empty if it starts."""
    answer = quota.pre_filter(seen.shape, GROUP)
    if answer is PASS:
        answer = quota.reserve(seen, fit(seen, cores))
    return "" if answer is PASS else f"{type(answer).__name__}: {answer.why}"  # type: ignore[union-attr]


def test_it_bounds_what_a_bank_has_and_says_by_what_it_is_held_back(config: str) -> None:
    quota = Quota(config)
    jobs = [job(at, "physics/hot", cores_per_task=2) for at in range(1, 4)]
    assert [start(quota, each) for each in jobs[:2]] == ["", ""]
    assert start(quota, jobs[2]) == "Later: queue root.physics.hot: 2 of at most 2 applications have begun"
    cold = [job(at, "physics/cold", cores_per_task=3) for at in range(10, 13)]
    assert start(quota, cold[0]) == ""
    before = quota.generation
    assert start(quota, cold[1]) == ("Later: queue root.physics: 7 core of at most 8 core used, 3 core more requested")
    assert quota.generation == before
    quota.on_free(jobs[0], fit(jobs[0]))
    assert quota.generation > before, "its answers may be others now"
    assert start(quota, cold[1]) == ""


def test_what_can_never_run_is_never(config: str) -> None:
    quota = Quota(config)
    assert start(quota, job(1, "physics/cold", cores_per_task=7)) == (
        "Never: queue root.physics.cold: 7000 vcore exceeds the maximum of 6000 vcore"
    )
    assert start(quota, job(2, "physics/cold", gpus_per_task=2)) == (
        "Never: limit of user root in queue root.physics.cold: 2 gpu exceeds the maximum of 1 gpu"
    )
    assert start(quota, job(3, "chemistry")).startswith("Never: rule provided: there is no queue 'root.chemistry'")


def test_a_queue_is_made_where_a_rule_makes_it(config: str) -> None:
    quota = Quota(config)
    assert start(quota, job(1)) == "", "root.default is for jobs that name nothing"
    assert start(quota, job(2, queue="batch")) == ""
    assert start(quota, job(3, queue="debug")) == ""


def test_what_a_job_gets_counts_even_if_it_asked_for_less(config: str) -> None:
    quota = Quota(config)
    whole = job(1, "physics/hot", cores_per_task=1)
    assert "9 core more requested" in start(quota, whole, cores=9)
    assert start(quota, whole, cores=8) == ""


def test_what_ran_before_is_a_fact(config: str) -> None:
    quota = Quota(config)
    for at in (1, 2, 3):
        found = job(at, "physics/hot", cores_per_task=4)._replace(adopted=True)
        quota.post_bind(found, fit(found))
    quota.post_bind(job(4, "chemistry")._replace(adopted=True), fit(job(4)))
    assert "12 core of at most 8" in start(quota, job(5, "physics/cold"))
    for at in (1, 2, 3, 4):
        quota.on_free(job(at), fit(job(at)))
    assert start(quota, job(5, "physics/cold")) == ""


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("partitions: [", "q.yaml: not YAML: .*"),
        ("partitions: []", r"q.yaml: partitions: give at least one"),
        (CONFIG.replace("core: 8", "core: x"), r"q.yaml: partitions\[0\]\.queues\[0\].*\.resources\.max\.core: .*"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(text)
    with pytest.raises(InvalidValue, match=f"plugin 'quota': .*{fault}"):
        Quota(str(path))


def test_without_a_file_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"needs a file of queues: quota:config=q\.yaml"):
        Quota()
    with pytest.raises(InvalidValue, match="cannot read"):
        Quota(str(tmp_path / "none.yaml"))


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(("hot", "cold")), st.integers(0, 2), st.integers(1, 4), st.integers(0, 1))))
def test_nothing_is_overrun_and_nothing_leaks(config: str, steps: list[tuple[str, int, int, int]]) -> None:
    quota, held = Quota(config), dict[int, tuple[JobSeen, str]]()
    for jobid, (leaf, what, cores, gpus) in enumerate(steps, 1):
        if what and held:
            old = next(iter(held))
            seen, _ = held.pop(old)
            (quota.on_free if what == 1 else quota.unreserve)(seen, fit(seen))
        seen = job(jobid, f"physics/{leaf}", cores_per_task=cores, gpus_per_task=gpus)
        used = {name: [one.request for one, at in held.values() if at == name] for name in ("hot", "cold")}
        fits = sum(each.cores for each in (*used["hot"], *used["cold"])) + cores <= 8 and (
            len(used["hot"]) < 2
            if leaf == "hot"
            else len(used["cold"]) < 3
            and sum(each.cores for each in used["cold"]) + cores <= 6
            and sum(each.gpus for each in used["cold"]) + gpus <= 1
        )
        said = start(quota, seen)
        assert (said == "") == fits, said
        if fits:
            held[jobid] = seen, leaf
    for seen, _ in held.values():
        quota.on_free(seen, fit(seen))
    assert start(quota, job(1000, "physics/cold", cores_per_task=6)) == "", "all was given back"


CLOSED = """
partitions:
- preemption: {enabled: true}
  nodesortpolicy: {type: binpacking}
  queues:
  - name: root
    submitacl: nobody-at-all
    queues:
    - {name: physics, submitacl: "*", resources: {guaranteed: {core: 1}}, properties: {application.sort.policy: fair}}
    - name: shut
"""


def test_it_skips_a_job_without_a_bank_that_no_queue_is_for(tmp_path: Path) -> None:
    (tmp_path / "q.yaml").write_text(CLOSED)
    quota = Quota(str(tmp_path / "q.yaml"))
    for seen in (job(1), job(2, queue="batch")):
        assert quota.pre_filter(seen.shape, GROUP) is SKIP
        assert quota.reserve(seen, fit(seen)) is PASS, "another plugin may not have skipped it"
        quota.on_free(seen, fit(seen))
    assert start(quota, job(3, "physics")) == ""
    assert start(quota, job(4, "phisics")).startswith("Never: rule provided: there is no queue 'root.phisics'")
    assert start(quota, job(5, queue="root.shut")).startswith("Never: rule provided: queue 'root.shut' is closed to")


def test_what_of_its_file_has_no_effect_is_warned_about_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(CLOSED)
    with caplog.at_level("WARNING", "fluxsched"):
        for _ in range(2):
            Quota(str(path))
        path.write_text("partitions: [{queues: [{name: physics, resources: {max: {core: 1}}}]}]")
        Quota(str(path))
    (warned,) = caplog.messages
    assert str(path) in warned
    assert warned.endswith(
        "preemption, nodesortpolicy, resources.guaranteed of root.physics, application.sort.policy of root.physics"
    )
