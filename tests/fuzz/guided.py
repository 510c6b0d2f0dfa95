"""One target in a process of its own, guided by the coverage of its code: atheris (libFuzzer) drives, we mutate.

Law: a defect does not end the run. The first input that shows it is kept in a file and printed, with what replays it.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from random import Random

import atheris

from tests.fuzz.catalogue import find_in

INPUT_BYTES_MAX = 16 << 10
HANGS_MAX = 20
"""Kept of one place: the code that counts its branches is slow, and most are none without that (see __main__)."""
GENERIC_SHARE = 0.25
"""Of inputs that libFuzzer's own mutator makes: it knows which constants the code compares with."""


def main(module: str, name: str, directory: Path, limits: list[str]) -> None:
    """Fuzz a target until libFuzzer's limits are reached; inputs and defects are kept in `directory`."""
    with atheris.instrument_imports(include=["fluxsched"]):
        target = find_in(module, name)
        from tests.fuzz import corpus, judge, mutations

    seeds = sorted({*target.seeds(), *corpus.read(target)})
    inputs = directory / "inputs" / name
    inputs.mkdir(parents=True, exist_ok=True)
    for at, seed in enumerate(seeds):
        (inputs / f"seed-{at}").write_bytes(seed)
    mutator = mutations.Mutator(target, seeds)
    known: Counter[str] = Counter()

    def one(data: bytes) -> None:
        defect = judge.judge(target, data)
        if defect is not None and known[defect.place] < (HANGS_MAX if defect.kind == "hang" else 1):
            known[defect.place] += 1
            file = directory / judge.file_name(target, defect, data)
            file.write_bytes(data)
            file.with_suffix(".report").write_text(f"{defect.kind}: {defect.place}\n{defect.report}")

    def mutate(data: bytes, limit_bytes: int, seed: int) -> bytes:
        chance = Random(seed)
        if chance.random() < GENERIC_SHARE:
            made: bytes = atheris.Mutate(data, limit_bytes)
            return made
        return mutator.mutate(data, limit_bytes, chance)

    options = [
        f"-max_len={INPUT_BYTES_MAX}",
        "-print_final_stats=1",
        "-timeout=60",
        "-rss_limit_mb=2048",
        "-len_control=0",
    ]
    atheris.Setup([sys.argv[0], *options, *limits, str(inputs)], one, custom_mutator=mutate)
    with judge.limited(judge.MEMORY_BYTES_MAX):
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
