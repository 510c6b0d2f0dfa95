"""`fluxsched policy`: a new policy is a package that works, and bad wishes are refused before anything is written."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fluxsched.errors import InvalidValue, Refused
from fluxsched.sim.commands import NAME_CHARS_MAX, POLICY, check_name, make_package
from fluxsched.sim.conformance import check, examine
from fluxsched.system.clock import interrupted
from tests.generated.share import ALL

NO_TIME = float


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A new policy, found as an installed package is: by an entry point on the path."""
    place = tmp_path_factory.mktemp("kit") / "lambda"
    make_package(POLICY, "lambda", place)
    project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
    info = place / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = [f"{name} = {value}" for name, value in project["entry-points"]["fluxsched.policies"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[fluxsched.policies]", *points, ""]))
    return place


def run(package, *command):
    """Python with the package installed."""
    done = subprocess.run(
        [sys.executable, *command], cwd=package,
        env={**os.environ, "PYTHONPATH": str(package), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_its_test_passes(package):
    """The half that checks the laws does what the next test does."""
    status, text = run(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", *([] if ALL else ["-k", "small"]))
    assert status == 0, text
    assert f"{2 if ALL else 1} passed" in text


LAWS = """
from fluxsched.sim import examine
from fluxsched.sched.registry import make, parse_spec
for row in examine(make(*parse_spec("lambda:order=sjf")), cases=1): print(row.rule, row.verdict)
"""


def test_it_is_found_by_its_name_and_keeps_the_laws(package):
    check = "from fluxsched.cli.main import main; main()"
    words = ("policy", "check", "lambda:order=sjf", "-o", "{rule} {verdict}")
    status, text = run(package, "-c", *((check, *words) if ALL else (LAWS,)))
    assert status == 0, text
    assert ["usable", "kept"] in [line.split() for line in text.splitlines()]
    assert "broken" not in text


def test_it_is_tidy(package):
    """What we write for others keeps to the rules that we keep."""
    assert sorted(path.name for path in package.glob("*.*")) == [
        "README.md", "fluxsched_lambda-0.1.0.dist-info", "fluxsched_lambda.py", "pyproject.toml",
        "test_fluxsched_lambda.py",
    ]  # fmt: skip
    for path in package.glob("*.*"):
        if path.is_file():
            assert "$" not in path.read_text()
            assert max(map(len, path.read_text().splitlines())) <= 120
    assert "class Lambda:" in (package / "fluxsched_lambda.py").read_text()


@pytest.mark.parametrize(
    ("name", "words"),
    [("", "not a"), ("Night", "lower-case"), ("9to5", "not a"), ("a--b", "not a"), ("a/b", "not a"),
     ("../x", "not a"), ("a_b", "not a"), ("easy", "policy 'easy' already exists"),
     ("x" * (NAME_CHARS_MAX + 1), f"at most {NAME_CHARS_MAX}")],
)  # fmt: skip
def test_bad_names(tmp_path, name, words):
    with pytest.raises(InvalidValue, match=words):
        make_package(POLICY, name, tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_left_alone(tmp_path):
    (tmp_path / "night").mkdir()
    with pytest.raises(Refused, match="already exists"):
        make_package(POLICY, "night", tmp_path / "night")
    assert list((tmp_path / "night").iterdir()) == []
    with pytest.raises(Refused, match="create it first"):
        make_package(POLICY, "night", tmp_path / "a" / "b")


def test_nothing_is_left_of_what_cannot_be_written(tmp_path, monkeypatch):
    write, left = Path.write_text, [2]

    def fill(self, *args):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return write(self, *args)

    monkeypatch.setattr(Path, "write_text", fill)
    with pytest.raises(OSError, match="No space"):
        make_package(POLICY, "night", tmp_path / "night")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_made_is_refused(tmp_path):
    with pytest.raises(InvalidValue, match="no policy 'nosuch'"):
        check("nosuch", 0, NO_TIME, interrupted)
    file = tmp_path / "raises.py"
    file.write_text("class A:\n    name = 'a'\n    def __init__(self):\n        1 / 0\n"
                    "    def schedule(self, view, now_s): ...\n")  # fmt: skip
    with pytest.raises(InvalidValue, match=r"raised ZeroDivisionError: division by zero \(raises.py:4\)"):
        check(str(file), 0, NO_TIME, interrupted)
    check_name(POLICY, "night-shift")


def test_a_policy_that_returns_instead_of_yielding_is_told_so():
    class Returns:
        name = "returns"

        def schedule(self, view, now_s):
            pass

    (finding,) = {verdict.finding for verdict in examine(Returns(), cases=1, rules=["ordinary"])} - {None}
    assert "schedule returned None: it should be a generator, which yields decisions" in str(finding)
