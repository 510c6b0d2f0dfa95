"""What users of Slurm and Flux type out of habit: it is understood, or the error says how it is written here."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta
from typing import Any

import pytest


def dry(site: Any, *words: str) -> Any:
    return json.loads(site("submit", *words, "--dry-run", "true").out)["attributes"]["system"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("01:30:00", 5400), ("1:00", 60), ("90:30", 5430), ("1-00:00", 86400), ("1-12", 129600), ("1-2:3:4", 93784)],
)
def test_time_limits_of_slurm(site: Any, text: str, seconds: int) -> None:
    assert dry(site, "-t", text)["duration"] == seconds


def begin_of(site: Any, text: str) -> float:
    (found,) = dry(site, "--begin-time", text)["dependencies"]
    assert found["scheme"] == "begin-time"
    return float(found["value"])


def test_begin_times_of_day(site: Any) -> None:
    now = datetime.now()
    midnight = datetime.combine(now.date() + timedelta(days=1), datetime.min.time()).timestamp()
    for text in ("23:59", "00:00:30", f"{now:%H:%M}"):
        at_s = begin_of(site, text)
        assert now.timestamp() < at_s <= time.time() + 25 * 3600
        assert f"{datetime.fromtimestamp(at_s):%H:%M:%S}".startswith(text)
    assert begin_of(site, "tomorrow") == midnight
    assert begin_of(site, "tomorrow 08:15") == midnight + 8.25 * 3600


def test_several_jobs_in_one_dependency(site: Any) -> None:
    def asked(text: str) -> list[tuple[str, str]]:
        found = dry(site, "--job-name=x", "--dependency", text)["dependencies"]
        return [(one["scheme"], one["value"]) for one in found]

    assert asked("afterok:1:2") == asked("afterok:1,2") == [("afterok", "1"), ("afterok", "2")]
    assert asked("afterok:1,afterany:2:3") == [("afterok", "1"), ("afterany", "2"), ("afterany", "3")]
    assert asked("singleton,after:1") == [("singleton", ""), ("after", "1")]
    for wrong in ("afterok:", "afterok:1::2", "afterok:1,", "1:2"):
        assert "dependency" in site("submit", "--dependency", wrong, "true", status=None).err


def test_each_job_of_an_array_after_its_own_of_another(site: Any) -> None:
    def ids(*words: str) -> list[str]:
        return list(site("submit", *words).out.split())

    def after(jobid: str) -> Any:
        return json.loads(site("job", "info", jobid, "jobspec").out)["attributes"]["system"]["dependencies"]

    ends = "sleep $((FLUX_JOB_CC * 2 - 2)); exit $((FLUX_JOB_CC % 2))"
    first = ids("--cc=1-3", "sh", "-c", ends)
    then = ids("--cc=5-7", "--dependency", f"aftercorr:{first[0]}", "true")
    assert [after(one) for one in then] == [[{"scheme": "afterok", "value": one}] for one in first]
    assert site("wait", then[1]).status == 0, "the second of the first array has succeeded"
    for failed in (then[0], then[2]):
        assert "afterok" in site("wait", failed, status=None).err
    for text in (":".join(reversed(first)), ",".join(reversed(first))):
        again = ids("--cc=1-3", "--dependency", f"aftercorr:{text}", "true")
        assert [after(one)[0]["value"] for one in again] == first[::-1]
    ranged = ids("--cc=1-3", "--dependency", f"aftercorr:{first[0]}..{first[2]},singleton", "--job-name=x", "true")
    assert after(ranged[1]) == [{"scheme": "singleton", "value": ""}, {"scheme": "afterok", "value": first[1]}]
    bulk = site("bulksubmit", "--dependency", f"aftercorr:{first[0]}", "echo", "{}", ":::", "a", "b", "c").out.split()
    assert [after(one)[0]["value"] for one in bulk] == first
    asked = ("--cc=1-2", "--dependency", f"aftercorr:{first[0]}", "true")
    said = f"aftercorr:{first[0]} means 3 jobs, and this command submits 2: each is to wait for one of them, so"
    assert said in site("submit", *asked, status=1).err
    assert said in site("submit", "--dry-run", *asked, status=1).err
    assert "use afterok:JOBID" in site("run", "--dependency", f"aftercorr:{first[0]}", "true", status=1).err
    assert "'x!'" in site("submit", "--dependency", "aftercorr:x!", "true", status=1).err


def test_a_job_after_all_of_an_array(site: Any) -> None:
    first, *others = site("submit", "--cc=1-3", "sh", "-c", "test {cc} -eq 1 || sleep 1000").out.split()
    alone = site("submit", "--dependency", f"afterok:{first}", "true")
    assert f"others of array {first} are not waited for: array={first} would" in alone.err
    last = site("submit", "--dependency", f"afterok:array={first}", "true")
    ranged = site("submit", "--dependency", f"afterany:{first}..{others[1]}", "true")
    assert (last.err, ranged.err) == ("", "")
    site("wait", alone.word)
    assert site.info(last.word)["dependencies"] == [f"afterok={one}" for one in others]
    site("cancel", *others)
    site("wait", ranged.word)
    assert "afterok" in site("wait", last.word, status=1).err


def test_states_and_days_of_slurm(site: Any) -> None:
    held = site.submit("--urgency=hold", "true")
    assert held in site("jobs", "-f", "PD,F", "--since", "today").out
    site("cancel", held)
    assert held in site("jobs", "-f", "ca", "--since", "yesterday").out


def test_output_by_the_options_of_slurm_and_in_no_directory(site: Any) -> None:
    for name in ("out.txt", "out.%j"):
        said = (
            f"-o '{name}' would set a shell option, as in Flux: to name a file write --output FILE, with {{{{id}}}} in"
        )
        assert site("submit", "-o", name, "true", status=1).err.startswith(f"fluxsched: submit: {said}")
    assert "ignoring unsupported shell options: cpu-affinity" in site("submit", "-o", "cpu-affinity=off", "true").err
    missing = f"there is no directory {site.directory}/nodir: make it first\n"
    assert site("submit", "--output", "nodir/{{id}}.out", "true", status=1).err.endswith(f"--output: {missing}")
    assert site("submit", "--error", "nodir/x", "--cc=1-3", "true", status=1).err.endswith(f"--error: {missing}")
    site("submit", "--output", "nodir/x", "--dependency", f"afterany:{site.submit('true')}", "true")


def test_a_batch_script_of_slurm_is_told_how_options_are_written(site: Any) -> None:
    script = site.directory / "slurm.sh"
    script.write_text("#!/bin/sh\n#SBATCH -n 4\n#SBATCH --output=x.out\necho hi\n")
    said = site("batch", "-n1", "--dry-run", str(script)).err
    assert "slurm.sh: 2 #SBATCH lines ignored: options are written here as in `#flux: -N2 " in said
    script.write_text("#!/bin/sh\n#flux: -n1\necho hi '#SBATCH'\n")
    assert site("batch", "--dry-run", str(script)).err == ""


def test_wrap_keeps_words(site: Any) -> None:
    def text(*words: str) -> Any:
        found = json.loads(site("batch", "-n1", "--dry-run", "--wrap", *words).out)
        return found["attributes"]["system"]["files"]["script"]["data"]

    assert text("printf", "%s|", "a  b", "*.c") == "#!/bin/sh\nprintf '%s|' 'a  b' '*.c'\n"
    assert text("echo a | wc; true") == "#!/bin/sh\necho a | wc; true\n", "one word is for the shell"
