"""Smallest jobs first: `fluxsched start --scheduler examples/policy_smallest.py:placement=best-fit`."""

from fluxsched.policy import PLACEMENT, WORST_FIT, decide


def cores(job):
    request = job.request
    return (request.nodes.min if request.nodes else 1) * request.slots.min * request.cores


class Smallest:
    name = "smallest"
    OPTIONS = {"placement": PLACEMENT}  # noqa: RUF012

    def __init__(self, placement=WORST_FIT):
        self.placement = placement

    def schedule(self, view, now_s):
        for job in sorted(view.queue, key=cores):
            yield decide(job, view.place(job, self.placement))
