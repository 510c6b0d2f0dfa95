"""EASY backfill by predicted run times: `fluxsched start --scheduler examples/policy_predicted.py`.

The prediction is the mean run time of the user's last two jobs (Tsafrir, Etsion, Feitelson, IEEE TPDS 18(6), 2007); a
job still ends by its own limit.
"""

from collections import deque

from fluxsched.policy import WORST_FIT, Fits, Pending, Reserve, Start


class Predicted:
    name = "predicted"
    OPTIONS = {}  # noqa: RUF012
    BACKFILLS = True

    def __init__(self):
        self.runs = {}

    def ended(self, job, now_s):
        self.runs.setdefault(job.userid, deque(maxlen=2)).append(now_s - job.started_s)

    def predicted(self, job):
        runs = self.runs.get(job.userid)
        return job._replace(duration_s=min(job.limit_s, sum(runs) / len(runs))) if runs else job

    def schedule(self, view, now_s):
        is_planned = False
        for job in view.queue:
            guess = self.predicted(job)
            found = view.plan.place(guess, WORST_FIT) if is_planned else view.plan.seat(guess, WORST_FIT)
            if isinstance(found, Fits):
                yield Start(job.jobid, found)
            elif found is None:
                yield Pending(job.jobid, view.reason(job))
            else:
                is_planned = True
                yield Reserve(found, view.reason(job))
