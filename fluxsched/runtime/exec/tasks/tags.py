"""The values of a template's tags (`core.template`) for one job, for a node of it, or for a task."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.core.template import fill, id_tag
from fluxsched.runtime.exec.tasks.layout import TaskBlock, count_tasks


class Tags:
    """The tags of one job whose tasks are placed as `blocks` says; `r` is its R as JSON, `tmpdir` its own directory.

    `current` are the blocks that it still has, of a job that has given others back.
    """

    def __init__(
        self,
        jobid: int,
        jobspec: Jobspec,
        blocks: Sequence[TaskBlock],
        r: Mapping[str, Any],
        tmpdir: str | None = None,
        current: Sequence[TaskBlock] | None = None,
    ) -> None:
        self._jobid = jobid
        self._jobspec = jobspec
        self._blocks = blocks
        self._current = blocks if current is None else current
        self._r = r
        self._tmpdir = tmpdir
        self._firsts = [block.first for block in blocks]

    @cached_property
    def resources(self) -> ResourceSet:
        """The job's R; read when a tag asks for it, since few do."""
        return ResourceSet.parse(self._r)

    def fill(self, template: str, task: int = 0) -> str:
        """The text that `template` is for the task of this number."""
        return fill(template, lambda tag: self._value(tag, task)) if "{{" in template else template

    def _value(self, tag: str, task: int) -> str | None:
        name, dot, part = tag.partition(".")
        if dot and name in _PARTS:
            index = max(0, bisect_right(self._firsts, task) - 1)
            if index >= len(self._blocks):  # it never ran here
                return None
            value = _PARTS[name].get(part)
            return None if value is None else value(self, index, self._blocks[index], task)
        match tag:
            case "tmpdir":
                return self._tmpdir
            case "name":
                return job_name(self._jobspec)
            case "nnodes":
                return str(len(self._current))
            case "size" | "ntasks":
                return str(count_tasks(self._current))
            case "taskid":
                return str(task)
        return id_tag(tag, self._jobid)


def job_name(jobspec: Jobspec) -> str:
    """The job's name, by default that of its program."""
    return jobspec.job_name or os.path.basename(jobspec.command[0])


_Value = Callable[[Tags, int, TaskBlock, int], str]
_NODE: Mapping[str, _Value] = {
    "id": lambda tags, index, block, task: str(index),
    "name": lambda tags, index, block, task: tags.resources.host(block.rank),
    "broker_rank": lambda tags, index, block, task: str(block.rank),
    "cores": lambda tags, index, block, task: str(block.children.cores),
    "gpus": lambda tags, index, block, task: str(block.children.gpus),
    "ncores": lambda tags, index, block, task: str(len(block.children.cores)),
}
_TASK: Mapping[str, _Value] = {
    **dict.fromkeys(("id", "rank"), lambda tags, index, block, task: str(task)),
    **dict.fromkeys(("index", "localid"), lambda tags, index, block, task: str(task - block.first)),
}
_PARTS = {"node": _NODE, "task": _TASK}
