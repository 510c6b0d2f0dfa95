"""Rights in the table of topics."""

from __future__ import annotations

from fluxsched.core.role import Role
from fluxsched.protocol.topics import LOCAL_TOPICS, RIGHTS, TOPICS, Scope, is_of_keepers, least_of


def test_a_topic_has_the_same_right_at_each_socket() -> None:
    for name in TOPICS.keys() & LOCAL_TOPICS.keys():
        assert TOPICS[name].right == LOCAL_TOPICS[name].right, name


def test_a_topic_that_is_not_in_the_table_is_the_owners() -> None:
    for topic in ("sched-fifo.ping", "job-manager.purge", "", "JOB-MANAGER.list", "job-manager.list "):
        assert least_of(topic, private_jobs=False) == (Role.OWNER, None)


def test_what_starts_or_speaks_to_programs_is_the_owners_alone() -> None:
    for topic in ("job-manager.submit", "job-manager.submit-array", "job-ingest.submit", "job-manager.input",
                  "shell-*.stdin", "module.load", "service.add", "sched.alloc", "job-manager.sched-hello",
                  "resource.acquire"):  # fmt: skip
        assert RIGHTS[topic].least is Role.OWNER


def test_where_tasks_run_as_their_users_programs_are_each_users_own() -> None:
    users = {topic for topic, right in RIGHTS.items() if right.is_users}
    assert users == {
        "job-manager.submit", "job-manager.submit-array", "job-ingest.submit", "job-manager.exec-cancel",
        "job-manager.input", "job-manager.exec", "job-manager.memo", "job-manager.released", "job-manager.when",
        "shell-*.stdin", "feasibility.check",
    }  # fmt: skip
    assert least_of("feasibility.check", private_jobs=False) == (Role.ADMIN, None)
    assert least_of("feasibility.check", private_jobs=False, run_as_user=True) == (Role.GUEST, None)
    for topic in users - {"feasibility.check"}:
        assert least_of(topic, private_jobs=False) == (Role.OWNER, RIGHTS[topic].scope)
        assert least_of(topic, private_jobs=False, run_as_user=True) == (Role.GUEST, RIGHTS[topic].scope)
    assert {topic for topic in users if RIGHTS[topic].scope is not Scope.RUN} == {
        "job-manager.submit", "job-manager.submit-array", "job-ingest.submit", "job-manager.exec-cancel",
        "job-manager.when", "feasibility.check",
    }  # fmt: skip
    assert least_of("shell-f1.stdin", private_jobs=False, run_as_user=True) == (Role.GUEST, Scope.RUN)


def test_a_cancel_is_as_free_as_its_stream() -> None:
    for topic, right in RIGHTS.items():
        if topic.endswith("-cancel") and topic != "sched.cancel":
            assert right.least == RIGHTS[topic.removesuffix("-cancel")].least, topic


def test_private_jobs_hide_counts_from_guests() -> None:
    counts = {topic for topic, right in RIGHTS.items() if right.counts_jobs}
    assert {"job-manager.stats-get", "history.samples", "sched.plan"} <= counts
    for topic in counts:
        assert least_of(topic, private_jobs=False)[0] is Role.GUEST
        assert least_of(topic, private_jobs=True)[0] is Role.ADMIN
    scoped = {topic for topic, right in RIGHTS.items() if right.scope is not None and right.least is Role.GUEST}
    assert {"job-manager.cancel", "job-manager.lookup", "job-manager.output", "job-info.lookup"} <= scoped
    assert RIGHTS["job-manager.why"].scope is Scope.SEEN


def test_only_keepers_and_the_owner_may_call_what_is_of_keepers():
    assert {topic for topic, right in RIGHTS.items() if right.is_keepers} == {
        topic for topic in RIGHTS if topic.startswith("keeper.")
    }
    assert all(right.least is Role.OWNER for right in RIGHTS.values() if right.is_keepers)
    assert is_of_keepers("keeper.report")
    assert not any(map(is_of_keepers, ("instance.info", "keeper.unknown", "")))
