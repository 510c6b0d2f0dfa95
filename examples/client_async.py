"""Submit, wait, drain and cancel from an asyncio program."""

import asyncio

import fluxsched


async def main() -> None:
    async with fluxsched.connect() as h:
        jobids = [await h.submit(fluxsched.Jobspec.from_command(["sh", "-c", f"exit {n}"])) for n in range(3)]
        for result in await asyncio.gather(*(h.wait(jobid) for jobid in jobids)):
            print(fluxsched.format_f58(result["id"]), "success" if result["success"] else result["errstr"])

        sleeper = await h.submit(fluxsched.Jobspec.from_command(["sleep", "60"]))
        await h.drain("1", "from Python")
        await h.cancel(sleeper, "enough slept")
        result = await h.wait(sleeper)
        print(fluxsched.format_f58(result["id"]), result["errstr"])
        drained = (await h.rpc("resource.status"))["drain"]
        print("drained:", [(targets, line["reason"]) for targets, line in drained.items()])


asyncio.run(main())
