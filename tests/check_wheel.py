"""Try what `make wheel` has put into dist/ as people install it: each file in an empty environment without sources.

    python tests/check_wheel.py [--quick] [DIST]

First without extras: commands, the tour, a job, a policy of one's own by its entry point, and what is said for each
missing extra; then with each of them; then with all, the page; then the system tests, which --quick leaves out, from a
copy that has no package. Wheels for other Pythons than this one are passed over.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = (
    "tests", "examples", "rfc", "benchmarks", "pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md",
    "Makefile",
)  # fmt: skip
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"

NEEDS = {"plots": "sim run trace.swf --plot x.png", "si": "si serve", "tui": "top", "web": "web"}
"""For each extra a command that needs it, and which names the extra if it is missing."""
PROGRAMS = {"client": "import msgpack", "dask": "import fluxsched.client.dask"}
"""For each extra without commands what programs import."""

PAGE = """fluxsched web --bind 127.0.0.1:0 >page.txt &
until grep -q http page.txt; do sleep 0.1; done
python - <<'END'
import urllib.request as web
address = "http" + open("page.txt").read().split("http")[1].split()[0]
print(web.build_opener(web.HTTPCookieProcessor()).open(address).status)
END
kill $!
"""


class Installed:
    """One file of dist/, installed in an environment of its own."""

    def __init__(self, file: Path, folder: Path) -> None:
        self._file = file
        self.folder = folder
        self._bin = folder / "venv/bin"
        self.build = "compiled" if TAG in file.name else "plain"
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        self.install()

    def install(self, extras: str = "") -> None:
        began = time.monotonic()
        self._run([self._bin / "pip", "install", "-q", "--disable-pip-version-check", f"{self._file}{extras}"])
        print(f"  pip install {self._file.name}{extras}: {time.monotonic() - began:.0f} s")

    def _run(self, words: list[str | Path], *, status: int = 0, cwd: Path | None = None) -> str:
        environment = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR", "USER") if name in os.environ}
        environment |= {"PATH": f"{self._bin}:/usr/bin:/bin", "PYTHONSAFEPATH": "1", "FLUXSCHED_EXPECT": self.build}
        done = subprocess.run(words, cwd=cwd or self.folder, env=environment, capture_output=True, text=True)
        if done.returncode != status:
            raise SystemExit(f"{' '.join(map(str, words))}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def expect(self, command: str, *parts: str, status: int = 0) -> str:
        """Run a shell's command line in the environment, and have its output contain all parts."""
        printed = self._run(["/bin/sh", "-c", command], status=status)
        for part in parts:
            if part not in printed:
                raise SystemExit(f"{command}: no {part!r} in\n{printed}")
        print(f"  {command}: right")
        return printed

    def system_tests(self) -> None:
        outside = self.folder / "outside"
        outside.mkdir()
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, outside / name)
        words = [self._bin / "python", "-m", "pytest", "-q", "-n", "auto", "--maxprocesses=4", "tests/system"]
        print(f"  tests/system: {self._run(words, cwd=outside).splitlines()[-1]}")


def tried(file: Path, folder: Path, quick: bool) -> None:
    it = Installed(file, folder)
    it.expect("fluxsched --version", f"({it.build})")
    it.expect("python -c 'import fluxsched; print(fluxsched.__file__)'", "site-packages")
    it.expect("ls venv/share/man/man1 venv/share/bash-completion/completions", "fluxsched-run.1", "fluxsched\n")
    it.expect("fluxsched start --fake 2x4 -- fluxsched run -n 2 hostname")
    it.expect("fluxsched start --fake 2x4 -- fluxsched doctor", "ok")
    shutil.copy(ROOT / "examples/tour.py", folder)
    it.expect("python tour.py", "The instance has exited with status 0")
    it.expect("fluxsched sim gen --jobs 100 --swf -o trace.swf && fluxsched sim run trace.swf --policy easy", "easy")
    for extra, command in NEEDS.items():
        it.expect(f"fluxsched {command} 2>&1; exit 0", f"fluxsched[{extra}]")
    it.expect("fluxsched policy new mine && pip install -q ./mine && fluxsched policy list", "mine")
    it.expect("fluxsched sim run trace.swf --policy mine", "mine")
    it.expect("fluxsched start --fake 2x4 --scheduler mine -- fluxsched run hostname")
    for extra, command in NEEDS.items():
        it.install(f"[{extra}]")
        if f"fluxsched[{extra}]" in it.expect(f"timeout 20 fluxsched {command} 2>&1 </dev/null; exit 0"):
            raise SystemExit(f"{command}: needs more than the extra {extra}")
    for extra, program in PROGRAMS.items():
        it.expect(f"python -c '{program}' 2>&1; exit 0", "Error: ")
        it.install(f"[{extra}]")
        it.expect(f"python -c '{program}'")
    proto = 'import importlib.resources as r; print(*(r.files("fluxsched.yunikorn") / "si.proto").open())'
    it.expect(f"python -c '{proto}'", "service Scheduler")
    it.install("[all]")
    (it.folder / "page.sh").write_text(PAGE)
    it.expect("timeout 60 fluxsched start --fake 2x4 -- sh page.sh", "200")
    if not quick:
        it.install("[dev]")
        it.system_tests()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--quick", action="store_true", help="without the system tests")
    options = parser.parse_args()
    files = sorted([*options.dist.glob("*.whl"), *options.dist.glob("*.tar.gz")])
    if not files:
        raise SystemExit(f"{options.dist}: no wheel there; `make wheel` makes them")
    for file in files:
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")
        if "-cp" in file.name and f"-{TAG}-" not in file.name:
            print(f"  passed over: not for this Python {sysconfig.get_python_version()}")
            continue
        with tempfile.TemporaryDirectory(prefix="fluxsched-wheel-") as folder:
            tried(file, Path(folder), options.quick)


if __name__ == "__main__":
    main()
