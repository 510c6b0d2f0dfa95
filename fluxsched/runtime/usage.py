"""What is wrong with the words of `fluxsched start`, found before anything starts."""

from __future__ import annotations

from fluxsched.errors import InvalidValue
from fluxsched.runtime.policies import check_files, check_policies
from fluxsched.runtime.sources import fake_resources


def check_start(fake: str | None, schedulers: tuple[str, ...]) -> None:
    """Raises InvalidValue for a `--fake` that is none, and for a `--scheduler` that names no policy or file."""
    if fake is not None:
        fake_resources(fake)
    for specs in schedulers:
        if specs == "none":
            continue
        try:
            check_policies(specs)
            check_files(specs)
        except InvalidValue as fault:
            raise InvalidValue(f"--scheduler {specs}: {fault}") from None
