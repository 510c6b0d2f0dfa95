"""`fluxsched resource`: what it shows, word for word, and what it asks."""

from __future__ import annotations

import copy
import json

import pytest

from fluxsched.cli import output as show
from fluxsched.cli.resource import JOBS_SHOWN_MAX
from fluxsched.cli.target_rows import where_of
from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import RPCError

GROUPS = {
    "groups": [
        {"name": "default", "targets": "0-1,3", "leaving": "1", "incoming": "", "acquired": True, "dialect": "typed"},
        {"name": "exclude", "targets": "2", "leaving": "", "incoming": "1", "acquired": False},
    ]
}
LIST = """\
     STATE NNODES   NCORES    NGPUS NODELIST
      free      3       10        3 node[0-2]
 allocated      1        2        0 node0
      down      1        4        1 node3
"""
LIST_LONG = """\
     STATE PROPERTIES NNODES   NCORES    NGPUS RANKS    NODELIST
      free ssd             2        6        2 0-1      node[0-1]
      free                 1        4        1 2        node2
 allocated                 1        2        0 0        node0
      down                 1        4        1 3        node3
"""
STATUS = """\
     STATE UP NNODES NODELIST
     avail  ✔      1 node0
   exclude  ✔      1 node2
   drained  ✔      1 node1
 draining*  ✗      1 node3
"""
STATUS_LONG = """\
     STATE UP GROUP    NNODES USER     REASON                         RANKS    NODELIST
     avail  ✔ default       1                                         0        node0
   exclude  ✔ exclude       1                                         2        node2
   drained  ✔ default       1 kim      disk fails, replace            1        node1
 draining*  ✗ default       1                                         3        node3
"""
DRAIN = """\
TIMESTAMP    STATE     USER     REASON                         NODELIST
Nov14 22:13  drained   kim      disk fails, replace            node1
Nov14 22:14  draining*                                         node3
"""
GROUP_TABLE = """\
GROUP      NNODES  LEAVING INCOMING ACQUIRED RANKS    NODELIST
default         3        1          typed    0-1,3    node[0-1,3]
exclude         1                 1 no       2        node2
"""


@pytest.fixture
def ask(cli, sched_status, status, targets):
    answers = {
        "resource.sched-status": sched_status, "resource.status": status, "resource.groups": GROUPS,
        "resource.targets": targets(),
    }  # fmt: skip
    return lambda *args, **kw: cli("resource", *args, answers={**answers, **kw.pop("answers", {})}, **kw)


@pytest.mark.parametrize(
    ("args", "want"),
    [
        ("list", LIST),
        ("list -o long", LIST_LONG),
        (
            "list -n -s down,free",
            "      down      1        4        1 node3\n      free      3       10        3 node[0-2]\n",
        ),
        ("list -n -s all,up -o {state}={rlist}", "all=rank[0-3]/core[0-3],gpu0\nup =rank[0-2]/core[0-3],gpu0\n"),
        ("list -n -i node0", "      free      1        2        1 node0\n allocated      1        2        0 node0\n"),
        ("list -n -s free,down -o {nodelist}", "node[0-3]\n"),
        ("status", STATUS),
        ("status -o long", STATUS_LONG),
        ("status -n -s drain", "   drained  ✔      1 node1\n draining*  ✗      1 node3\n"),
        ("status -n -s offline", " draining*  ✗      1 node3\n"),
        ("status -n -i 0,2 -o {ranks}", "0,2\n"),
        ("status -n -o {up:>2} -o {up}-{nodelist}", "✔-node[0-2]\n✗-node3\n"),
        ("status -n -o {properties}:{ranks}", "ssd:0-1\n   :2-3\n"),
        ("drain", DRAIN),
        ("drain -n -o {nodelist}", "node[1,3]\n"),
        ("info", "4 Nodes, 16 Cores, 4 GPUs\n"),
        ("info -s down", "1 Node, 4 Cores, 1 GPU\n"),
        ("info -s free -i node0 --json", '{"nnodes": 1, "ncores": 2, "ngpus": 1}\n'),
        ("groups", GROUP_TABLE),
        ("property list", "PROPERTY         NNODES RANKS    NODELIST\nssd                   2 0-1      node[0-1]\n"),
        ("property list --json", '{"properties": {"ssd": "0-1"}}\n'),
    ],
)
def test_views(ask, args: str, want: str) -> None:
    done = ask(*args.split())
    assert (done.out, done.err, done.code) == (want, "", 0)


