"""Who owns the path of a socket: one at a time, and nothing is left of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fluxsched.errors import Refused
from fluxsched.transport.endpoints import PathClaim


def test_a_released_claim_leaves_no_lock_file_behind(tmp_path: Path) -> None:
    claim = PathClaim(tmp_path / "s")
    with pytest.raises(Refused) as refused:
        PathClaim(tmp_path / "s")
    assert refused.value.errnum == errno.EADDRINUSE
    claim.release()
    assert os.listdir(tmp_path) == []
    PathClaim(tmp_path / "s").release()


def test_a_lock_file_that_was_removed_in_between_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = PathClaim(tmp_path / "s")
    opened = os.open
    calls = []

    def open_late(path: str, *rest: int) -> int:
        """The first one ends between the second one's open and its lock."""
        fd = opened(path, *rest)
        calls.append(path)
        if len(calls) == 1:
            first.release()
        return fd

    monkeypatch.setattr("fluxsched.transport.endpoints.os.open", open_late)
    second = PathClaim(tmp_path / "s")
    assert len(calls) == 2
    with pytest.raises(Refused):
        PathClaim(tmp_path / "s")
    second.release()
    assert os.listdir(tmp_path) == []
