"""Tags in double braces that a path may have, such as `out-{{id}}-{{taskid}}`: filled in when the job starts.

The tags are Flux's (flux-run(1), MUSTACHE TEMPLATES). Law: a tag that is not known is refused when the job is
submitted, with all that are known; what is no tag, as `{{` without an end, stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from fluxsched.core.jobid import format_dothex, format_f58, format_hex
from fluxsched.core.text import printable
from fluxsched.errors import InvalidValue

ID_FORMS: Final[dict[str, Callable[[int], str]]] = {
    "": format_f58,
    "f58": format_f58,
    "f58plain": lambda jobid: format_f58(jobid, ascii=True),
    "dec": str,
    "hex": format_hex,
    "dothex": format_dothex,
}
"""Formats of `{{id.FORM}}` and `{{jobid.FORM}}`, by FORM."""
JOB_TAGS: Final = ("id", "jobid", "name", "nnodes", "size", "ntasks")
NODE_TAGS: Final = ("node.id", "node.name", "node.broker_rank", "node.cores", "node.gpus", "node.ncores")
TASK_TAGS: Final = ("taskid", "task.id", "task.rank", "task.index", "task.localid")

TAGS_NAMED_MAX = 8
"""Unknown tags that one error names."""

_TAG: Final = re.compile(r"\{\{ *(.*?) *\}\}", re.DOTALL)
_IDS = {f"{tag}.{form}".rstrip(".") for tag in ("id", "jobid") for form in ID_FORMS}
_SHARED = {*JOB_TAGS, *_IDS}
_KNOWN: Final = _SHARED.union(NODE_TAGS, TASK_TAGS)


def check_template(template: str, what: str) -> None:
    """Raises InvalidValue naming the tags of `template` that are unknown, and those that are known."""
    unknown = [tag for tag in dict.fromkeys(_TAG.findall(template)) if tag not in _KNOWN]
    if unknown:
        named = ", ".join(f"{{{{{printable(tag[:40])}}}}}" for tag in unknown[:TAGS_NAMED_MAX])
        known = ", ".join((*JOB_TAGS, *TASK_TAGS, *NODE_TAGS))
        forms = ", ".join(f"id.{form}" for form in ID_FORMS if form)
        raise InvalidValue(f"{what}: unknown tag {named}: known are {known}, and {forms}")


def check_outputs(output: str | None, error: str | None) -> None:
    """Check the names of a job's files for stdout and stderr, where it has them."""
    for template, what in ((output, "output"), (error, "error")):
        if template is not None and "{{" in template:
            check_template(template, f"{what} {template[:80]!r}")


def has_tags(template: str) -> bool:
    """Return whether the template has a known tag, `{{tmpdir}}` among them."""
    return "{{" in template and any(tag in _KNOWN or tag == "tmpdir" for tag in _TAG.findall(template))


def is_shared(template: str) -> bool:
    """Return whether all tasks of a job get the same path: the template has no tag of a node or a task."""
    return all(tag in _SHARED or tag not in _KNOWN for tag in _TAG.findall(template))


def fill(template: str, value: Callable[[str], str | None]) -> str:
    """`template` with `value(tag)` in the place of each tag; one without a value stays."""

    def one(found: re.Match[str]) -> str:
        text = value(found[1])
        return found[0] if text is None else text

    return _TAG.sub(one, template)


def id_tag(tag: str, jobid: int) -> str | None:
    """The value of `id`, `jobid` and their forms, None for other tags."""
    name, _, form = tag.partition(".")
    return ID_FORMS[form](jobid) if name in ("id", "jobid") and form in ID_FORMS else None
