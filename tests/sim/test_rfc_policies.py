"""rfc/policies.md: its policies are made and checked, its tables name what there is, its texts are read."""

import inspect
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from fluxsched.cli.main import main
from fluxsched.sched.loading import parse_spec
from fluxsched.sched.policy import Decision, PendingJob, Plan, View
from fluxsched.sched.registry import OWN, find, make
from fluxsched.sim import Ask, TraceJob, examine, run
from fluxsched.sim.conformance import COST, COST_SAYS, LAWS, RULES, SLACK
from tests.generated.share import examples
from tests.sched.elastic.elastic_site import ElasticSite, jobspec

PAGE = (Path(__file__).parents[2] / "rfc" / "policies.md").read_text()


def blocks(kind):
    found = re.findall(rf"<!-- {kind} -->\n```\w*\n(.*?)```", PAGE, re.DOTALL)
    assert found, kind
    return found


def rows(kind):
    """Cells of a table, by its first."""
    table = PAGE.split(f"<!-- {kind} -->\n")[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
    return {first.strip("`"): rest for first, *rest in cells}


@pytest.mark.parametrize("name", ["shortest", "patient", "urgent", "even"])
def test_its_policies_keep_the_laws(name, tmp_path):
    (text,) = blocks(f"policy: {name}")
    (tmp_path / f"{name}.py").write_text(text)
    policy = make(str(tmp_path / f"{name}.py"), {})
    assert policy.name == name
    assert [one for one in examine(policy, cases=examples(8)) if one.verdict == "broken"] == []


def test_the_one_of_the_guide_that_backfills_keeps_the_laws(tmp_path):
    text = (Path(__file__).parents[2] / "rfc/guides/policy.md").read_text()
    (code,) = re.findall(r"cat > backfill.py <<'END'\n(.*?)^> END", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "backfill.py").write_text(re.sub("(?m)^> ?", "", code))
    found = {each.rule: each for each in examine(make(str(tmp_path / "backfill.py"), {}), cases=examples(3))}
    assert [each for each in found.values() if each.verdict == "broken"] == []
    assert [found[rule].verdict for rule in ("head", "queue-head", "frozen")] == ["kept"] * 3


def test_the_urgent_one_preempts_one_job_that_suffices(tmp_path):
    (tmp_path / "urgent.py").write_text(blocks("policy: urgent")[0])
    jobs = [TraceJob(row, 0.0, 100.0, 200.0, Ask(4), preemptible_after_s=0.0) for row in (1, 2)]
    jobs.append(TraceJob(3, 10.0, 10.0, 20.0, Ask(4), urgency=20))
    found = run(jobs, make(str(tmp_path / "urgent.py"), {}), procs=8).jobs
    assert (found.start[2], found.state[:2].count("preempted"), found.state[2]) == (10.0, 1, "completed")


def test_the_even_one_keeps_elastic_jobs_equally_large(tmp_path):
    (tmp_path / "even.py").write_text(blocks("policy: even")[0])
    site = ElasticSite(make(str(tmp_path / "even.py"), {}), "0-7")
    for jobid in (1, 2):
        site.submit(jobid, jobspec("1-8"))
        site.run()
    sizes = [site.sizes(1, 2)]
    while site.leaving:
        site.gone()
        sizes.append(site.sizes(1, 2))
    assert (sizes[0], sizes[-1], site.refused) == ([7, 0], [4, 4], [])


def test_the_rules_are_those_of_the_suite():
    says = {**LAWS, **{name: rule.says for name, rule in RULES.items()}, COST: COST_SAYS}
    assert {name: cells[0] for name, cells in rows("rules").items()} == says
    assert SLACK == 3


def test_the_table_of_ours_is_complete():
    listed = rows("policies")
    assert listed.keys() == OWN.keys()
    for name in OWN:
        assert re.findall(r"`([\w-]+)`", listed[name][0]) == sorted(find(name).OPTIONS)


def test_the_view_and_the_decisions_are_all_there():
    for name, _ in inspect.getmembers(View):
        assert name.startswith("_") or re.search(rf"^\| .*`{name}[`(]", PAGE, re.MULTILINE), name
    for kind in Decision.__args__:
        assert re.search(rf"^\| `{kind.__name__}[`(]|^\| `{kind.__name__.upper()}`", PAGE, re.MULTILINE), kind
    for name in [*PendingJob._fields, "limit_s", "key"]:
        assert f"`{name}`" in PAGE
    for name, _ in inspect.getmembers(Plan, callable):
        assert name.startswith("_") or re.search(rf"^\| .*`{name}\(", PAGE, re.MULTILINE), name


def test_its_texts_name_policies():
    for spec in blocks("specs")[0].split():
        assert make(*parse_spec(spec)).name in OWN


def test_its_python_runs():
    for text in blocks("python"):
        exec(text, {})


def test_its_commands_are_there():
    for line in blocks("commands")[0].splitlines():
        words = line.removeprefix("$ fluxsched ").split()
        done = CliRunner().invoke(main, [*words[: 2 if words[0] == "policy" else 1], "--help"])
        assert done.exit_code == 0, line
