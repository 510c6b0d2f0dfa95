"""Making us a Flux's default scheduler: one drop-in file of `flux modprobe`, written once Flux's Python can import us.

Law: nothing is written before everything has been checked, by asking that very Flux; and only what we wrote is removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fluxsched.config.policies import located
from fluxsched.errors import InvalidValue, Refused
from fluxsched.flux.handle import DEFAULT_POLICY, parse_options
from fluxsched.sched.loading import PLUGIN_SIGN, parse_spec
from fluxsched.sched.registry import inner_option

MODULE = "sched-fluxsched"

FLUX_MIN = (0, 88)
"""First version with Python broker modules in a process of their own, as ours is."""

PRIORITY = 200
"""Priority above those of Flux's and Fluxion's schedulers (50 to 100): the highest is the default one."""

TIMEOUT_S = 60.0
"""Time after which a Flux command is taken to hang (seconds)."""

HOME = str(Path(__file__).parents[2])
"""Directory of the package that this file belongs to."""

MARK = "# written by `fluxsched flux install`; `fluxsched flux uninstall` removes it"

NEEDS = ("fluxsched", "msgspec")
"""Packages that the module imports and Flux does not bring."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The file that was written, and the directories that Flux's Python needs on top of its own."""

    path: Path
    python_path: tuple[str, ...]


def module_path() -> Path:
    """Return the file that `flux module load` takes."""
    return Path(__file__).with_name("broker") / f"{MODULE}.py"


def words_to_load() -> tuple[list[str], str | None]:
    """Return the words for `flux module load`: our file and, where Flux's Python needs it, `python-path=`.

    Then what prevents it, if anything, as text for people. Without a flux on PATH this cannot be found out; then
    a virtual environment is taken to be none of Flux's.
    """
    flux, file, fault = shutil.which("flux"), str(module_path()), None
    extra: tuple[str, ...] = ()
    if flux is not None:
        try:
            extra = _python_path(flux)
        except Refused as refused:
            fault = str(refused)
    elif sys.prefix != sys.base_prefix:
        extra = _beside_us()
    return [file, f"python-path={':'.join(extra)}"] if extra else [file], fault


def examine() -> tuple[str, tuple[str, ...]]:
    """Return the version of the Flux on PATH, and the directories that its Python needs to find us.

    Raises Refused for what stands in the way of `install`.
    """
    flux = _flux()
    return _check_version(flux), _python_path(flux)


def install(options: Sequence[str] = (), directory: Path | None = None) -> Installed:
    """Write the drop-in, with these module options, for the Flux on PATH (or into `directory`), files as absolute.

    Raises InvalidValue for wrong options, Refused naming what is missing and what to do about it.
    """
    parse_options(options, MODULE)
    options = located_options(options, Path.cwd())
    flux = _flux()
    _check_version(flux)
    python_path = _python_path(flux)
    target = _drop_in(flux, directory)
    if target.exists() and not _ours(target):
        raise Refused(f"{target} exists and was not written by fluxsched: move it away first")
    extra = [f"python-path={':'.join(python_path)}"] if python_path else []
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.new")
    fresh.unlink(missing_ok=True)
    with fresh.open("x", encoding="utf-8") as file:  # never through a link that somebody put there
        file.write(_text([*extra, *options]))
    fresh.replace(target)
    return Installed(target, python_path)


def located_options(words: Sequence[str], directory: Path) -> list[str]:
    """Return the module's options with absolute files: a broker starts anywhere, and nested ones elsewhere again."""
    given = dict(word.partition("=")[::2] for word in words if "=" in word)
    inner = inner_option(parse_spec(given.get("policy", DEFAULT_POLICY))[0])

    def located_word(word: str) -> str:
        key, equals, value = word.partition("=")
        if key in ("policy", inner):
            return f"{key}={located(value, directory)}"
        if key == "plugins":
            return f"{key}={located(PLUGIN_SIGN + value.lstrip(PLUGIN_SIGN), directory)[len(PLUGIN_SIGN) :]}"
        return key + equals + value

    return [located_word(word) for word in words]