def test_equal_lines_merge(ask, status) -> None:
    status["drain"] = {"0": {"timestamp": 1.0, "reason": "x"}, "1,3": {"timestamp": 2.0, "reason": "x"}}
    status["offline"] = ""
    assert ask("drain", "-n", "-o", "{reason} {nodelist}").out == "x node[0-1,3]\n"
    assert ask("drain", "-n", "-o", "{timestamp} {nodelist}").out == "1 node0\n2 node[1,3]\n"


def test_a_node_whose_cores_are_taken_is_not_free_though_it_has_memory_left(ask, sched_status) -> None:
    sched_status |= copy.deepcopy(sched_status)
    for name, memory in (("all", 8), ("down", 8), ("allocated", 1)):
        for entry in sched_status[name]["execution"]["R_lite"]:
            entry["amounts"] = {"memory": memory}
    sched_status["allocated"]["execution"]["R_lite"][0]["children"]["core"] = "0-3"
    done = ask("list", "-n", "-o", "{state} {nnodes} {ncores} {nodelist}")
    assert [line.split() for line in done.out.splitlines()] == [
        ["free", "2", "8", "node[1-2]"], ["allocated", "1", "4", "node0"], ["down", "1", "4", "node3"]
    ]  # fmt: skip
    assert ask("info", "-s", "free", "--json").out.startswith('{"nnodes": 2, "ncores": 8')


@pytest.mark.parametrize("want", ["0-1", ""])
def test_what_a_queue_s_jobs_may_get(ask, want: str) -> None:
    for command in ("list -s all", "status"):
        answers = {"resource.targets": {"targets": want}}
        done = ask(*command.split(), "-q", "batch", "-n", "-o", "{ranks}", answers=answers)
        assert (done.code, done.out) == (0, f"{want}\n" if want else "")
        assert ("resource.targets", {"targets": "queue:batch"}) in done.calls


def test_torpid_and_lost_have_lines(ask, status) -> None:
    status |= {"drain": {}, "exclude": "", "torpid": "1", "lost": "3", "offline": ""}
    want = "     avail  ✔      2 node[0,2]\n     lost*  ✗      1 node3\n    torpid  ✔      1 node1\n"
    assert ask("status", "-n").out == want


def test_an_empty_instance(ask, sched_status, status) -> None:
    nothing = {"version": 1, "execution": {"R_lite": [], "starttime": 0.0, "expiration": 0.0, "nodelist": [""]}}
    sched_status |= dict.fromkeys(sched_status, nothing)
    status |= {"R": nothing, "drain": {}, "offline": "", "exclude": "", "groups": {}}
    assert ask("list").out.splitlines()[1] == "      free      0        0        0"
    assert ask("status").out == "     STATE UP NNODES NODELIST\n"
    assert ask("info").out == "0 Nodes, 0 Cores, 0 GPUs\n"


def test_hosts_are_named_once_where_targets_share_one(ask, sched_status) -> None:
    sched_status["all"] = json.loads(json.dumps(sched_status["all"]).replace("node[0-3]", "me,me,me,me"))
    assert ask("list", "-n", "-s", "all").out == "       all      4       16        4 me\n"


@pytest.mark.parametrize("command", ["list", "status", "groups"])
def test_json_is_the_answer(ask, command: str, sched_status, status) -> None:
    want = {"list": sched_status, "status": status, "groups": GROUPS}[command]
    assert json.loads(ask(command, "--json").out) == want


def test_r_is_r(ask, sched_status) -> None:
    assert json.loads(ask("R").out) == sched_status["all"]
    assert json.loads(ask("R", "-s", "down").out)["execution"]["R_lite"][0]["rank"] == "3"


