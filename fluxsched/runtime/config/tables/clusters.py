"""`[[cluster]]` of a configuration: other instances that run jobs of this one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fluxsched.core.targets import SET_KINDS
from fluxsched.errors import InvalidValue
from fluxsched.resource.state.groups import DEFAULT, EXCLUDE
from fluxsched.resource.state.groups import check_name as check_group_name
from fluxsched.runtime.config.toml_reader import TomlTable

CLUSTERS_MAX = 64
"""Each has a connection and a group of its own."""

RETURN_AFTER_S = 60.0
"""How long a job may wait in another instance to be begun, unless `return-after` says otherwise."""

SCHEMES = ("ipc://", "tcp://", "local://")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """One `[[cluster]]`: the other instance's address, the queue for our jobs there (None: its default), the file of
    the key to show at a tcp port, and after how many seconds a job that was not begun there is taken back.
    """

    name: str
    uri: str
    queue: str | None = None
    key: str | None = None
    return_after_s: float = RETURN_AFTER_S

    @property
    def is_flux(self) -> bool:
        """Whether it is a real Flux: at a local socket Flux's own protocol is spoken."""
        return self.uri.startswith("local://")


def read_clusters(root: TomlTable, groups: Iterable[str], directory: Path) -> tuple[ClusterSettings, ...]:
    """Every `[[cluster]]`; files of keys count from `directory`. What is wrong is noted in the document."""
    found: list[ClusterSettings] = []
    taken = {DEFAULT, EXCLUDE, *groups}
    for at, table in enumerate(root.tables("cluster")):
        if at >= CLUSTERS_MAX:
            table.fault(None, f"is above the limit of {CLUSTERS_MAX} clusters")
            break
        one = _cluster(table, taken, directory)
        if one is not None:
            taken.add(one.name)
            found.append(one)
    return tuple(found)


def _cluster(table: TomlTable, taken: set[str], directory: Path) -> ClusterSettings | None:
    name, uri = table.text("name", check_cluster_name), table.text("uri", check_cluster_uri)
    for wanted, such in (("name", "east"), ("uri", "tcp://KEY@east-login:5555")):
        if wanted not in table:
            table.fault(None, f'has no {wanted}, such as {wanted} = "{such}"')
    if name in taken:
        table.fault("name", f"there is a group {name!r} already: a cluster is a group of its own, give another name")
        name = None
    queue, key = table.text("queue"), table.text("key")
    return_after_s = table.duration_s("return-after")
    if return_after_s is not None and not 0.0 < return_after_s < math.inf:
        table.fault("return-after", f"{return_after_s:g} s is not above 0 and finite: give a duration such as 60s")
        return_after_s = None
    table.done()
    if name is None or uri is None:
        return None
    path = None if key is None else str(directory / key)
    return ClusterSettings(name, uri, queue, path, RETURN_AFTER_S if return_after_s is None else return_after_s)


def check_cluster_name(name: str) -> None:
    """Raises InvalidValue for what cannot name a group, or would make a host of the cluster look like a named set."""
    check_group_name(name)
    if name in SET_KINDS:
        raise InvalidValue(f"cluster name {name!r} is the prefix of a set of targets ({name}:NAME): give another name")


def check_cluster_uri(uri: str) -> None:
    """Raises InvalidValue for what is no address of an instance."""
    if not uri.startswith(SCHEMES) or uri in SCHEMES:
        raise InvalidValue(f"{uri[:80]!r} is no address of an instance: it begins with {', '.join(SCHEMES)}")
