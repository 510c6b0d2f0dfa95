"""The table of roles knows every topic, and nothing else."""

from __future__ import annotations

from fluxsched.core.role import Role
from fluxsched.protocol.roles import COUNTS_OF_JOBS, LEAST, OWNERS_ALONE, Scope, least_of
from fluxsched.protocol.topics import LOCAL_TOPICS, TOPICS


def test_every_topic_has_a_role_and_nothing_else_has() -> None:
    assert LEAST.keys() == TOPICS.keys() | LOCAL_TOPICS.keys()


def test_a_topic_that_is_not_in_the_table_is_the_owners() -> None:
    for topic in ("sched-fifo.ping", "job-manager.purge", "", "JOB-MANAGER.list", "job-manager.list "):
        assert least_of(topic, private_jobs=False) == OWNERS_ALONE == (Role.OWNER, None)


def test_what_starts_or_speaks_to_programs_is_the_owners_alone() -> None:
    for topic in ("job-manager.submit", "job-ingest.submit", "job-manager.input", "shell-*.stdin", "module.load",
                  "service.add", "sched.alloc", "job-manager.sched-hello", "resource.acquire"):  # fmt: skip
        assert LEAST[topic] == (Role.OWNER, None)


def test_a_cancel_is_as_free_as_its_stream() -> None:
    for topic, (role, _) in LEAST.items():
        if topic.endswith("-cancel") and topic != "sched.cancel":
            assert role == LEAST[topic.removesuffix("-cancel")][0], topic


def test_private_jobs_hide_counts_from_guests() -> None:
    for topic in COUNTS_OF_JOBS:
        assert least_of(topic, private_jobs=False)[0] is Role.GUEST
        assert least_of(topic, private_jobs=True)[0] is Role.ADMIN
    scoped = {topic for topic, (role, scope) in LEAST.items() if scope is not None and role is Role.GUEST}
    assert {"job-manager.cancel", "job-manager.lookup", "job-manager.output", "job-info.lookup"} <= scoped
    assert LEAST["job-manager.why"][1] is Scope.SEEN
