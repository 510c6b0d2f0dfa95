"""Search for programs that a keeper may execute itself, over a table of mounts that the test writes."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest

from fluxsched.executor import local_programs
from fluxsched.executor.local_programs import (
    ANSWERS_MAX,
    HEAD_BYTES,
    INTERPRETERS_MAX,
    KEPT_S,
    LINKS_MAX,
    LocalPrograms,
)

TRUE = shutil.which("true", path="/usr/bin:/bin")


class Here(LocalPrograms):
    """Programs below a directory, which is the only local file system beside the shell's, unless it says otherwise."""

    def __init__(self, tmp_path: Path) -> None:
        self.now_s, self.tmp_path, self.table = 1.0, tmp_path, tmp_path / "mountinfo"
        self.mount(("/", "1:1", "nfs4"))
        super().__init__(self, self.table)

    def wall_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s

    def mount(self, *points: tuple[str, str, str]) -> None:
        lines = [f"1 1 {device} / {point} rw shared:1 - {kind} source rw\n" for point, device, kind in points]
        self.table.write_text("".join(lines))

    def program(self, name: str, content: str | bytes = "#!/bin/sh\n", mode: int = 0o755) -> Path:
        path = self.tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.fsencode(content))
        path.chmod(mode)
        return path

    def path_of(self, word: str, path: str | None = None, cwd: str | None = None) -> str | None:
        environment = {} if path is None else {b"PATH": os.fsencode(path)}
        found = self.find(os.fsencode(word), environment, os.fsencode(cwd or self.tmp_path))
        return None if found is None else os.fsdecode(found)


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path.resolve())


def test_the_shell_s_file_system_is_as_good_as_a_local_one(here):
    assert here.path_of("true") in (TRUE, "/bin/true", "/usr/bin/true")
    assert here.path_of("true", "/usr/bin:/bin") == TRUE


@pytest.mark.parametrize(("kind", "is_found"), [("ext4", True), ("tmpfs", True), ("nfs4", False), ("autofs", False)])
def test_a_program_elsewhere_is_found_on_local_file_systems_alone(here, kind, is_found):
    program = here.program("my bin/run")
    here.mount(("/", "1:1", "ext4"), (str(program.parent).replace(" ", r"\040"), "2:2", kind))
    assert here.path_of(str(program)) == (str(program) if is_found else None)
    assert here.path_of("run", f"{program.parent}:/bin") == (str(program) if is_found else None)
    assert here.path_of("true", f"{program.parent}:/usr/bin:/bin") == (TRUE if is_found else None)


@pytest.mark.parametrize(("device", "is_found"), [("7:3", False), ("43:0", False), ("8:1", True), ("77:43", True)])
def test_a_device_whose_contents_may_be_on_a_server_is_not_local(here, device, is_found):
    program = here.program("bin/run")
    here.mount(("/", "1:1", "ext4"), (str(program.parent), device, "squashfs"))
    assert here.path_of(str(program)) == (str(program) if is_found else None)


def test_the_last_mount_at_a_point_counts(here):
    program = here.program("bin/run")
    here.mount(("/", "1:1", "ext4"), (str(program.parent), "2:2", "ext4"), (str(program.parent), "3:3", "nfs"))
    assert here.path_of(str(program)) is None


def test_a_mount_is_noticed_after_a_while(here):
    program = here.program("bin/run")
    assert here.path_of(str(program)) == str(program)
    here.mount(("/", "1:1", "ext4"), (str(program.parent), "2:2", "fuse.sshfs"))
    here.now_s += KEPT_S
    assert here.path_of(str(program)) is None


def test_a_search_goes_as_that_of_a_shell(here):
    here.program("first/run", mode=0o644)
    (here.tmp_path / "second/run").mkdir(parents=True)
    found = here.program("third/run")
    path = ":".join(f"{here.tmp_path}/{name}" for name in ("missing", "first", "second", "third"))
    assert here.path_of("run", path) == str(found)
    assert here.path_of("run", "first:third") == "third/run"
    assert here.path_of("third/run") == "third/run"
    assert here.path_of("none", path) is None
    assert here.path_of("run", f":{path}") is None


