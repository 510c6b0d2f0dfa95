"""What is wrong with the words of `fluxsched start`, found before anything starts.

Law: only what the words alone say is judged, and no code of a plugin is run: that is for its own process to do.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from fluxsched.errors import InvalidValue
from fluxsched.runtime.sources import fake_resources
from fluxsched.sched.registry import ENTRY_POINT_GROUP, OWN, make, parse_spec


def check_start(fake: str | None, schedulers: tuple[str, ...]) -> None:
    """Raises InvalidValue for a `--fake` that is none, and for a `--scheduler` that names no policy or file."""
    if fake is not None:
        fake_resources(fake)
    for spec in schedulers:
        if spec != "none":
            _check_scheduler(spec)


def known_policies() -> list[str]:
    """Names of policies: ours and those of packages."""
    return sorted({*OWN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def _check_scheduler(spec: str) -> None:
    try:
        for at, part in enumerate(spec.split(";")):
            _check_policy(part.partition("=")[2] if at else part)  # `SPEC;QUEUE=SPEC`
    except InvalidValue as fault:
        raise InvalidValue(f"--scheduler {spec}: {fault}") from None


def _check_policy(spec: str) -> None:
    name, options = parse_spec(spec)
    if name in OWN:
        make(name, options)
    elif "/" in name or name.endswith(".py"):
        if not Path(name).is_file():
            raise InvalidValue(f"there is no file {name}")
    elif name not in (known := known_policies()):
        raise InvalidValue(f"no policy {name!r}: there are {', '.join(known)}; a file is named with its '.py'")
