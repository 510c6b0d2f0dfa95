"""rfc/config.md tells of every key that is read, with examples that are taken; examples/site.toml shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fluxsched.runtime.config.changes import LIVE
from fluxsched.runtime.config.reader import load_config, parse_config, queue_configs
from fluxsched.runtime.config.values import NO_LIMIT

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "rfc/config.md").read_text()
SOURCE = "".join(path.read_text() for path in (ROOT / "fluxsched/runtime/config").rglob("*.py"))
KINDS = "text|texts|choice|flag|integer|number|duration_s|table|tables|joined"
READ = set(re.findall(rf"""\.(?:{KINDS})\("([\w-]+)\"""", SOURCE))
SHARES = (ROOT / "rfc/fair.md").read_text()
EXAMPLES = re.findall(r"^```toml\n(.*?)^```$", PAGE + SHARES, re.DOTALL | re.MULTILINE)


def test_every_key_that_is_read_is_on_the_page_and_in_the_example() -> None:
    kinds = {"heartbeat", "requires", "nnodes", "scheduler", "kill-timeout", "cap", "signal"}
    assert kinds - READ == set()
    titles = set(re.findall(r"[\w-]+", " ".join(re.findall(r"^#+ `(.*)`$", PAGE, re.MULTILINE))))
    rows = set(re.findall(r"[\w-]+", " ".join(re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE))))
    assert READ - titles - rows == set()
    shown = set(re.findall(r"[\w-]+", (ROOT / "examples/site.toml").read_text()))
    assert READ - shown - {"lost-after", "min", "ncores", "ngpus"} == set()


def test_the_page_says_which_keys_are_live() -> None:
    page = PAGE.partition("| section | keys that take effect at once")[2].partition("\n\n")[0]
    said: list[tuple[str, ...]] = []
    for table, keys in re.findall(r"^\| `\[(\w+)\]` \| ([^|]*) \|", page, re.MULTILINE):
        said += [(table,)] if keys == "all" else [(table, key) for key in re.findall(r"`([a-z-]+)`", keys)]
    assert said == list(LIVE)


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_the_examples_of_the_page_are_taken(text: str) -> None:
    assert parse_config(text, "site.toml").raw


def test_a_queue_wants_no_limit_as_the_page_says() -> None:
    text = (
        "[policy.limits]\nduration = '2d'\njob-size.max.nnodes = 6\n"
        "[queues.a.policy.limits]\nduration = 'infinity'\njob-size.max.nnodes = -1\n"
        "[queues.b.policy.limits]\nduration = 0\n"
    )
    queues = queue_configs(parse_config(text, "x"))
    assert NO_LIMIT == -1
    assert (queues["a"].duration_limit_s, queues["a"].nodes_max) == (0, None)
    assert (queues["b"].duration_limit_s, queues["b"].nodes_max) == (0, 6)


def test_the_example_says_what_its_comments_say() -> None:
    config = load_config(ROOT / "examples/site.toml")
    assert config.resource.exclude == "fake0"
    assert {name: queue.group for name, queue in config.queues.items() if queue.group != "default"} == {
        "debug": "interactive"
    }
    assert (config.queues["long"].duration_limit_s, config.queues["debug"].nodes_max) == (0, 1)
