"""The same as client_async.py, without asyncio."""

import fluxsched

with fluxsched.connect_sync() as h:
    jobids = h.submit_many(fluxsched.Jobspec.from_command(["sh", "-c", f"exit {n}"]) for n in range(3))
    for jobid in jobids:
        result = h.wait(jobid)
        print(fluxsched.format_f58(jobid), "success" if result["success"] else result["errstr"])

    sleeper = h.submit(fluxsched.Jobspec.from_command(["sleep", "60"]))
    h.drain("1", "from Python")
    h.cancel(sleeper, "enough slept")
    print(fluxsched.format_f58(sleeper), h.wait(sleeper)["errstr"])
    print("drained:", [(targets, line["reason"]) for targets, line in h.rpc("resource.status")["drain"].items()])
