"""The shape of the sources: files, arrows and docstrings, and the way of one job and of one drain through them.

    python benchmarks/house.py [CHECKOUT]

Files are counted with packages' own. A satellite is a file below 150 lines that exactly one file imports, of its own
package. The ways are traced in all processes of an instance of one target (instance, scheduler, keeper; not the client)
by what a module of the name `msgspec` in front of the real one installs: each file that is entered, each class of which
a method runs, and each class of a value that has the job's id, in order. The first job and drain go before, so what is
worked out once is not counted. Compiled calls are not seen.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

SMALL_LINES = 150
FEW_WORDS = 4
RELATIVE = re.compile(r"(What|Whose|Whether|Those|The same|So)\b")
KINDS = {
    "file": "files are entered",
    "class": "classes have a method called",
    "form": "classes of values have its id",
}
TRACER = """
import os, sys, threading, time
here = os.path.dirname(__file__)
sys.path.remove(here)
del sys.modules["msgspec"]
import msgspec
sys.path.insert(0, here)

def trace():
    import mmap
    window = mmap.mmap(os.open(os.path.join(here, "window"), os.O_RDWR), 1)
    log = os.open(os.path.join(here, "log"), os.O_WRONLY | os.O_APPEND)
    seen = set()

    def note(*what):
        if (window[0], *what) not in seen:
            seen.add((window[0], *what))
            os.write(log, f"{window[0]} {what[0]} {time.monotonic()} {what[1]}\\n".encode())

    def value(one):
        kind = type(one)
        if kind.__module__.startswith("fluxsched."):
            for name in ("jobid", "id"):
                found = getattr(one, name, None)
                if type(found) is int and found > 1 << 24:  # no rank, matchtag or user has such a number
                    note("form", kind.__module__ + "." + kind.__name__)

    def follow(frame, event, argument):
        if not window[0] or event not in ("call", "return"):
            return
        code = frame.f_code
        _, package, file = code.co_filename.rpartition("/fluxsched/")
        if package:
            note("file", file)
            owner, dot, _ = code.co_qualname.partition(".")
            if dot and owner[:1] != "<" and owner.lstrip("_")[:1].isupper():
                note("class", file + ":" + owner)
            if event == "return":
                value(argument)
            else:
                for one in list(frame.f_locals.values()):
                    value(one)

    threading.setprofile(follow)
    sys.setprofile(follow)

if "HOUSE_CLIENT" not in os.environ:
    trace()
"""
DRIVER = """
import sys, time, fluxsched
from pathlib import Path
window = open(sys.argv[1], "r+b", 0)
with fluxsched.connect_sync() as handle:
    for number in (0, 1):
        window.seek(0), window.write(bytes([number]))
        jobid = handle.submit(fluxsched.Jobspec.from_command(["true"]))
        handle.wait(jobid)
        time.sleep(2)  # until it is freed
        window.seek(0), window.write(bytes([2 * number]))
        handle.drain("0", "looked at")
        time.sleep(1)
        window.seek(0), window.write(bytes([0]))
        handle.undrain("0")
        time.sleep(1)
"""


def sources(checkout: Path) -> dict[str, ast.Module]:
    """Return the tree of each module, by its dotted name."""
    files = sorted((checkout / "fluxsched").rglob("*.py"))
    names = [".".join(file.relative_to(checkout).with_suffix("").parts).removesuffix(".__init__") for file in files]
    return {name: ast.parse(file.read_text()) for name, file in zip(names, files, strict=True)}


def arrows(trees: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """Return (importer, imported) for all modules, each pair once, wherever the import stands."""
    found = set()
    for module, tree in trees.items():
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = (name if name in trees else name.rpartition(".")[0] for name in names)
            found |= {(module, target) for target in targets if target in trees and target != module}
    return found


def docstrings(trees: dict[str, ast.Module]) -> list[str]:
    """Return the texts of modules, classes, functions and attributes."""
    return [
        node.value.value
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


def lines_below(folder: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in folder.rglob("*.py"))


def shape(checkout: Path) -> None:
    """Print the figures of the sources."""
    trees, package = sources(checkout), checkout / "fluxsched"
    files = sorted(package.rglob("*.py"))
    pairs = arrows(trees)
    importers = defaultdict(set)
    for importer, imported in pairs:
        importers[imported].add(importer)
    lengths = {name: len(file.read_text().splitlines()) for name, file in zip(trees, files, strict=True)}
    satellites = [
        f"{name} ({lengths[name]}) of {importer}"
        for name, (importer, *others) in sorted((name, tuple(found)) for name, found in importers.items())
        if not others and lengths[name] < SMALL_LINES and _package(name) == _package(importer)
    ]
    between = {(_package(one), _package(other)) for one, other in pairs if _package(one) != _package(other)}
    nesting = max(len(file.relative_to(package).parts) - 1 for file in files)
    lines, of_tests = sum(lengths.values()), lines_below(checkout / "tests")
    print(f"{len(files)} files, nested {nesting} deep, {lines:,} lines; {of_tests:,} lines of tests")
    print(f"{len(pairs):,} imports between files, {len(between)} pairs of packages")
    print(f"{len(satellites)} satellites" + "".join(f"\n  {line}" for line in satellites))
    texts = docstrings(trees)
    relative = sum(bool(RELATIVE.match(text)) for text in texts)
    few = sum(len(text.split()) <= FEW_WORDS for text in texts)
    print(f"{len(texts):,} docstrings, {few} of them of {FEW_WORDS} words or fewer")
    print(f"{relative} of them begin with What, Whose, Whether, Those, The same or So")


def _package(module: str) -> str:
    return ".".join(module.split(".")[1:2])


def ways(checkout: Path) -> None:
    """Run an instance, one job and one drain, and print their ways."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "msgspec.py").write_text(TRACER)
        (folder / "window").write_bytes(b"\0")
        (folder / "log").touch()
        environment = os.environ | {"PYTHONPATH": f"{folder}:{checkout}"}
        driver = ["env", "HOUSE_CLIENT=1", sys.executable, "-c", DRIVER, str(folder / "window")]
        start = [sys.executable, "-P", "-m", "fluxsched", "start", "--fake", "1x2", *driver]
        subprocess.run(start, env=environment, check=True)
        rows = [line.split(" ", 3) for line in (folder / "log").read_text().splitlines()]
    rows.sort(key=lambda row: float(row[2]))
    for window, title in (("1", "one job, from submit to free"), ("2", "one drain")):
        for kind, what in KINDS.items():
            found = list(dict.fromkeys(row[3] for row in rows if row[:2] == [window, kind]))
            if found:
                print(f"{title}: {len(found)} {what}\n  " + "\n  ".join(found))


def main() -> int:
    checkout = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    shape(checkout)
    ways(checkout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
