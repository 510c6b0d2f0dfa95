"""`fluxsched flux`: checked by asking Flux, here a stand-in script, before a file is written; only ours is removed."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from fluxsched.cli.main import main
from fluxsched.errors import InvalidValue, Refused
from fluxsched.flux.install import HOME, MARK, NEEDS, PRIORITY, install, module_path, uninstall

ALSO = {"typing_extensions", "fluxsched__mypyc"}
"""msgspec imports the first where it is there, and a compiled fluxsched the second, which it brings."""
BESIDE = pytest.mark.plain_only("an installed fluxsched has msgspec beside it, so no python-path is needed")

SCRIPT = """#!/bin/sh
case "$1" in
version) echo "libflux-core: {version}" ;;
config) echo {confdir} ;;
python) shift; PYTHONPATH={stubs} exec {python} -S -c "$2" ;;
esac
"""


@pytest.fixture
def flux(tmp_path, monkeypatch):
    """flux(version=..., brokermod=...): a `flux` on PATH; gives the directory of its configuration."""

    def make(version: str = "0.88.0", brokermod: bool = True, python: str = sys.executable) -> Path:
        stubs = tmp_path / "stubs" / "flux"
        stubs.mkdir(parents=True)
        (stubs / "__init__.py").touch()
        if brokermod:
            (stubs / "brokermod.py").touch()
        binary = tmp_path / "bin" / "flux"
        binary.parent.mkdir()
        confdir = tmp_path / "etc"
        binary.write_text(SCRIPT.format(version=version, confdir=confdir, stubs=stubs.parent, python=python))
        binary.chmod(0o755)
        monkeypatch.setenv("PATH", f"{binary.parent}:/usr/bin:/bin")
        return confdir

    return make


def module_words() -> tuple[list[str], str]:
    result = CliRunner().invoke(main, ["flux", "module-path"])
    assert result.exit_code == 0
    return result.stdout.split(), result.stderr


def test_the_module_path_is_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert module_words() == ([str(module_path())], "")
    assert module_path().is_file()


def test_flux_is_told_the_directory_of_the_package():
    (depth,) = re.findall(r"^HOME = Path\(__file__\)\.resolve\(\)\.parents\[(\d)\]$", module_path().read_text(), re.M)
    assert str(module_path().resolve().parents[int(depth)]) == HOME
    assert (Path(HOME) / "fluxsched" / "flux" / "install.py").is_file()


def test_the_broker_module_imports_only_the_packages_that_install_looks_for():
    code = (
        "import sys; before = set(sys.modules); import fluxsched.flux.bridge; "
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - ALSO == set(NEEDS)


@BESIDE
def test_module_path_prints_the_python_path_that_a_virtual_environment_needs(flux):
    """What `flux module load $(fluxsched flux module-path)` is given; `flux install` writes the same."""
    flux()
    words, told = module_words()
    needed = install().python_path
    assert needed
    assert (words, told) == ([str(module_path()), f"python-path={':'.join(needed)}"], "")


@BESIDE
def test_module_path_without_a_flux_to_ask(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", "/somewhere/venv")
    [file, option] = module_words()[0]
    assert (file, option.partition("=")[0]) == (str(module_path()), "python-path")


def test_module_path_says_what_stands_in_the_way(flux):
    flux(brokermod=False)
    words, told = module_words()
    assert words == [str(module_path())]
    assert told.startswith("fluxsched: flux module-path: Flux's Python cannot import fluxsched")


def test_install_writes_through_no_link(flux, tmp_path):
    flux()
    path, precious = install().path, tmp_path / "precious"
    precious.write_text("x")
    path.with_name(f".{path.name}.new").symlink_to(precious)
    install(["policy=fifo"])
    assert precious.read_text() == "x"
    assert "policy=fifo" in path.read_text()


@BESIDE
def test_install_writes_a_table_that_wins(flux):
    confdir = flux()
    done = install(["policy=fifo", "placement=best-fit"])
    assert done.path == confdir / "modprobe" / "modprobe.d" / "fluxsched.toml"
    (table,) = tomllib.loads(done.path.read_text())["modules"]
    assert table["name"] == "sched-fluxsched"
    assert table["module"] == str(module_path())
    assert table["provides"] == ["sched", "feasibility"]
    assert table["priority"] == PRIORITY > 100
    assert table["args"][-2:] == ["policy=fifo", "placement=best-fit"]
    assert table["args"][:-2] == [f"python-path={':'.join(done.python_path)}"]  # where msgspec is
    install()
    assert uninstall() == done.path
    assert not done.path.exists()


@pytest.mark.parametrize(
    ("given", "words", "error", "why"),
    [
        ({"version": "0.87.0"}, [], Refused, "0.87: the module needs 0.88"),
        ({"version": "what"}, [], Refused, "does not report the version"),
        ({"brokermod": False}, [], Refused, "import fluxsched .*No module named 'flux.brokermod'.* flux python -m pip"),
        ({"python": "/bin/false"}, [], Refused, "exit status 1"),
        ({}, ["policy=nope"], InvalidValue, "no policy 'nope'"),
    ],
)
def test_nothing_is_written_when_something_is_wrong(flux, given, words, error, why):
    confdir = flux(**given)
    with pytest.raises(error, match=why.replace(" flux python", ".*flux python")):
        install(words)
    assert not confdir.exists()


@BESIDE
def test_files_are_absolute_wherever_the_broker_starts(flux, tmp_path, monkeypatch):
    pytest.importorskip("yaml")
    flux()
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    name = 'mine'\n\n    def schedule(self, view, now_s):\n        yield from ()\n"
    )
    hook = "class Gate:\n    name = 'gate'\n\n    def pre_enqueue(self, job):\n        pass\n"
    (tmp_path / "gate.py").write_text(hook)
    (tmp_path / "q.yaml").write_text("partitions: [{name: default, queues: [{name: root}]}]")
    monkeypatch.chdir(tmp_path)
    done = install(["policy=./mine.py", "plugins=gate.py|quota:config=q.yaml", "queue-depth=4"])
    words = tomllib.loads(done.path.read_text())["modules"][0]["args"][1:]
    assert words == [
        f"policy={tmp_path}/mine.py",
        f"plugins={tmp_path}/gate.py|quota:config={tmp_path}/q.yaml",
        "queue-depth=4",
    ]
    again = install(["policy=fair", "backfill=./mine.py"]).path.read_text()
    assert f"backfill={tmp_path}/mine.py" in again


def test_without_flux_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(main, ["flux", "install"])
    assert result.exit_code == 1
    assert "no flux on PATH" in result.stderr


def test_what_is_not_ours_stays(flux, tmp_path):
    flux()
    other = tmp_path / "fluxsched.toml"
    with pytest.raises(Refused, match="nothing to remove"):
        uninstall(tmp_path)
    other.write_text("[[modules]]\n")
    for act in (lambda: install([], tmp_path), lambda: uninstall(tmp_path)):
        with pytest.raises(Refused, match="not written by fluxsched"):
            act()
    other.write_text(f"{MARK}\n")
    result = CliRunner().invoke(main, ["flux", "uninstall", "--dir", str(tmp_path)])
    assert result.stdout == f"{other}: removed\n"


def test_install_says_what_it_did(flux, tmp_path, monkeypatch):
    flux()
    (tmp_path / "flux.py").touch()  # what lies where the command is run is not what the broker imports
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["flux", "install", "--dir", str(tmp_path / "d"), "policy=fifo"])
    assert result.stdout.startswith(f"{tmp_path / 'd' / 'fluxsched.toml'}: written")
