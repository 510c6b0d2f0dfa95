"""`python -m tests.fuzz`: fuzz the parsers, each in a process of its own, and say what was run and what was found.

A defect is printed with its input and the command that replays it; the exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from os import sched_getaffinity
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import corpus
from tests.fuzz.catalogue import find, module_of, targets
from tests.fuzz.judge import judge, limited
from tests.fuzz.target import Target

DIRECTORY = Path(".fuzz")
TIME_S = 10
ROOT = Path(__file__).parents[2]


class Run(NamedTuple):
    """What libFuzzer says of a run."""

    target: str
    inputs: int
    duration_s: float
    coverage: int
    peak_mib: int
    is_whole: bool
    log: str


def main(words: Sequence[str]) -> int:
    """Do what the arguments say; the exit status."""
    asked = _arguments(words)
    if asked.replay:
        return _replay(asked.names[0], Path(asked.replay))
    names = asked.names or [target.name for target in targets()]
    for name in names:
        find(name)
    DIRECTORY.mkdir(exist_ok=True)
    runs: list[Run] = []
    before = set(DIRECTORY.glob("*.report"))
    if not asked.distil_only:
        limit = [f"-runs={asked.runs}"] if asked.runs else []
        limit += [f"-max_total_time={asked.time}"] if asked.time else []
        print(f"{'target':<16}{'inputs':>10}{'inputs/s':>10}{'branches':>10}{'peak MiB':>10}")
        with ThreadPoolExecutor(len(sched_getaffinity(0))) as pool:
            for run in pool.map(lambda name: _fuzzed(name, limit), names):
                runs.append(run)
                _show(run)
        print(f"{'all':<16}{sum(run.inputs for run in runs):>10}")
    if asked.keep or asked.distil_only:
        for name in names:
            _keep(name)
    found = [report for report in sorted(set(DIRECTORY.glob("*.report")) - before) if _is_confirmed(report)]
    for report in found:
        _show_defect(report)
    return 1 if found or not all(run.is_whole for run in runs) else 0


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TARGET", help="targets to fuzz; all if none is named")
    parser.add_argument("--time", type=int, help=f"seconds for each target ({TIME_S} without --runs)")
    parser.add_argument("--runs", type=int, help="inputs for each target")
    parser.add_argument("--keep", action="store_true", help="keep the few inputs that cover most in tests/fuzz/corpus")
    parser.add_argument("--distil-only", action="store_true", help="fuzz nothing, only keep")
    parser.add_argument("--replay", metavar="FILE", help="run the one input in a file through the one target named")
    asked = parser.parse_args(words)
    asked.time = asked.time or (None if asked.runs else TIME_S)
    return asked


def _fuzzed(name: str, limit: list[str]) -> Run:
    began_s = time.monotonic()
    command = [sys.executable, "-m", "tests.fuzz.guided", module_of(name), name, str(DIRECTORY.absolute()), *limit]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    log = done.stderr

    def number(pattern: str) -> int:
        found = re.findall(pattern, log)
        return int(found[-1]) if found else 0

    return Run(
        name,
        number(r"stat::number_of_executed_units: +(\d+)"),
        time.monotonic() - began_s,
        number(r"cov: (\d+)"),
        number(r"stat::peak_rss_mb: +(\d+)"),
        done.returncode == 0,
        log,
    )


def _show(run: Run) -> None:
    print(
        f"{run.target:<16}{run.inputs:>10}{run.inputs / run.duration_s:>10.0f}{run.coverage:>10}{run.peak_mib:>10}",
        flush=True,
    )
    if not run.is_whole:
        print(f"the process of {run.target} ended early:\n{run.log[-2000:]}")


def _is_confirmed(report: Path) -> bool:
    """Whether a hang is one also where no branches are counted, which takes up to ten times as long; else forget it."""
    file = report.with_suffix("")
    if "-hang-" not in file.name:
        return True
    with limited():
        defect = judge(_target_of(file), file.read_bytes())
    if defect is None:
        file.unlink()
        report.unlink()
    return defect is not None


def _target_of(file: Path) -> Target:
    name = re.sub(r"-(crash|hang)-[0-9a-f]+$", "", file.name)
    return find(name)


def _show_defect(report: Path) -> None:
    file = report.with_suffix("")
    target = _target_of(file).name
    print(f"\n{report.read_text()}input: {file.read_bytes()[:500]!r}")
    print(f"replay: {sys.executable} -m tests.fuzz {target} --replay {file}")


def _replay(name: str, file: Path) -> int:
    with limited():
        defect = judge(find(name), file.read_bytes())
    print("no defect" if defect is None else f"{defect.kind}: {defect.place}\n{defect.report}")
    return 0 if defect is None else 1


def _keep(name: str) -> None:
    target = find(name)
    inputs = [file.read_bytes() for file in (DIRECTORY / "inputs" / name).glob("*")]
    with limited():
        kept = corpus.distilled(target, [*corpus.read(target), *target.seeds(), *inputs])
    corpus.write(target, kept)
    print(f"{name}: {len(kept)} of {len(inputs)} inputs kept")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
