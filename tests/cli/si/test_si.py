"""`fluxsched si`: what its start imports, what it says without the extra, and wrong words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("grpc", "google.protobuf", "yaml", "asyncio")

RUN = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in %r:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from fluxsched.cli.main import main
try:
    main()
except SystemExit as end:
    print(end.code, *sorted({*%r} & set(sys.modules)), file=sys.stderr)
"""


def run(*words: str, missing: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    code = RUN % (missing, HEAVY)
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("words", ["--help", "si --help", "si check --help", "si status --help", "si rm --help"])
def test_help_imports_neither_grpc_nor_protobuf(words: str) -> None:
    done = run(*words.split())
    assert (done.stderr, done.stdout[:6]) == ("0\n", "Usage:")


@pytest.mark.parametrize(
    ("missing", "packages"),
    [(("grpc",), "grpcio"), (("google",), "protobuf"), (("grpc", "google", "yaml"), "grpcio, protobuf, PyYAML")],
)
def test_without_the_extra_it_says_what_to_install(missing: tuple[str, ...], packages: str) -> None:
    done = run("si", "dump", missing=missing)
    wanted = f"fluxsched: si dump: needs {packages}: pip install 'fluxsched[si]'\n1\n"
    assert (done.stdout, done.stderr) == ("", wanted)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nonsense"], "'nonsense' is not an address: write unix:PATH or HOST:PORT"),
        (["unix:"], "has no file path"),
        (["localhost:65536"], "port 65536 is above the limit of 65535"),
        ([f"unix:/{'x' * 107}"], "has 108 bytes, the limit of the system is 107"),
        (["unix:/s", "--cert", __file__], "is a local socket and takes no certificates"),
        (["localhost:1", "--cert", __file__], "--cert, --key and --ca belong together: name all three"),
    ],
)
def test_wrong_words_are_wrong_usage(cli, words: list[str], says: str) -> None:
    pytest.importorskip("grpc")
    done = cli("si", "dump", *words)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_without_a_service_it_says_how_to_start_one(cli, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    address = f"unix:{os.path.relpath(tmp_path)}/none"
    done = cli("si", "dump", address)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"fluxsched: si dump: no scheduler service answers at unix:{tmp_path}/none: start one with fluxsched si serve\n"
    )
