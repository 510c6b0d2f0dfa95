"""Time of `fluxsched what-if` on a recorded month of 100,000 jobs, and how near it comes to the record.

    python benchmarks/what_if.py [--jobs 100000] [--nodes 512]

The record is that of a simulation, in the rows that an instance writes, in a state directory of its own. Times are CPU
seconds of the command's parts: reading, and simulating as it was and under another policy.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from fluxsched.core.build import BUILD
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.instance.record import Record, read_record
from fluxsched.instance.restarts import KIND, RANKS
from fluxsched.sim.commands import Change, History, what_if
from fluxsched.sim.record import RecordPeriod
from fluxsched.sim.simulation import run
from fluxsched.sim.site import site_of
from fluxsched.sim.synthetic import generate
from fluxsched.sim.traces import Ask, Trace
from fluxsched.store.integrity import SELECTED, checksummed
from fluxsched.store.jobs import pack_events
from fluxsched.store.schema import CONFIGURED, prepare
from fluxsched.system.files import DATABASE_NAME

BEGIN_S, CORES = 1_800_000_000.0, 64


def write_record(directory: Path, trace: Trace) -> None:
    """Write what an instance under `easy` would have on disk of a trace."""
    site = site_of(trace)
    result = run(trace, "easy", resources=site, placements=True)
    jobs, hosts = result.jobs, site.resources
    rows: list[tuple[object, ...]] = []
    for at, job in enumerate(trace.jobs):
        start_s, end_s = jobs.start[at], jobs.end[at]
        assert start_s is not None
        assert end_s is not None
        assert jobs.ranks is not None
        ranks = Idset.parse(str(jobs.ranks[at]))
        spec = Jobspec.from_command(
            ["app"], nodes=job.ask.nodes, ntasks=len(ranks), cores_per_task=CORES, exclusive=True,
            duration_s=job.limit_s or 0.0,
        )  # fmt: skip
        context = {"userid": 1000 + int(job.user or 0), "urgency": 16, "flags": 0, "version": 1}
        usage = {"wall_s": end_s - start_s, "user_s": 1.0, "system_s": 1.0, "max_rss_bytes": 1}
        names = [
            ("submit", job.submit_s, context), ("validate", job.submit_s, None), ("depend", job.submit_s, None),
            ("priority", job.submit_s, {"priority": 16}), ("alloc", start_s, None), ("start", start_s, None),
            ("finish", end_s, {"status": 0, "usage": usage}), ("release", end_s, {"ranks": "all", "final": True}),
            ("free", end_s, None), ("clean", end_s, None),
        ]  # fmt: skip
        events = [
            {"timestamp": BEGIN_S + when_s, "name": name} | ({} if more is None else {"context": more})
            for name, when_s, more in names
        ]
        granted = hosts.restrict(ranks).with_expiration(BEGIN_S + start_s, BEGIN_S + start_s + (job.limit_s or 1e6))
        text, resources = (json.dumps(value).encode() for value in (spec.to_json(), granted.to_json()))
        rows.append((at + 1, 0, pack_events(events[:5]), text, 0, 0, resources))
        rows.append((at + 1, int(BEGIN_S + end_s), pack_events(events[5:]), "", 0, 0, ""))
    saved = [
        (KIND, RANKS, json.dumps({"R": hosts.to_json(), "timestamp": BEGIN_S, "source": ""})),
        (*CONFIGURED, json.dumps({"config": {}, "policies": [["easy", []]]})),
    ]
    with closing(sqlite3.connect(directory / DATABASE_NAME, isolation_level=None)) as connection:
        prepare(connection, str(directory))
        connection.execute("BEGIN")
        for table, added in (("job_log", rows), ("saved", saved)):
            columns = (
                SELECTED[table] if table == "saved" else "jobid, ended, events, jobspec, environment, files, R, crc"
            )
            marks = ",".join("?" * len(columns.split(",")))
            connection.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", checksummed(table, added))
        connection.execute("COMMIT")


def history_of(record: Record) -> History:
    """Return what the command makes of a record."""
    assert record.resources is not None
    period = RecordPeriod(None, record.until_s)
    return History(record.jobs, period, record.resources, record.config, record.policies, record.unusable)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=512)
    given = parser.parse_args()
    made = generate(given.jobs, seed=1, nodes=given.nodes, cores=1, load=0.9)
    asks = {
        job.ask.nslots: Ask(nodes=job.ask.nslots, nslots=job.ask.nslots, cores=CORES, exclusive=True)
        for job in made.jobs
    }
    jobs = [job._replace(ask=asks[job.ask.nslots]) for job in made.jobs]
    month_s = 30 * 86_400.0
    squeeze = month_s / jobs[-1].submit_s
    jobs = [
        job._replace(submit_s=job.submit_s * squeeze, run_s=job.run_s * squeeze, limit_s=(job.limit_s or 0) * squeeze)
        for job in jobs
    ]
    assert made.machine is not None
    trace = Trace.of(jobs, "month", made.machine._replace(cores=CORES))
    with tempfile.TemporaryDirectory() as name:
        write_record(Path(name), trace)
        for policies in ((), ("fair:backfill=easy",)):
            begun_s = time.process_time()
            record = read_record(None, Path(name), None, "a record")
            read_s = time.process_time() - begun_s
            study = what_if(history_of(record), Change(policies), time.process_time)
            took_s = time.process_time() - begun_s
            title = ", ".join(("as it was", *policies))
            print(f"{title}: {took_s:.1f} s, of which {read_s:.1f} s to read {len(record.jobs):,} jobs ({BUILD})")
            print(f"  {study.nearness}")


if __name__ == "__main__":
    main()
