"""A plugin: jobs of one `system.costart.set` wait, holding resources, until `system.costart.size` are there."""

from fluxsched.plugin import PASS, Wait


class Costart:
    name = "costart"
    READS = ("attributes.system.costart.set", "attributes.system.costart.size")

    def __init__(self):
        self.there = {}  # job -> set

    def reserve(self, job, fit):
        self.there[job.jobid] = job.label(self.READS[0])
        return PASS

    def permit(self, job, fit, now_s):
        size, there = job.label(self.READS[1]), [*self.there.values()].count(job.label(self.READS[0]))
        return Wait(60.0, f"{there} of {size} jobs are there") if isinstance(size, int) and there < size else PASS

    def unreserve(self, job, fit):
        self.there.pop(job.jobid, None)

    on_free = unreserve
