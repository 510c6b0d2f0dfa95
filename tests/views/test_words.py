"""Durations as page and screen write them."""

from __future__ import annotations

from math import inf

import pytest

from fluxsched.views.words import span_text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0.0, "0s"), (0.0136, "13.6ms"), (0.9, "900ms"), (12.4, "12s"), (12.5, "13s"), (59.6, "1m"), (152.0, "2m 32s"),
        (3599.6, "1h"), (8388.0, "2h 19m"), (86399.0, "23h 59m"), (86400.0 * 3 + 3600 * 4, "3d 4h"), (inf, "infinity"),
    ],
)  # fmt: skip
def test_a_duration_has_its_two_largest_units(duration_s: float, text: str) -> None:
    assert span_text(duration_s) == text
