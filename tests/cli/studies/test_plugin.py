"""`fluxsched plugin`: what is listed, what a new package is, and what `check` says and exits with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_list_has_ours_with_their_options(cli) -> None:
    done = cli("plugin", "list", "--json")
    (quota,) = [row for row in json.loads(done.out)["plugins"] if row["name"] == "quota"]
    assert quota["options"] == "config="
    assert quota["says"] == "Bounds what banks, queues, users and groups hold at once, by a tree of queues."


def test_a_new_plugin_works_and_keeps_the_laws(cli, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("plugin", "new", "user-cores")
    assert done.code == 0, done.err
    assert "Try it:  fluxsched plugin check user-cores/fluxsched_user_cores.py" in done.out
    place = tmp_path / "user-cores"
    assert 'user-cores = "fluxsched_user_cores:UserCores"' in (place / "pyproject.toml").read_text()
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "gets"], cwd=place,
        env={**os.environ, "PYTHONPATH": str(place), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout
    done = cli("plugin", "check", "./user-cores/fluxsched_user_cores.py:cores=3", "--policy", "fifo", "--json")
    assert done.code == 0, done.err
    verdicts = {rule["rule"]: rule["verdict"] for rule in json.loads(done.out)["rules"]}
    assert verdicts["leaks"] == verdicts["holds"] == verdicts["faults"] == "kept"
    assert cli("plugin", "new", "user-cores").code == 1, "it is there already"
    assert "is not a valid plugin name" in cli("plugin", "new", "No Name").err


def test_check_says_the_line_and_exits_with_1(cli, tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("class Bad:\n    name = 'bad'\n    def look(self, job, rank):\n        return {}[rank]\n")
    done = cli("plugin", "check", str(bad), "-o", "{rule} {verdict} {line}")
    assert done.code == 1
    assert "raises broken bad.py:4" in [" ".join(line.split()) for line in done.out.splitlines()]


def test_check_refuses_what_is_no_plugin(cli, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    init = "class A:\n    name = 'a'\n    def __init__(self, x): ...\n    def look(self, job, rank): ...\n"
    (tmp_path / "init.py").write_text(init)
    for words, code, text in (
        (("none-such",), 2, "no plugin 'none-such'"),
        (("./none.py",), 2, "there is no file ./none.py"),
        (("quota",), 1, "needs a file of queues"),
        (("./init.py",), 1, "plugin ./init.py raised TypeError: A.__init__() missing 1 required"),
        (("quota", "--policy", "none-such"), 2, "no policy 'none-such'"),
    ):
        done = cli("plugin", "check", *words)
        assert (done.code, text in done.err) == (code, True), done.err


def test_a_plugin_that_ends_the_process_is_found_out(cli, tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import os\nclass Bad:\n    name = 'bad'\n    def look(self, job, rank):\n        os._exit(7)\n")
    done = cli("plugin", "check", str(bad), "-o", "{rule} {verdict} {what}")
    assert done.code == 1
    assert "exited with status 7" in done.out or "status 7" in done.out, done.out
