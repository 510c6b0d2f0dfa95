"""All checks of `fluxsched doctor`, in the order in which they are shown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fluxsched.doctor.installed import Check, installation, is_well

__all__ = ["Check", "examine", "is_well"]


def examine(statedir: Path | None) -> Iterator[Check]:
    """Look at everything; a check at a time, for some take a while."""
    yield from installation()
    try:  # a dependency that is missing has been named by now, and is no reason to fail here
        from fluxsched.doctor.homes import directories, engine, homes, instances
    except ImportError as fault:
        remedy = "pip install --force-reinstall fluxsched"
        yield Check("Where schedulers run", "all", "fail", f"cannot be imported: {fault}", remedy)
        return
    yield from directories(statedir)
    yield from instances()
    yield from engine(os.environ)
    yield from homes()
