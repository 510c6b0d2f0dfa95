"""What a job used and how it ended, as commands show it, and as a restart finds it again."""

from __future__ import annotations

from typing import Any


def test_job_info_and_jobs_say_how_it_ended_and_what_it_used(site: Any) -> None:
    jobid = site.submit("-n2", "sh", "-c", "if [ $FLUX_TASK_RANK = 1 ]; then kill -SEGV $$; fi; exit 3")
    site("wait", jobid, status=None)
    told = site("job", "info", jobid).out
    assert "ended: exited 3" in told
    assert "\ntask 1: killed by SIGSEGV, " in told
    assert "peak memory" in told
    found = site("job", "info", "--json", jobid).json
    assert (found["ended"], found["returncode"]) == ("exited 3", 3)
    assert [task["ended"] for task in found["usage"]["tasks"]] == ["exited 3", "killed by SIGSEGV"]
    assert found["usage"]["wall_s"] > 0
    form = "{id} {ended} {returncode} {inactive_reason} {wall:.3f} {cpu:.3f} {max_rss_bytes}"
    lines = site("jobs", "-a", "-n", "-o", form).out.splitlines()
    assert " exited 3 3 exited 3 " in next(line for line in lines if line.startswith(str(found["id"])))
    assert "MAXRSS" in site("jobs", "-a", "-o", "usage").line


def test_what_a_job_used_is_known_after_a_restart(user: Any, tmp_path: Any) -> None:
    state = tmp_path / "state"
    words = ("start", "--test-size", "1", "--statedir", state, "--")
    script = "j=$(fluxsched submit false); fluxsched wait $j; echo $j"
    jobid = user.process(*words, "sh", "-c", script).word
    after = user.process(*words, "fluxsched", "job", "info", jobid).out
    assert "ended: exited 1" in after
    assert "used: " in after
