"""The tables of the history: samples, intervals of targets' states, and when instances ran.

Law: what the history has of a time is in one row of `sample`: coarser rows take the place of finer ones.
"""

from __future__ import annotations

from typing import Final

from fluxsched.runtime.storage.usage import USAGE_TABLE

TABLES: Final = (
    "CREATE TABLE sample (step INTEGER, t INTEGER, observed REAL, allocated REAL, free REAL, drained REAL, down REAL, "
    "excluded REAL, rest BLOB, PRIMARY KEY (step, t)) WITHOUT ROWID",
    "CREATE TABLE run (began REAL PRIMARY KEY, seen REAL) WITHOUT ROWID",
    "CREATE TABLE interval (id INTEGER PRIMARY KEY, targets TEXT, state TEXT, note TEXT, began REAL, ended REAL)",
    "CREATE INDEX interval_ended ON interval (ended)",
    USAGE_TABLE,
)
"""`sample` has core-seconds by state and the rest as `samples.Sample.row` packs it. `run` has from when until when (at
least) instances ran. An interval that lasts has no `ended`."""
