"""Prometheus' text format, version 0.0.4: families of samples as lines.

Own lines instead of prometheus_client, since nothing is counted in this process: its registry would only print what the
instance has counted, and its server starts a thread a request. Tests read what is printed with that package's parser.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple

from fluxsched.protocol.messages.metrics import HistogramValue

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

SampleLabels = Mapping[str, str]
Sample = tuple[SampleLabels, float | HistogramValue]


class Family(NamedTuple):
    """All samples of one name; `labels` are the names that each sample's labels have."""

    name: str
    kind: str
    doc: str
    labels: tuple[str, ...] = ()


def lines(family: Family, samples: Iterable[Sample]) -> list[str]:
    """A family as text. Without samples nothing is said of it."""
    found = [line for labels, value in samples for line in _sample(family.name, labels, value)]
    if not found:
        return []
    return [f"# HELP {family.name} {family.doc}", f"# TYPE {family.name} {family.kind}", *found]


def _sample(name: str, labels: SampleLabels, value: float | HistogramValue) -> list[str]:
    if not isinstance(value, HistogramValue):
        return [f"{name}{_shown(labels)} {_number(value)}"]
    bounds = [*map(_number, value.bounds), "+Inf"]
    upto = list(accumulate(value.counts))
    buckets = [
        f"{name}_bucket{_shown({**labels, 'le': bound})} {count}" for bound, count in zip(bounds, upto, strict=True)
    ]
    return [*buckets, f"{name}_sum{_shown(labels)} {_number(value.sum)}", f"{name}_count{_shown(labels)} {upto[-1]}"]


def _shown(labels: SampleLabels) -> str:
    parts = [f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items()]
    return f"{{{','.join(parts)}}}" if parts else ""


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
