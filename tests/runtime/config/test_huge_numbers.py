"""A number of thousands of digits, which int() refuses to read, is a polite error wherever a number may stand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fluxsched.core.count import Count
from fluxsched.core.duration import parse_duration
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import parse_jobid
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, LimitExceeded
from fluxsched.protocol.framing import codec
from fluxsched.runtime.config.reader import load_config
from fluxsched.runtime.inventory.sources import fake_resources

HUGE = "9" * 5_000
READERS: dict[str, Callable[[], object]] = {
    "idset": lambda: Idset.parse(f"0-{HUGE}"),
    "hostlist": lambda: Hostlist.parse(f"node[0-{HUGE}]"),
    "host": lambda: Hostlist.of([f"node{HUGE}"]),
    "count": lambda: Count.parse(f"1-{HUGE}"),
    "count as a number": lambda: Count.parse(10**7_000),
    "job id": lambda: parse_jobid(HUGE),
    "hexadecimal job id": lambda: parse_jobid("0x" + HUGE),
    "duration": lambda: parse_duration(f"{HUGE}s"),
    "jobspec": lambda: Jobspec.parse(f'{{"version": {HUGE}}}'),
    "R": lambda: ResourceSet.parse(f'{{"version": {HUGE}}}'),
    "local socket": lambda: codec.from_local(f'{{"id": {HUGE}}}\0'.encode()),
    "--fake": lambda: fake_resources(f"{HUGE}x1"),
}


@pytest.mark.parametrize("what", READERS)
def test_a_huge_number_is_a_polite_error(what: str) -> None:
    with pytest.raises(FluxschedError) as found:
        READERS[what]()
    assert len(str(found.value)) < 200
    assert "4300" not in str(found.value)


@pytest.mark.parametrize("line", ["x = {}", "[resource]\nx = -{}", '[[resource.config]]\nhosts = "n"\namounts.x = {}'])
def test_a_huge_number_in_toml_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "c.toml").write_text(f"# mine\n{line.format(HUGE)}\n")
    with pytest.raises(LimitExceeded) as found:
        load_config(tmp_path / "c.toml")
    at = 2 + line.count("\n")
    assert str(found.value) == f"{tmp_path}/c.toml:{at}: a number of thousands of digits: the largest is 2**63 - 1"
