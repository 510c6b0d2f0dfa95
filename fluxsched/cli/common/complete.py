"""Completion of values in the shell, from the instance that a command would use.

Law: pressing TAB never fails, prints or waits long. Where no instance answers soon there is nothing to offer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from fluxsched.core.text import printable
from fluxsched.errors import FluxschedError

TIMEOUT_S = 0.5
"""Completion has to be faster than typing."""

OFFERED_MAX = 1000
"""A longer list is not readable; typing another letter narrows it."""

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _ask(ctx: click.Context, topic: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
    """An answer of the instance, empty if there is none."""
    opener = ctx.find_root().obj
    if opener is None:
        from fluxsched.client.blocking import connect_sync as opener
    try:
        with opener(ctx.params.get("uri")) as handle:
            answer: dict[str, Any] = handle.rpc(topic, payload, timeout_s=TIMEOUT_S)
    except (FluxschedError, OSError):
        return {}
    return answer


def _fitting(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Words as they are: one that is unsafe on a terminal would not be the same once escaped."""
    fitting = [CompletionItem(word) for word in words if word.startswith(incomplete) and printable(word) == word]
    return fitting[:OFFERED_MAX]


def _of(topic: str, names: Callable[[Mapping[str, Any]], Iterable[str]]) -> Complete:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _fitting(names(_ask(ctx, topic)), incomplete)

    return complete


def jobids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest jobs, each with its name and state."""
    from fluxsched.core.jobid import format_f58

    found = _ask(ctx, "job-manager.list", {"max_entries": OFFERED_MAX}).get("jobs", [])
    texts = [(format_f58(job["id"], ascii=incomplete.startswith("f")), job) for job in found]
    return [
        CompletionItem(text, help=printable(f"{job.get('name') or ''} {job['state']}".strip()))
        for text, job in texts
        if text.startswith(incomplete)
    ]


def targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Hosts and sets of targets; in a list, the one that is being typed."""
    from fluxsched.core.hostlist import Hostlist

    done, comma, last = incomplete.rpartition(",")
    names: list[str] = []
    answer = _ask(ctx, "resource.status")
    known = answer.get("R", {}).get("execution", {})
    for text in known.get("nodelist", ()):
        names.extend(Hostlist.parse(text).unique())
    names += ["all"] if known else []
    names += [f"property:{name}" for name in sorted(known.get("properties", ()))]
    names += [f"group:{name}" for name in answer.get("groups", ())]
    if last.startswith("queue:"):
        names += [f"queue:{name}" for name in _ask(ctx, "job-manager.queue-list").get("queues", ())]
    return [CompletionItem(f"{done}{comma}{item.value}") for item in _fitting(dict.fromkeys(names), last)]


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, completed by the shell."""
    return [CompletionItem(incomplete, type="file")]


def policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Policies by name; a path is completed as a file."""
    if "/" in incomplete or incomplete.startswith("."):
        return [CompletionItem(incomplete, type="file")]
    from fluxsched.config.policies import known_policies

    return _fitting(known_policies(), incomplete)


queues = _of("job-manager.queue-list", lambda answer: answer.get("queues", ()))
groups = _of("resource.groups", lambda answer: [each["name"] for each in answer.get("groups", ())])
modules = _of("module.list", lambda answer: [each["name"] for each in answer.get("mods", ())])
banks = _of("config.get", lambda answer: answer.get("fair", {}).get("banks", ()))
properties = _of(
    "resource.status", lambda answer: sorted(answer.get("R", {}).get("execution", {}).get("properties", ()))
)