def test_unknown_targets_and_states_are_all_named(ask) -> None:
    done = ask("list", "-i", "node0,node8,node9")
    assert done.code == 1
    assert done.err.startswith("fluxsched: resource list: unknown hosts node[8-9]")
    done = ask("status", "-s", "up,avail,sideways")
    assert done.code == 2
    assert "up, sideways is not among avail, exclude" in done.err


ADMIN = [
    ("drain 0-1", "resource.drain", {"targets": "0-1"}),
    ("drain node1 it is broken", "resource.drain", {"targets": "node1", "reason": "it is broken"}),
    ("drain -f 1 x", "resource.drain", {"targets": "1", "reason": "x", "mode": "overwrite"}),
    ("drain -ff 1 x", "resource.drain", {"targets": "1", "reason": "x", "mode": "force-overwrite"}),
    ("drain --force --force 1", "resource.drain", {"targets": "1", "mode": "force-overwrite"}),
    ("drain -u 0-1", "resource.drain", {"targets": "0-1", "mode": "update"}),
    ("drain 1 -- -f is no option here", "resource.drain", {"targets": "1", "reason": "-f is no option here"}),
    ("undrain 1", "resource.undrain", {"targets": "1"}),
    ("undrain -f 1 mended", "resource.undrain", {"targets": "1", "reason": "mended", "mode": "overwrite"}),
    ("undrain -u 1", "resource.undrain", {"targets": "1", "mode": "update"}),
    ("exclude 1", "resource.assign", {"targets": "1", "group": "exclude", "graceful": False}),
    ("exclude --graceful 1", "resource.assign", {"targets": "1", "group": "exclude", "graceful": True}),
    ("include 1", "resource.include", {"targets": "1", "graceful": False}),
    ("assign node[0-1] debug", "resource.assign", {"targets": "node[0-1]", "group": "debug", "graceful": False}),
    ("property add 0-1 ssd", "resource.property-add", {"properties": {"ssd": "0-1"}}),
    ("property remove node1 ssd", "resource.property-remove", {"properties": {"ssd": "node1"}}),
    ("reload", "resource.reload", {}),
    ("reload -f", "resource.reload", {"force": True}),
]


@pytest.mark.parametrize(("args", "topic", "payload"), ADMIN)
def test_administration_is_one_request(ask, args: str, topic: str, payload: dict) -> None:
    done = ask(*args.split(), answers={topic: {}})
    assert (done.out, done.err, done.code, done.calls) == ("", "", 0, [(topic, payload)])


@pytest.mark.parametrize("verb", ["add", "remove"])
def test_a_property_in_the_old_order_of_operands_is_told_the_new_one(ask, verb: str) -> None:
    error = RPCError("unknown hosts ssd: give hosts of this instance, or ranks", 22)
    done = ask("property", verb, "ssd", "0-1", answers={f"resource.property-{verb}": error})
    assert (done.code, done.err) == (
        1,
        f"fluxsched: resource property {verb}: unknown hosts ssd: give hosts of this instance, or ranks; TARGETS come "
        f"first: fluxsched resource property {verb} 0-1 ssd\n",
    )
    other = ask("property", verb, "ssd", "gpu", answers={f"resource.property-{verb}": error})
    assert "TARGETS" not in other.err


def test_reload_sends_an_absolute_path(ask, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "R").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert ask("reload", "R", answers={"resource.reload": {}}).calls == [
        ("resource.reload", {"path": str(tmp_path / "R")})
    ]
    done = ask("reload", "nowhere")
    assert done.code == 2
    assert "'nowhere' does not exist" in done.err


def test_a_move_says_what_became_of_each_target(ask) -> None:
    answer = {"moved": "0", "leaving": "1-2", "draining": "3", "there": "4"}
    done = ask("assign", "0-4", "debug", answers={"resource.assign": answer})
    assert done.out.splitlines() == [
        "moved 0", "leaving 1-2: moves once released", "draining 3: moves once no job holds it",
        "already in the group: 4",
    ]  # fmt: skip
    answer |= {"draining": "", "there": "", "ending": [*range(1, JOBS_SHOWN_MAX + 3)]}
    done = ask("assign", "0-4", "debug", answers={"resource.assign": answer})
    assert done.out.splitlines()[2].startswith("ending 12 jobs there (elastic jobs shrink): ƒ2, ƒ3, ")
    assert done.out.endswith("ƒB and 2 more\n")
    assert json.loads(ask("assign", "0-3", "debug", "--json", answers={"resource.assign": answer}).out) == answer


