"""What tests of R share: short ways to write one, and small sets for hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fluxsched.core import rlite
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import Idset
from fluxsched.core.resources import Children, ResourceSet


def make(rlite_list: Any, nodelist: Any = None, **execution: Any) -> dict[str, Any]:
    obj = {"version": 1, "execution": {"R_lite": rlite_list, **execution}}
    if nodelist is not None:
        obj["execution"]["nodelist"] = nodelist
    return obj


def entry(rank: str, core: str = "0-3", **kinds: str) -> dict[str, Any]:
    return {"rank": rank, "children": {"core": core, **kinds}}


TWO = ResourceSet.parse(
    make([entry("0-3", gpu="0"), entry("4-5", "0-7")], ["a[0-3]", "b[0-1]"], properties={"ssd": "0,4", "+batch": "0-5"})
)

masks = st.integers(0, 255)
targets = st.dictionaries(st.integers(0, 12), st.tuples(masks, st.integers(0, 3)).filter(any), max_size=8)
properties = st.dictionaries(st.sampled_from(["ssd", "+local", "mi50@gpu"]), st.integers(0, 12), max_size=2)


@st.composite
def sets(draw: st.DrawFn) -> ResourceSet:
    """Small sets that agree on who is on which host, as all sets of one instance do."""
    chosen = draw(targets)
    merged = rlite.merge([(rank, Children(Idset(c), Idset(g))) for rank, (c, g) in chosen.items()])
    marked = {name: Idset(1 << rank) for name, rank in draw(properties).items() if rank in chosen}
    hosts = Hostlist(tuple(f"n{rank}" for rank in sorted(chosen)))
    return ResourceSet(merged.entries, hosts, marked)
