"""Where a sum of times passes another time, in the doubles in which they are kept.

Law: a plan and what becomes of it have to agree on who ends by then, and what becomes of it is known as begin + limit,
rounded. The difference of two times is rounded otherwise, so it is no bound for limits: for times of the present day
the two disagree once in a hundred where limits have decimals.
"""

from __future__ import annotations

from math import fsum, inf, nextafter, ulp


def least_beyond(until_s: float, part_s: float) -> float:
    """The least that, added to `part_s`, gives more than `until_s`."""
    rest_s = fsum((until_s, ulp(until_s) / 2, -part_s))
    return rest_s if rest_s + part_s > until_s else nextafter(rest_s, inf)
