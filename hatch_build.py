"""The build hook of wheels: it adds manuals, completion and .proto files, and with FLUXSCHED_COMPILE=1 mypyc compiles.

What is compiled is chosen in pyproject.toml. A wheel keeps the sources beside it, for tracebacks; Python prefers the
compiled. Without the variable, and in an editable installation, nothing is compiled, and neither a compiler nor mypy is
needed. hatch-mypyc would be needed in either case, cannot be switched on by a variable of ours, and puts what it builds
into the sources.

FLUXSCHED_COMPILE_OPT is gcc's optimisation level; what is built is kept in build/, for the next time.
"""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ASKED = "FLUXSCHED_COMPILE"
OPT_LEVEL = "FLUXSCHED_COMPILE_OPT"
PLAIN = re.compile("^# Not compiled: ", re.MULTILINE)
"""Begins the line by which a module that a pattern names is left as it is, with the reason."""

NEEDED = ["mypy>=1.18", "setuptools>=77"]


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling has no types here
    """Adds compiled modules to a wheel, if it was asked to."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what the build needs besides hatchling: what the commands and compiled modules import, and mypyc."""
        return [*(NEEDED if _asked() else ()), *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        build_data["shared_data"].update(_manual(Path(self.root)))
        protos = Path(self.root, "rfc").glob("*.proto")  # what authors of resource managers compile
        build_data["force_include"].update({str(file): f"fluxsched/yunikorn/{file.name}" for file in protos})
        if not _asked():
            return
        with chdir(self.root):
            built = _compile(_chosen(self.config["compiled"]), Path("build"))
        build_data["force_include"].update({str(Path(self.root, file)): name for name, file in built.items()})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def _manual(root: Path) -> dict[str, str]:
    """Write the manual pages and completion scripts; where each belongs below a prefix, by its file."""
    sys.path.insert(0, str(root))
    from fluxsched.cli.manual import write

    return {str(file): path for path, file in write(root / "build").items()}


def _asked() -> bool:
    return os.environ.get(ASKED, "0") not in ("", "0")


def _chosen(compiled: list[str]) -> list[str]:
    """Return the modules to compile, none of which is marked as plain. Ends the build if a pattern names no file."""
    found = {pattern: list(Path().glob(pattern)) for pattern in compiled}
    stale = [pattern for pattern, files in found.items() if not files]
    if stale:
        raise SystemExit(f"pyproject.toml: no file is named {', '.join(stale)} any more")
    files = {file for pattern in compiled for file in found[pattern] if file.name != "__init__.py"}
    return sorted(str(file) for file in files if not PLAIN.search(file.read_text()))


def _compile(modules: list[str], build: Path) -> dict[str, Path]:
    """Compiles the modules; what was built, by its name in the wheel."""
    from mypyc.build import mypycify  # here: a plain build needs neither mypyc nor setuptools
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class SideBySide(build_ext):  # type: ignore[misc]
        """Compiles several C files at once: nearly all belong to one extension, which alone would take them in turn."""

        def build_extensions(self) -> None:
            one = self.compiler.compile
            with ThreadPoolExecutor(os.cpu_count()) as pool:

                def compile_all(sources: list[str], **options: Any) -> list[str]:
                    return [made for (made,) in pool.map(lambda source: one([source], **options), sources)]

                self.compiler.compile = compile_all
                super().build_extensions()

    extensions = mypycify(
        modules,
        multi_file=True,  # a C file a module
        group_name="fluxsched",
        target_dir=str(build / "c"),
        opt_level=os.environ.get(OPT_LEVEL, "2"),
        debug_level="0",
    )
    for extension in extensions:
        extension.extra_compile_args.append("-Wno-error")  # other compilers warn of other things
    command = SideBySide(Distribution({"name": "fluxsched", "ext_modules": extensions}))
    command.build_lib, command.build_temp, command.parallel = str(build / "lib"), str(build / "o"), os.cpu_count()
    command.ensure_finalized()
    command.run()
    return {command.get_ext_filename(one.name): Path(command.get_ext_fullpath(one.name)) for one in extensions}
