"""The table of what jobs used: a row for an hour or a day and for each user, bank, queue, group and set of properties.

Law: all columns but the key are sums, so rows are added to, and rows of some time together are one of a longer time.
"""

from __future__ import annotations

from typing import Final

WAITS: Final = 54
"""Ranges by which waits are counted: those of `histogram.WAITS_S`, and what is above."""
KEY: Final = ("userid", "bank", "queue", "grp", "properties")
"""Whose it is. `properties` are names in order, each in a line."""
RESULT_COLUMNS: Final = ("completed", "failed", "canceled", "timeout")
SUMS: Final = (
    *RESULT_COLUMNS, "core_s", "gpu_s", "cpu_s", "cpu_core_s", "wait_s", *(f"w{at}" for at in range(WAITS)),
)  # fmt: skip
"""Jobs that ended by result; seconds of cores, of GPUs, of CPU time where it was measured, and of the cores for which
it was; seconds that jobs waited, and how many waited how long."""

_ADDED: Final = f" ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in SUMS)}"
HOUR: Final = 3600
DAY: Final = 86_400
"""Steps: hours, and days, which may have an hour more or less."""

_COLUMNS: Final = ", ".join(("step", "t", *KEY, *SUMS))

_TYPED: Final = ", ".join(name + (" REAL" if name.endswith("_s") else " INTEGER") for name in SUMS)
USAGE_TABLE: Final = (
    "CREATE TABLE usage (step INTEGER, t INTEGER, userid INTEGER, bank TEXT, queue TEXT, grp TEXT, properties TEXT, "
    f"{_TYPED}, PRIMARY KEY (step, t, {', '.join(KEY)})) WITHOUT ROWID"
)
ADD_USAGE: Final = (
    f"INSERT INTO usage ({_COLUMNS}) VALUES ",
    f"({','.join('?' * (2 + len(KEY) + len(SUMS)))})",
    _ADDED,
)
ADD_USAGE_UP: Final = (
    f"INSERT INTO usage ({_COLUMNS}) SELECT {DAY}, ?1, {', '.join((*KEY, *SUMS))} "
    f"FROM usage WHERE step = {HOUR} AND t = ?2{_ADDED}"
)
"""Adds an hour to a day."""

COUNTED: Final = ("instance", "counted")
"""The row of `saved` that has the last row of jobs that `usage` knows of."""
ALL_IS_COUNTED: Final = (
    "INSERT OR REPLACE INTO saved (kind, key, value) "
    "SELECT 'instance', 'counted', CAST(coalesce(max(seq), 0) AS TEXT) FROM job_log"
)
"""Notes that `usage` has all jobs whose ends are on disk."""
FEWER_ARE_COUNTED: Final = (
    "UPDATE saved "
    "SET value = CAST(min(CAST(value AS INTEGER), (SELECT coalesce(max(seq), 0) FROM job_log)) AS TEXT) "
    "WHERE kind = 'instance' AND key = 'counted'"
)
"""Has the note be true after jobs were removed, whose numbers are given anew."""