@pytest.mark.parametrize(
    "args",
    ["drain -f -u 1", "drain -f", "drain -u", "undrain", "undrain -f -u 1", "assign 1", "exclude", "property add x"],
)
def test_wrong_arguments(ask, args: str) -> None:
    done = ask(*args.split())
    assert (done.code, done.out, done.calls) == (2, "", [])
    assert "Usage: fluxsched resource " in done.err


def test_the_instance_names_the_offenders(ask) -> None:
    error = RPCError("rank 0-1 (node[0-1]): already drained", 17)
    done = ask("drain", "0-2", answers={"resource.drain": error})
    assert (done.code, done.err) == (1, "fluxsched: resource drain: rank 0-1 (node[0-1]): already drained\n")


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "interactive", lambda: True)


MOVED = {"moved": "1", "leaving": ""}


@pytest.mark.usefixtures("at_terminal")
class TestQuestions:
    """On a terminal, what ends jobs says so first."""

    def answers(self, *jobs: dict, **states: int) -> dict:
        return {
            "job-manager.list": {"jobs": list(jobs)}, "resource.assign": MOVED, "resource.include": MOVED,
            "job-manager.stats-get": {"jobs": states}, "resource.reload": {},
        }  # fmt: skip

    def test_pending_jobs_are_counted_where_targets_are_taken_away(self, ask, job) -> None:
        answers = self.answers(job(), sched=2, depend=1, run=7)
        want = "3 jobs pending: those that no longer fit wait (or are denied, by [policy]).\nGo ahead? [y/N]: "
        done = ask("assign", "0", "debug", stdin="n\n", answers=answers)
        assert done.err.endswith(f" on node[0-1]\n{want}n\nfluxsched: resource assign: no target was moved\n")
        assert ask("exclude", "3", stdin="y\n", answers=answers).err == f"{want}y\n"
        assert ask("include", "2", answers=answers).err == ""

    def test_reload_asks_where_there_are_jobs(self, ask) -> None:
        done = ask("reload", stdin="n\n", answers=self.answers(run=1, sched=1))
        assert (done.code, done.err) == (
            1,
            "1 job running: those on removed targets end.\n"
            "1 job pending: those that no longer fit wait (or are denied, by [policy]).\n"
            "Go ahead? [y/N]: n\nfluxsched: resource reload: nothing was reloaded\n",
        )
        assert "resource.reload" not in dict(done.calls)
        assert ask("reload", "-y", answers=self.answers(run=1)).calls == [("resource.reload", {})]
        assert ask("reload", answers=self.answers(inactive=9)).calls[-1] == ("resource.reload", {})

    def test_jobs_are_named_and_yes_goes_ahead(self, ask, job) -> None:
        done = ask("exclude", "node1", stdin="y\n", answers=self.answers(job(), job(id=6, ranks="2")))
        assert done.err == (
            "This ends 1 job at once (use --graceful to wait for them):\n  ƒ6 sleep on node[0-1]\nGo ahead? [y/N]: y\n"
        )
        assert (done.out, done.code, done.calls[-1][0]) == ("moved 1\n", 0, "resource.assign")
        assert ("job-manager.list", {"states": ["RUN"]}) in done.calls

    @pytest.mark.parametrize("answer", ["n\n", "\n"])
    def test_no_moves_nothing(self, ask, job, answer: str) -> None:
        done = ask("assign", "1", "debug", stdin=answer, answers=self.answers(job()))
        assert done.code == 1
        assert done.err.endswith("fluxsched: resource assign: no target was moved\n")
        assert "resource.assign" not in dict(done.calls)

    def test_more_than_a_screenful_is_a_number(self, ask, job) -> None:
        done = ask("exclude", "0", stdin="y\n", answers=self.answers(*[job(id=at) for at in range(13)]))
        assert "This ends 13 jobs" in done.err
        assert "\n  and 3 more\nGo ahead?" in done.err

    @pytest.mark.parametrize("args", ["exclude 3", "exclude --yes 1", "exclude --graceful 1", "assign -y 1 debug"])
    def test_nothing_is_asked_when_no_job_ends_or_it_is_wanted(self, ask, job, args: str) -> None:
        done = ask(*args.split(), answers=self.answers(job()))
        assert (done.code, done.err) == (0, "")

    def test_unknown_targets_are_found_before_the_question(self, ask, job) -> None:
        done = ask("include", "7-8", answers=self.answers(job()))
        assert (done.code, "unknown ranks 7-8" in done.err) == (1, True)


