"""How many generated cases a run tries: seeds, days, and what hypothesis makes up.

Law: only this depends on the build. The plain one, `make test`, tries an eighth, always the same
first ones; the compiled one, `make test-compiled`, is faster and tries all. So does any build with
`FLUXSCHED_CASES=all`. A test that shows a deliberate defect has the case that shows it, in both.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from fluxsched.core.build import BUILD, COMPILED

T = TypeVar("T")

ALL = BUILD == COMPILED or os.environ.get("FLUXSCHED_CASES") == "all"
SHARE, DEAR = 8, 32
"""Of so many cases the plain build tries one, and of those that cost most."""


def examples(number: int, share: int = SHARE) -> int:
    """How many are tried of so many, at least one."""
    return number if ALL else -(-number // share)


def first(cases: Sequence[T], share: int = SHARE) -> Sequence[T]:
    """Those that are tried of these; what the first do not show comes in the compiled build only."""
    return cases[: examples(len(cases), share)]
