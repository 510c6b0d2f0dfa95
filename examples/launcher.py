"""A launcher that embeds the resource module: an instance in its own process, without a scheduler module.

It assigns whole targets to its launches itself, and uses only those that the module reports online.
"""

import asyncio

import fluxsched


async def main() -> None:
    options = fluxsched.StartOptions(fake="4x8", schedulers=("none",))
    async with fluxsched.Instance(fluxsched.settings_of(options)) as instance, fluxsched.connect(instance.uri) as h:
        stream = h.stream("resource.acquire", {"group": "default"})
        usable, used = fluxsched.Idset(), fluxsched.Idset()
        async for message in stream:
            match message["type"]:
                case "grow":
                    usable |= fluxsched.Idset.parse(message["online"])
                    print("acquired", fluxsched.ResourceSet.parse(message["resources"]).summary())
                    for launch in ("web", "database"):
                        target = (usable - used).first(1)
                        used |= target
                        print(f"launch {launch} on target {target}, {len(usable - used)} left")
                    await h.drain("3", "disk is full")
                case "online":
                    usable |= fluxsched.Idset.parse(message["targets"])
                case "offline":
                    usable -= fluxsched.Idset.parse(message["targets"])
                    print(f"target {message['targets']} went offline, {len(usable - used)} left")
                    await h.rpc("resource.assign", {"targets": "2", "group": "spare"})
                case "shrink":
                    leaving = fluxsched.Idset.parse(message["targets"])
                    usable -= leaving
                    await h.rpc("resource.release", {"group": "default", "targets": str(leaving - used)})
                    print(f"target {leaving} was taken away and released, {len(usable - used)} left")
                    stream.cancel()


asyncio.run(main())
