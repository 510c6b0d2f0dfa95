"""The plugin of the page on plugins does what the page says."""

import re
from pathlib import Path

import pytest

from fluxsched.sched.decisions import Granted
from tests.sched.site import Bench, make_r, spec

PAGE = (Path(__file__).parents[3] / "rfc" / "plugins.md").read_text()


def names_in(name):
    names = {}
    (code,) = re.findall(rf"<!-- plugin: {name} -->\n```python\n(.*?)```", PAGE, re.S)
    exec(code, names)
    return names


def test_a_user_is_kept_off_hosts():
    names = names_in("keep-off")
    user = names["KeepOff"].OPTIONS["user"].parse("root")
    bench = Bench("fifo", plugins={"": [names["KeepOff"](user, "n[0,2]")]})
    bench.grow(make_r("0-3", 4))
    for jobid, userid in ((1, user), (2, user + 1)):
        bench.did(bench.scheduler.alloc(jobid, 16, userid, float(jobid), spec(), 100.0))
    granted = {each.jobid: str(each.resources.ranks) for each in bench.run() if isinstance(each, Granted)}
    assert granted == {1: "1", 2: "0"}
    with pytest.raises(ValueError, match="no user 'no such user' on this machine"):
        names["uid_of"]("no such user")


def test_the_nightly_gate():
    names = names_in("night")
    bench = Bench("fifo", plugins={"": [names["Night"]()]})
    bench.grow(make_r("0", 4))
    bench.now_s = 10 * 86400 + 12 * 3600.0
    bench.submit(1, night=True)
    bench.submit(2, spec())
    assert [each.jobid for each in bench.run() if isinstance(each, Granted)] == [2]
    assert bench.why(1).startswith("plugin 'night': waits for the night")
    bench.now_s = bench.scheduler.next_notice_s
    assert bench.now_s == 10 * 86400 + 22 * 3600.0
    assert [each.jobid for each in bench.run() if isinstance(each, Granted)] == [1]
