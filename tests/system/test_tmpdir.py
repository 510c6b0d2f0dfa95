"""The temporary directories of jobs, with real instances: a kill -9 leaves none behind for long."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def test_tmpdir_of_a_killed_instance_goes_with_the_next_start(user: Any, tmp_path: Path, kill_hard: Any) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    user.environ["TMPDIR"] = str(temporary)
    state = tmp_path / "state"
    daemon = user.at(user.process("start", "--daemon", "--test-size", "1", "--statedir", state).word)
    daemon.environ["TMPDIR"] = str(temporary)
    own = Path(daemon("run", "sh", "-c", "echo $TMPDIR").word)
    assert own.parent.parent == temporary
    assert not own.exists()
    beside = daemon("run", "sh", "-c", "ls -A $TMPDIR; ls -A $(dirname $TMPDIR)").out.split()
    assert sorted(beside)[0] == ".kept", "the first job's directory, which it left empty, was kept for this one"
    daemon.running("sh", "-c", "touch $TMPDIR/file; exec sleep 300")
    assert len(list(temporary.glob("*/f*"))) == 1
    kill_hard(daemon.pid())
    user.process("start", "--test-size", "1", "--statedir", state, "--", "true")
    assert os.listdir(temporary) == []
