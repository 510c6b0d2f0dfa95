"""An operator: a job that submits further jobs to the instance that runs it, and cancels those it no longer needs.

Every job finds its instance by FLUXSCHED_URI; operator_flux.sh does the same with the commands of Flux.
"""

import asyncio

import fluxsched


async def main() -> None:
    async with fluxsched.connect() as h:
        ways = {"guess": "sleep 300", "search": "sleep 300", "compute": "exit 0"}
        names = {
            await h.submit(fluxsched.Jobspec.from_command(["sh", "-c", way], name=name)): name
            for name, way in ways.items()
        }
        first = await next(asyncio.as_completed([h.wait(jobid) for jobid in names]))
        print(f"{names.pop(first['id'])}: {'found it' if first['success'] else first['errstr']}")
        for jobid, name in names.items():
            await h.cancel(jobid, "another way led there")
            print(f"{name}: {(await h.wait(jobid))['errstr']}")


asyncio.run(main())
