"""A plugin in one file: jobs of bank `night` start between 22:00 and 06:00 UTC only."""

from fluxsched.plugin import PASS, Gate, Option


class Night:
    """Holds jobs of one bank until the night."""

    name = "night"
    READS = ("bank",)
    OPTIONS = {"bank": Option("night", help="the bank whose jobs wait")}  # noqa: RUF012

    def __init__(self, bank="night"):
        self.bank = bank

    def pre_enqueue(self, job):
        hour = job.now_s / 3600 % 24
        if job.label("bank") != self.bank or not 6 <= hour < 22:
            return PASS
        return Gate("waits for 22:00 UTC", at_s=job.now_s + (22 - hour) * 3600)