def uninstall(directory: Path | None = None) -> Path:
    """Remove the drop-in. Raises Refused if it does not exist or is not ours."""
    target = _drop_in(None if directory else _flux(), directory)
    if not target.exists():
        raise Refused(f"{target} does not exist: nothing to remove")
    if not _ours(target):
        raise Refused(f"{target} was not written by fluxsched: remove it by hand if it is not needed")
    target.unlink()
    return target


def _text(args: Sequence[str]) -> str:
    """Return the table that `flux modprobe` reads; JSON strings are TOML strings."""
    return "\n".join([
        MARK,
        "[[modules]]",
        f"name = {json.dumps(MODULE)}",
        f"module = {json.dumps(str(module_path()))}",
        'provides = ["sched", "feasibility"]',
        'after = ["job-manager", "resource"]',
        'requires = ["job-manager", "resource"]',
        'ranks = "0"',
        f"priority = {PRIORITY}",
        f"args = {json.dumps([*args])}",
        "",
    ])  # fmt: skip


def _ours(path: Path) -> bool:
    return path.read_text(encoding="utf-8", errors="replace").startswith(MARK)


def _flux() -> str:
    flux = shutil.which("flux")
    if flux is None:
        raise Refused("no flux on PATH: add the directory of flux-core's `flux` to PATH")
    return flux


def _run(*command: str) -> str:
    # From the top: Python imports what lies where it is started, and the broker is not started here.
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd="/")
    except subprocess.TimeoutExpired as fault:
        raise Refused(f"{' '.join(command)} did not answer within {TIMEOUT_S:.0f} s") from fault
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Refused(f"{os.path.basename(command[0])} {command[1]}: {lines[-1]}")
    return done.stdout.strip()


def _check_version(flux: str) -> str:
    said = _run(flux, "version")
    found = re.search(r"libflux-core:\s*(\d+)\.(\d+)", said)
    if found is None:
        raise Refused(f"{flux} version does not report the version of libflux-core: {said!r:.80}")
    version = int(found[1]), int(found[2])
    if version < FLUX_MIN:
        least = ".".join(map(str, FLUX_MIN))
        raise Refused(f"{flux} is flux-core {version[0]}.{version[1]}: the module needs {least} or later")
    return f"{version[0]}.{version[1]}"


def _drop_in(flux: str | None, directory: Path | None) -> Path:
    if directory is None:
        assert flux is not None
        directory = Path(_run(flux, "config", "builtin", "confdir")) / "modprobe" / "modprobe.d"
    return directory / "fluxsched.toml"


def _python_path(flux: str) -> tuple[str, ...]:
    """Directories without which Flux's Python cannot import us, none where it can. Raises Refused with the remedy."""
    faults = []
    for extra in ((), _beside_us()):
        fault = _import_fault(flux, [*extra, HOME])
        if fault is None:
            return extra
        faults.append(fault)
    theirs = _run(flux, "python", "-c", "import sys; print(*sys.version_info[:2], sep='.')")
    mine = ".".join(map(str, sys.version_info[:2]))
    reason = f"it is Python {theirs}, ours is {mine}; " if theirs != mine else ""
    raise Refused(
        f"Flux's Python cannot import fluxsched ({faults[-1]}): {reason}install fluxsched for it, as with "
        f"`flux python -m pip install fluxsched` or in a virtual environment of Python {theirs}, and run install there"
    )


def _beside_us() -> tuple[str, ...]:
    """Return the directories of the packages that the module needs; its own it finds without help."""
    return tuple(path for path in dict.fromkeys(_home_of(name) for name in NEEDS) if path != HOME)


def _import_fault(flux: str, paths: Sequence[str]) -> str | None:
    code = f"import sys; sys.path += {list(paths)!r}; import flux.brokermod, fluxsched.flux.bridge"
    try:
        _run(flux, "python", "-c", code)
    except Refused as fault:
        return str(fault).partition(": ")[2]
    return None


def _home_of(name: str) -> str:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise InvalidValue(f"{name} is not installed here")
    return str(Path(spec.origin).parents[1])
