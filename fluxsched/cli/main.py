"""`fluxsched`: the table of commands. Nothing is imported here but click: each command's module loads when it runs."""

from __future__ import annotations

import os

import click

from fluxsched import __version__
from fluxsched.cli.common.base import Lazy, Program

DEBUG_VERBOSITY = 2
"""That of `start -vv`: everything is logged."""

SECTIONS = {
    "Instance": {
        "start": Lazy("fluxsched.cli.instance.commands:start", "Start an instance, with a command or a shell inside."),
        "restart": Lazy("fluxsched.cli.instance.commands:restart", "Restart an instance in place: its jobs go on."),
        "stop": Lazy("fluxsched.cli.instance.commands:stop", "Stop an instance."),
        "uri": Lazy("fluxsched.cli.instance.commands:uri", "Print where the instance listens."),
        "top": Lazy("fluxsched.cli.instance.top:top", "Watch machine and jobs on a terminal, and act on them."),
        "instances": Lazy("fluxsched.cli.instance.instances:instances", "List your instances on this machine."),
        "proxy": Lazy("fluxsched.cli.submission.batch:proxy", "Run a command in the instance that a job is."),
        "ping": Lazy("fluxsched.cli.instance.commands:ping", "Measure the round-trip time to a service."),
        "agent": Lazy("fluxsched.cli.instance.commands:agent", "Report targets online while this runs."),
        "report": Lazy("fluxsched.cli.instance.report:report", "Report what users, banks, queues and so on used."),
        "metrics": Lazy("fluxsched.cli.instance.metrics:metrics", "Serve figures to Prometheus."),
        "web": Lazy("fluxsched.cli.instance.web:web", "Serve an instance as a page for browsers."),
        "doctor": Lazy("fluxsched.cli.instance.doctor:doctor", "Report what works here and what is missing."),
        "backup": Lazy("fluxsched.cli.instance.backup:backup", "Write the state of an instance to a file."),
        "restore": Lazy("fluxsched.cli.instance.backup:restore", "Make a backup the state of a new directory."),
        "config": Lazy("fluxsched.cli.instance.config:config", "Check, show and reload the configuration."),
        "keygen": Lazy("fluxsched.cli.instance.keygen:keygen", "Make keys for tcp ports and their clients."),
        "module": Lazy("fluxsched.cli.instance.module:module", "Load, remove, reload and list scheduler modules."),
    },
    "Resources": {
        "resource": Lazy("fluxsched.cli.resource.commands:resource", "Show, drain, exclude and move targets."),
        "cluster": Lazy("fluxsched.cli.resource.cluster:cluster", "Show clusters that run jobs, and give up leases."),
    },
    "Jobs": {
        "submit": Lazy("fluxsched.cli.submission.submit:submit", "Submit a job and print its id."),
        "bulksubmit": Lazy("fluxsched.cli.submission.bulksubmit:bulksubmit", "Submit a job for each of many inputs."),
        "batch": Lazy("fluxsched.cli.submission.batch:batch", "Submit a script that runs in an instance of its own."),
        "alloc": Lazy("fluxsched.cli.submission.batch:alloc", "Get resources, and a shell in an instance on them."),
        "run": Lazy("fluxsched.cli.submission.submit:run", "Run a job in the foreground and exit with its status."),
        "jobs": Lazy("fluxsched.cli.jobs.jobs:jobs", "List jobs."),
        "cancel": Lazy("fluxsched.cli.jobs.control:cancel", "Cancel jobs."),
        "kill": Lazy("fluxsched.cli.jobs.control:kill", "Send a signal to running jobs."),
        "urgency": Lazy("fluxsched.cli.jobs.control:urgency", "Change a job's urgency, hold it or expedite it."),
        "update": Lazy("fluxsched.cli.jobs.control:update", "Change a job's attributes, such as its duration."),
        "wait": Lazy("fluxsched.cli.jobs.control:wait", "Wait for jobs to end and exit with their status."),
        "job": Lazy("fluxsched.cli.jobs.job:job", "Inspect one job: info, eventlog, why, attach and more."),
        "queue": Lazy("fluxsched.cli.jobs.queue:queue", "Show, enable, disable, start and stop queues."),
        "fair": Lazy("fluxsched.cli.jobs.fair:fair", "Show accounts: shares, usage, limits and jobs."),
    },
    "Elsewhere": {
        "flux": Lazy("fluxsched.cli.instance.flux:flux", "Use fluxsched as a Flux instance's scheduler."),
    },
    "Other resource managers": {
        "si": Lazy("fluxsched.cli.si.commands:si", "Schedule for any resource manager: YuniKorn's interface."),
    },
    "Studies": {
        "policy": Lazy("fluxsched.cli.studies.policy:policy", "List, write and check policies."),
        "plugin": Lazy("fluxsched.cli.studies.plugin:plugin", "List, write and check plugins of schedulers."),
        "sim": Lazy("fluxsched.cli.studies.sim:sim", "Simulate policies on a trace, or generate a trace."),
    },
}

EPILOG = """\b
TARGETS are everywhere ranks (0-3,7), hosts (node[0-3]), sets (all, property:X,
group:X, queue:X) or a list of these (0,node7,property:gpu).
The instance is the one named by --uri or FLUXSCHED_URI, else your newest;
with several, commands that change something want one named.
Exit status: 0, 1 refused or failed, 2 wrong usage, or the job's own.

\b
Completion for bash (zsh and fish alike):
  eval "$(_FLUXSCHED_COMPLETE=bash_source fluxsched)"
"""


def _show_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from fluxsched.core.build import BUILD

        click.echo(f"fluxsched, version {__version__} ({BUILD})")
        ctx.exit()


@click.group("fluxsched", cls=Program, sections=SECTIONS, epilog=EPILOG,
             context_settings={"help_option_names": ["-h", "--help"]})  # fmt: skip
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version,
              help="Show the version and exit.")  # fmt: skip
@click.option("--parent", count=True, help="Use the enclosing instance; may be repeated.")
@click.option("-v", "--verbose", is_flag=True, help="Log requests on stderr, with the ids that the instance logs.")
@click.option("--key", metavar="FILE", help="Your key for a tcp:// instance. [default: FLUXSCHED_KEY]")
@click.pass_context
def main(ctx: click.Context, parent: int, verbose: bool, key: str | None) -> None:
    """Resources and jobs of a machine: acquire, schedule, run, drain."""
    if verbose:
        from fluxsched.system.log import setup

        setup(None, DEBUG_VERBOSITY)
    if key is not None:
        os.environ["FLUXSCHED_KEY"] = key
    if parent:
        from fluxsched.cli.instance.instances import go_to_parent

        for _ in range(parent):
            go_to_parent(ctx)
