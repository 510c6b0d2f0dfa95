"""The plugin of the page on plugins does what the page says."""

import re
from pathlib import Path

from fluxsched.sched.decisions import Granted
from tests.sched.site import Bench, make_r, spec

PAGE = (Path(__file__).parents[3] / "rfc" / "plugins.md").read_text()


def test_the_nightly_gate():
    names = {}
    (code,) = re.findall(r"<!-- plugin: night -->\n```python\n(.*?)```", PAGE, re.S)
    exec(code, names)
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