@pytest.mark.parametrize(
    ("target", "is_found"),
    [("real/run", True), ("../bin/real/run", True), ("away/run", False), ("real/../away/run", False), ("link", False)],
)
def test_no_link_leads_over_what_is_not_local(here, target, is_found):
    (here.tmp_path / "bin").mkdir()
    here.program("bin/real/run")
    here.program("bin/away/run")
    here.mount(("/", "1:1", "ext4"), (f"{here.tmp_path}/bin/away", "2:2", "lustre"))
    link = here.tmp_path / "bin/link"
    link.symlink_to(target)
    assert here.path_of(str(link)) == (str(link) if is_found else None)
    assert here.path_of("link", str(link.parent)) == (str(link) if is_found else None)


@pytest.mark.parametrize("beyond", [0, 1])
def test_so_many_links_to_a_program_are_followed(here, beyond):
    here.program("0")
    for number in range(LINKS_MAX + beyond):
        (here.tmp_path / f"{number + 1}").symlink_to(f"{number}")
    assert here.path_of(f"./{LINKS_MAX + beyond}") == (None if beyond else f"./{LINKS_MAX}")


def test_what_the_kernel_loads_with_a_program_is_local_too(here):
    here.program("away/sh", Path("/bin/sh").read_bytes())
    here.mount(("/", "1:1", "ext4"), (f"{here.tmp_path}/away", "2:2", "nfs"))
    here.program("script", f"#! {here.tmp_path}/away/sh -e\n")
    assert here.path_of("./script") is None
    loader = elf(os.fsencode(here.tmp_path / "away/ld.so"))
    assert here.path_of(here.program("loaded", loader).name, str(here.tmp_path)) is None
    assert here.path_of(here.program("alone", elf(None)).name, str(here.tmp_path)) == f"{here.tmp_path}/alone"


def elf(loader: bytes | None) -> bytes:
    """Return the head of a program of two segments, one of which names its loader."""
    kind, at = (1 if loader is None else 3), 64 + 2 * 56
    segments = [struct.pack("=IIQQQQQQ", kind, 5, at, 0, 0, len(loader or b""), 0, 0) for kind in (1, kind)]
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("=HHIQQQIHHHHHH", 2, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    return head + b"".join(segments) + (loader or b"")


ELF_FAR = b"\x7fELF\x02" + bytes(27) + struct.pack("=Q14xHH", 1 << 63, 56, 1)
"""Its segments begin farther away than any file reaches."""


@pytest.mark.parametrize(
    "content",
    [b"", b"cat\n", b"#!", b"#!\n", b"#!/bin/s\0h\n", ELF_FAR, b"#! sh\n", b"#!" + b"/" * HEAD_BYTES,
     b"\x7fELF\x02", b"\x7fELF\x01" + bytes(99),
     elf(b"/bin/sh")[:100]],
)  # fmt: skip
def test_a_file_that_may_be_no_program_is_left_to_a_shell(here, content):
    here.program("odd", content)
    assert here.path_of("./odd") is None


@pytest.mark.parametrize("beyond", [0, 1])
def test_so_many_interpreters_are_followed(here, beyond):
    here.program("0", elf(None))
    for number in range(INTERPRETERS_MAX - 1 + beyond):
        here.program(f"{number + 1}", f"#!{here.tmp_path}/{number}\n")
    last = f"./{INTERPRETERS_MAX - 1 + beyond}"
    assert here.path_of(last) == (None if beyond else last)


def test_a_fifo_or_directory_is_left_to_a_shell(here):
    os.mkfifo(here.tmp_path / "run", 0o755)
    assert here.path_of("./run") is None
    assert here.path_of("run", str(here.tmp_path)) is None
    assert here.path_of(f"{here.tmp_path}/.") is None


def test_without_a_table_of_mounts_or_with_one_too_long_nothing_is_local(here, monkeypatch):
    here.table.unlink()
    assert here.path_of("true") is None
    here.mount(("/", "1:1", "ext4"))
    monkeypatch.setattr(local_programs, "MOUNTS_BYTES_MAX", here.table.stat().st_size - 1)
    here.now_s += KEPT_S
    assert here.path_of("true") is None


def test_an_answer_is_kept_for_a_while_and_so_many_of_them(here):
    program = here.program("run")
    assert here.path_of("./run") == "./run"
    program.unlink()
    assert here.path_of("./run") == "./run"
    for number in range(ANSWERS_MAX):
        here.path_of(f"./{number}")
    assert here.path_of("./run") is None


def test_the_machine_s_own_table_is_read(here):
    ours = LocalPrograms(here)
    assert ours.find(b"true", {b"PATH": b"/usr/bin:/bin"}, b"/") == os.fsencode(TRUE)
    assert ours.find(b"/proc/self/exe", {}, b"/") is None
