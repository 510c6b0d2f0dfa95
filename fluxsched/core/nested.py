"""Jobs that are an instance themselves: the jobspecs of `batch` and `alloc`, Flux's and ours alike.

Law: such a job is known by its command, `flux broker [OPTIONS] [COMMAND]`, as Flux writes it: no attribute says it
twice, and what Flux's own commands submit is the same. What it is given are slots; it has one task, the instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from fluxsched.core.archive import script_file
from fluxsched.core.jsontext import with_path
from fluxsched.errors import InvalidValue

SCRIPT: Final = "{{tmpdir}}/script"
"""Path of the script of a batch job, below the job's own directory."""
CONFIG: Final = "conf.json"
"""The configuration of the nested instance, as Flux names the file."""
ADDRESS_KEY: Final = "fluxsched_uri"
"""The key of the memo in which a nested instance says, at its job, where it is; `uri` is as Flux's commands want it.

Flux wants identifiers as keys.
"""

_BROKER: Final = ("flux", "broker")
_WITH_VALUE = {"-S": "setattr", "--setattr": "setattr", "-c": "config", "--config-path": "config", "--conf": "conf"}
_STAYS: Final = "broker.rc2_none"


class Nested(NamedTuple):
    """Program of a nested instance: `command` (empty: a shell), or none if it `stays` until it is stopped.

    `config` is the path of its configuration; it may have `{{tmpdir}}` in it, as the command may.
    """

    command: tuple[str, ...]
    stays: bool = False
    config: str | None = None


def is_nested(command: Sequence[str]) -> bool:
    """Return whether a job with this command is an instance."""
    return len(command) > 1 and command[1] == _BROKER[1] and command[0].rpartition("/")[2] == _BROKER[0]


def parse_nested(command: Sequence[str]) -> Nested:
    """Return the program that the instance is to run. Raise InvalidValue for an option that no broker has."""
    stays, config = False, None
    words = list(command[len(_BROKER) :])
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith(("-v", "--verbose")):
            continue
        option, value = _split(word, words)
        if option == "setattr" and value.partition("=")[0] == _STAYS:
            stays = value.partition("=")[2] not in ("", "0")
        elif option == "config":
            config = value
        elif option == "conf":
            raise InvalidValue("flux broker --conf is not read here: give the configuration to batch with its --conf")
    return Nested(tuple(words), stays, config)


def nested_jobspec(
    jobspec: Mapping[str, Any], nested: Nested, script: str | None, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    """`jobspec`, whose slots are right, as that of a nested instance; with its script and its configuration."""
    options = ["-Sbroker.rc2_none=1"] if nested.stays else []
    files: dict[str, Any] = {}
    if script is not None:
        files["script"] = script_file(script)
    if config is not None:
        options.append(f"-c{{{{tmpdir}}}}/{CONFIG}")
        files[CONFIG] = {"mode": 0o100600, "data": dict(config)}
    task = {**jobspec["tasks"][0], "command": [*_BROKER, *options, *nested.command]}
    made = {**jobspec, "tasks": [task]}
    for key, value in _SHELL_OPTIONS.items():
        made = with_path(made, f"attributes.system.shell.options.{key}", value)
    return with_path(made, "attributes.system.files", files) if files else made


_SHELL_OPTIONS: Final[Mapping[str, Any]] = {"per-resource": {"type": "node"}, "mpi": "none", "exit-timeout": "none"}
"""One broker a node, as Flux's batch asks for it: so that a jobspec of ours is right under Flux, too."""


def _split(word: str, rest: list[str]) -> tuple[str, str]:
    """An option that has a value, and that, from the word itself or the next one."""
    name, equals, value = word.partition("=")
    if not word.startswith("--"):
        name, equals, value = word[:2], word[2:], word[2:]
    if name not in _WITH_VALUE:
        raise InvalidValue(f"flux broker has no option {name}: it has {', '.join(_WITH_VALUE)} and -v")
    if not equals and not rest:
        raise InvalidValue(f"flux broker {name} needs a value")
    return _WITH_VALUE[name], value if equals else rest.pop(0)
