"""A cap on power: `fluxsched start --scheduler examples/policy_power.py:watts=2000,core=25`."""

from fluxsched.policy import Option, Pending, Start, decide


class Power:
    name = "power"
    OPTIONS = {  # noqa: RUF012
        "watts": Option(1000.0, parse=float, help="the power that all running jobs may draw (watts)"),
        "core": Option(10.0, parse=float, help="the power that a core in use draws (watts)"),
    }
    HOLDS = True  # jobs may wait although cores are free

    def __init__(self, watts=1000.0, core=10.0):
        self.watts, self.core = watts, core

    def draw(self, masks):
        return self.core * sum(cores.bit_count() for cores in masks)

    def schedule(self, view, now_s):
        used = self.draw(cores for job in view.running for cores, gpus in job.parts.values())
        for job in view.queue:
            fit = view.find(job)
            if fit is None:
                yield decide(job, view.place(job))
                continue
            wanted = self.draw(part.cores for part in fit.parts)
            if used + wanted > self.watts:
                yield Pending(job.jobid, f"needs {wanted:g} W; {self.watts - used:g} W of {self.watts:g} W are left")
                return
            yield Start(job.jobid, fit)
            used += wanted
