"""What hwloc knows of this machine: `lstopo` run as a program, its XML read; no binding to the library is needed.

Law: a core is what hwloc calls Core, in hwloc's order (near ones are neighbours), with those of its processing units
that we may use. A GPU is a PCI device that a compute runtime (CUDA, NVML, ROCm, Level Zero, OpenCL) speaks for: a mere
display adapter is not.
"""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

from fluxsched.core.idset import Idset

LSTOPO = "lstopo-no-graphics"

LSTOPO_TIMEOUT_S = 10.0
"""It takes 50 ms; where it initialises GPUs that sleep, seconds."""

_COMPUTE = re.compile(r"(?:cuda|nvml|rsmi|ze|opencl)[0-9]")

Found = tuple[tuple[Idset, ...], tuple[str, ...]]
"""The processing units of each usable core, and the id of each GPU."""


def run_lstopo(program: str = LSTOPO) -> str | None:
    """The topology of this machine as XML; None when the program is not there or fails."""
    try:
        done = subprocess.run(
            [program, "--of", "xml"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LSTOPO_TIMEOUT_S,
            check=True,
            encoding="utf-8",
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout


def parse_topology(xml: str, allowed: Idset) -> Found | None:
    """Cores and GPUs of an XML topology; None when it does not cover the processing units that we may use."""
    try:
        root = ElementTree.fromstring(xml)
        cores = tuple([pus for pus in (ids & allowed for ids in _cores(root)) if pus])
        gpus = tuple(dict.fromkeys(_gpus(root, None)))
    except (ElementTree.ParseError, ValueError, KeyError, RecursionError):
        return None
    covered = Idset()
    for pus in cores:
        covered |= pus
    return (cores, gpus) if covered == allowed and cores else None


def _cores(element: ElementTree.Element) -> Iterator[Idset]:
    """Depth first; a processing unit outside any core is one of its own."""
    for child in element:
        kind = child.get("type")
        if kind in ("Core", "PU"):
            yield Idset.of([int(each.attrib["os_index"]) for each in child.iter() if each.get("type") == "PU"])
        else:
            yield from _cores(child)


def _gpus(element: ElementTree.Element, pci: str | None) -> Iterator[str]:
    """Each compute device by its PCI address, or by its name where it has none; one device may come more than once."""
    for child in element:
        if child.get("type") == "OSDev" and _COMPUTE.match(child.get("name", "")):
            yield pci or child.attrib["name"]
        yield from _gpus(child, child.get("pci_busid", pci))
