"""`[queues.NAME] groups`: several groups of one scheduler."""

from __future__ import annotations

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.jobs.queue.queues import QueueConfig
from fluxsched.runtime.config.policies import composed
from fluxsched.runtime.config.reader import parse_config

GROUPS = '[resource.groups]\nb = ""\n[queues.a]\n'


def test_the_first_of_several_groups_stands_for_all() -> None:
    queue = parse_config(f'{GROUPS}groups = ["b", "default"]\n', "site.toml").queues["a"]
    assert (queue.group, queue.groups) == ("b", ("b", "default"))
    assert parse_config(f'{GROUPS}group = "b"\n', "site.toml").queues["a"].groups == ("b",)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('groups = ["b"]\ngroup = "b"', "site.toml:4: [queues.a] groups: and group cannot both be given: name all"),
        ('groups = ["default", "c"]', "site.toml:4: [queues.a] groups: group 'c' is not in [resource.groups]"),
        ("groups = []", "site.toml:4: [queues.a] groups: is empty: name at least one group, such as 'default'"),
        ('groups = ["b", "b"]', "site.toml:4: [queues.a] groups: names b twice"),
        (
            'groups = ["default", "b"]\n[[scheduler]]\npolicy = "easy;a=fifo"\ngroups = ["b"]',
            "site.toml:7: [[scheduler]] groups: queue 'a' has groups default, b, which need one scheduler, and this "
            "one serves b: add default to its groups",
        ),
    ],
)
def test_what_is_wrong_with_them(text: str, fault: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_config(GROUPS + text, "site.toml")
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scheduler_that_serves_some_of_them_is_not_loaded() -> None:
    queues = {"a": QueueConfig("a", "default", others=("b",))}
    with pytest.raises(InvalidValue, match="which need one scheduler, and this one serves b: add default"):
        composed("fifo", ("b",), queues)
    assert composed("fifo", ("b", "default"), queues) == "fifo"