HISTORY = [
    {"events": [{"timestamp": 1700000000.0, "name": "restart", "context": {"ranks": "0-1", "online": ""}}]},
    {"events": [{"timestamp": 1700000001.5, "name": "online", "context": {"idset": "0"}}]},
    {"events": []},
    {"events": [{"timestamp": 1700000002.0, "name": "drain", "context": {"idset": "0", "reason": "x y"}}]},
]


@pytest.mark.parametrize(
    ("args", "want"),
    [
        ("", '1700000000.000000 restart ranks="0-1" online=""\n1700000001.500000 online idset="0"\n'),
        ("-F -T offset", '0.000000 restart ranks="0-1" online=""\n1.500000 online idset="0"\n'
         '2.000000 drain idset="0" reason="x y"\n'),
        ("-w online -T iso", '2023-11-14T22:13:20 restart ranks="0-1" online=""\n'
         '2023-11-14T22:13:21 online idset="0"\n'),
        ("-w online -H", '[Nov14 22:13:20] restart ranks="0-1" online=""\n[Nov14 22:13:21] online idset="0"\n'),
        ("--json", "".join(json.dumps(batch["events"][0]) + "\n" for batch in HISTORY[:2])),
    ],
)  # fmt: skip
def test_eventlog(ask, args: str, want: str) -> None:
    done = ask("eventlog", *args.split(), answers={"resource.journal": HISTORY})
    assert (done.out, done.code) == (want, 0)


def test_acquire_prints_the_stream(ask) -> None:
    stream = [{"type": "grow", "resources": {}, "online": "0", "offline": ""}, {"type": "offline", "targets": "0"}]
    done = ask("acquire", "--group", "debug", answers={"resource.acquire": stream})
    assert [json.loads(line) for line in done.out.splitlines()] == stream
    assert done.calls == [("resource.acquire", {"group": "debug", "accept": ["update"]})]
    assert ask("acquire", "--plain", answers={"resource.acquire": []}).calls == [("resource.acquire", None)]


def test_acquire_is_refused_or_interrupted(ask) -> None:
    busy = RPCError("group default is acquired already", 16)
    done = ask("acquire", answers={"resource.acquire": [busy]})
    assert (done.code, done.err) == (1, "fluxsched: resource acquire: group default is acquired already\n")
    assert ask("acquire", answers={"resource.acquire": [{}, KeyboardInterrupt()]}).code == 130
    assert ask("acquire", "--plain", "--group", "debug").code == 2


def test_a_group_that_is_a_cluster_is_shown_as_one():
    execution = {"R_lite": [{"rank": "0-4", "children": {"core": "0"}}], "nodelist": ["fake[0-1],east:fake[0-2]"]}
    source = ResourceSet.parse({"version": 1, "execution": execution})
    for ranks, made_up, where in (
        ("2-4", "", "cluster"), ("2-4", "0-1", "cluster"), ("0-1", "0-1", "made-up"), ("0-1", "", "here"), ("", "0", "")
    ):  # fmt: skip
        assert where_of(Idset.parse(ranks), source, Idset.parse(made_up)) == where
    here = ResourceSet.parse({"version": 1, "execution": {**execution, "nodelist": ["node[0-4]"]}})
    assert where_of(Idset.parse("0-4"), here, Idset.parse("")) == ""
