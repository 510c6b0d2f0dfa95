"""R for tests: some targets of equal cores, on hosts that are called by their ranks."""

from __future__ import annotations

from typing import Any

from fluxsched.core.idset import Idset


def r_of(
    ranks: str = "0", cores: str = "0-1", *, host: str = "fake", starttime_s: float = 0.0, expiration_s: float = 0.0,
    **by_part: str,
) -> dict[str, Any]:  # fmt: skip
    """Return R with `cores` of each of `ranks`, which are hosts `host`0 and on; `by_part`: the ranks of each part."""
    execution = {
        "R_lite": [{"rank": ranks, "children": {"core": cores}}],
        "nodelist": [f"{host}{rank}" for rank in Idset.parse(ranks)],
        "starttime": starttime_s,
        "expiration": expiration_s,
    }
    scheduling = {"scheduling": {"writer": "fluxsched", "parts": by_part}} if by_part else {}
    return {"version": 1, "execution": execution, **scheduling}
