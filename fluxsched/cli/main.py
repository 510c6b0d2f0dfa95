"""`fluxsched`: the tables of commands. Nothing is imported here but click: each command's module loads when it runs."""

from __future__ import annotations

import os

import click

from fluxsched import __version__
from fluxsched.cli.base import Lazy, LazyGroup, Program

RESOURCE_SECTIONS = {
    "Show": {
        "list": Lazy("fluxsched.cli.resource:list_resources", "Show resources: free, allocated, down."),
        "status": Lazy("fluxsched.cli.resource:status", "Show states of targets: avail, drained, offline and so on."),
        "map": Lazy("fluxsched.cli.machine_map:machine_map", "Print a map of the machine."),
        "info": Lazy("fluxsched.cli.resource:info", "Print the numbers of nodes, cores and GPUs."),
        "R": Lazy("fluxsched.cli.resource:print_r", "Print the resources as R (RFC 20)."),
        "groups": Lazy("fluxsched.cli.resource:groups", "List groups, their acquirers, and moving targets."),
        "eventlog": Lazy("fluxsched.cli.resource:eventlog", "Print the journal of resource events (RFC 44)."),
        "acquire": Lazy("fluxsched.cli.resource:acquire", "Follow the live acquisition stream of a scheduler."),
    },
    "Administer": {
        "drain": Lazy("fluxsched.cli.resource:drain", "Drain targets, or list drained targets."),
        "undrain": Lazy("fluxsched.cli.resource:undrain", "Return drained targets to service."),
        "exclude": Lazy("fluxsched.cli.resource:exclude", "Withdraw targets from all schedulers."),
        "include": Lazy("fluxsched.cli.resource:include", "Return targets to their configured group."),
        "assign": Lazy("fluxsched.cli.resource:assign", "Move targets to a group."),
        "property": Lazy("fluxsched.cli.resource:properties", "Add, remove and list properties."),
        "reload": Lazy("fluxsched.cli.resource:reload", "Reload the inventory."),
    },
}


@click.group("resource", cls=LazyGroup, sections=RESOURCE_SECTIONS, subcommand_metavar="COMMAND [ARGS]...")
def resource() -> None:
    """Show, drain, exclude and move targets.

    TARGETS are ranks (0-3,7), hosts (node[0-3]), sets (all, property:X, group:X, queue:X, switch:X) or a list of these.

    Of a set a command takes the targets to which it applies: `undrain all` returns those that are drained.
    """


# ---- commands

SI_SECTIONS = {
    "Commands": {
        "serve": Lazy("fluxsched.cli.si:serve", "Schedule for resource managers, over gRPC."),
        "check": Lazy("fluxsched.cli.si:check", "Check a configuration file and show its queues."),
        "status": Lazy("fluxsched.cli.si:status", "Show the queues of a scheduler service, their use and what waits."),
        "dump": Lazy("fluxsched.cli.si:dump", "Print the state of a scheduler service as JSON."),
        "rm": Lazy("fluxsched.cli.si:rm", "Let a scheduler service decide for a group of an instance."),
    },
}


@click.group("si", cls=LazyGroup, sections=SI_SECTIONS, subcommand_metavar="COMMAND [ARGS]...")
def si() -> None:
    """Schedule for any resource manager, by YuniKorn's scheduler interface.

    ADDRESS is unix:PATH or HOST:PORT, as `si serve` prints it. These commands need fluxsched[si].
    """


# ---- the command line

DEBUG_VERBOSITY = 2
"""Verbosity of `start -vv`: everything is logged."""

SECTIONS = {
    "Instance": {
        "start": Lazy("fluxsched.cli.instance:start", "Start an instance, with a command or a shell inside."),
        "restart": Lazy("fluxsched.cli.instance:restart", "Restart an instance in place: its jobs continue."),
        "stop": Lazy("fluxsched.cli.instance:stop", "Stop an instance."),
        "uri": Lazy("fluxsched.cli.instance:uri", "Print where the instance listens."),
        "top": Lazy("fluxsched.cli.top:top", "Watch machine and jobs on a terminal, and act on them."),
        "instances": Lazy("fluxsched.cli.instance:instances", "List your instances on this machine."),
        "proxy": Lazy("fluxsched.cli.batch:proxy", "Run a command in the instance that a job is."),
        "ping": Lazy("fluxsched.cli.instance:ping", "Measure the round-trip time to a service."),
        "agent": Lazy("fluxsched.cli.instance:agent", "Report targets online while this runs."),
        "report": Lazy("fluxsched.cli.accounts:report", "Report what users, banks, queues and so on used."),
        "metrics": Lazy("fluxsched.cli.instance:metrics", "Serve figures to Prometheus."),
        "web": Lazy("fluxsched.cli.instance:web", "Serve an instance as a page for browsers."),
        "doctor": Lazy("fluxsched.cli.instance:doctor", "Report what works here and what is missing."),
        "backup": Lazy("fluxsched.cli.instance:backup", "Write the state of an instance to a file."),
        "restore": Lazy("fluxsched.cli.instance:restore", "Make a backup the state of a new directory."),
        "config": Lazy("fluxsched.cli.config:config", "Check, show and reload the configuration."),
        "keygen": Lazy("fluxsched.cli.instance:keygen", "Make keys for tcp ports and their clients."),
        "notice": Lazy("fluxsched.cli.notice:notice", "Show all users a text, list and remove such texts."),
        "module": Lazy("fluxsched.cli.config:module", "Load, remove, reload and list scheduler modules."),
    },
    "Resources": {
        "resource": Lazy("fluxsched.cli.main:resource", "Show, drain, exclude and move targets."),
        "outage": Lazy("fluxsched.cli.outage:outage", "Plan outages of targets, which jobs do not cross."),
        "reserve": Lazy("fluxsched.cli.outage:reserve", "Reserve targets in advance for the jobs that name it."),
        "cluster": Lazy("fluxsched.cli.resource:cluster", "Show clusters that run jobs, and give up leases."),
    },
    "Jobs": {
        "submit": Lazy("fluxsched.cli.submit:submit", "Submit a job and print its id."),
        "bulksubmit": Lazy("fluxsched.cli.bulksubmit:bulksubmit", "Submit a job for each of many inputs."),
        "batch": Lazy("fluxsched.cli.batch:batch", "Submit a script that runs in an instance of its own."),
        "alloc": Lazy("fluxsched.cli.batch:alloc", "Get resources, and a shell in an instance on them."),
        "run": Lazy("fluxsched.cli.submit:run", "Run a job in the foreground and exit with its status."),
        "jobs": Lazy("fluxsched.cli.jobs:jobs", "List jobs."),
        "cancel": Lazy("fluxsched.cli.job:cancel", "Cancel jobs."),
        "kill": Lazy("fluxsched.cli.job:kill", "Send a signal to running jobs."),
        "requeue": Lazy("fluxsched.cli.job:requeue", "End running jobs and have them wait again."),
        "urgency": Lazy("fluxsched.cli.job:urgency", "Change a job's urgency, hold it or expedite it."),
        "update": Lazy("fluxsched.cli.job:update", "Change a job's attributes, such as its duration."),
        "wait": Lazy("fluxsched.cli.job:wait", "Wait for jobs to end and exit with their status."),
        "rsh": Lazy("fluxsched.cli.attach:rsh", "Run a command on another host of a job."),
        "job": Lazy("fluxsched.cli.job:job", "Inspect one job: info, eventlog, why, attach and more."),
        "queue": Lazy("fluxsched.cli.queue:queue", "Show, enable, disable, start and stop queues."),
        "fair": Lazy("fluxsched.cli.accounts:fair", "Show accounts: shares, usage, limits and jobs."),
    },
    "Elsewhere": {
        "flux": Lazy("fluxsched.cli.instance:flux", "Use fluxsched as a Flux instance's scheduler."),
    },
    "Other resource managers": {
        "si": Lazy("fluxsched.cli.main:si", "Schedule for any resource manager: YuniKorn's interface."),
    },
    "Studies": {
        "policy": Lazy("fluxsched.cli.studies:policy", "List, write and check policies."),
        "plugin": Lazy("fluxsched.cli.studies:plugin", "List, write and check plugins of schedulers."),
        "sim": Lazy("fluxsched.cli.studies:sim", "Simulate policies on a trace, or generate a trace."),
        "what-if": Lazy("fluxsched.cli.studies:what_if", "Simulate what was recorded: as it was, and changed."),
    },
}

ELSEWHERE = {
    **dict.fromkeys(("squeue", "qstat", "bjobs", "list", "ps"), "jobs"),
    "sacct": "jobs -a -o usage",
    **dict.fromkeys(("scancel", "qdel", "bkill"), "cancel"),
    **dict.fromkeys(("sinfo", "pbsnodes", "bhosts"), "resource list"),
    **dict.fromkeys(("sbatch", "qsub", "bsub"), "batch, submit"),
    "srun": "run",
    "salloc": "alloc",
    "scontrol": "job info, update, resource drain",
    **dict.fromkeys(("qalter", "bmod"), "update"),
    **dict.fromkeys(("qhold", "qrls", "bstop", "bresume"), "urgency"),
    "qsig": "kill",
    "bqueues": "queue list",
    **dict.fromkeys(("sshare", "sprio", "pbsfs"), "fair"),
    **dict.fromkeys(("sreport", "bacct"), "report"),
    **dict.fromkeys(("retry", "rerun", "resubmit"), "requeue, job info JOBID jobspec | fluxsched job submit"),
    "output": "job output",
    "log": "job output, job eventlog",
    "status": "jobs, job info",
    "usage": "job usage, jobs -a -o usage",
    "why": "job why",
    **dict.fromkeys(("hold", "release"), "urgency"),
}
"""Our commands, by names of Slurm's, PBS's and LSF's, as in rfc/guides/coming.md, and by what else people try."""

OPTIONS_ELSEWHERE = {
    "-J": "--job-name, --name",
    "--name": "--job-name",
    **dict.fromkeys(("-p", "--partition"), "--queue"),
    **dict.fromkeys(("-A", "-P", "--account"), "--bank"),
    "-d": "--dependency",
    "--time": "--time-limit",
    "--begin": "--begin-time",
    "--cpus-per-task": "--cores-per-task, --cores-per-slot",
    "--ntasks-per-node": "--ntasks for all nodes together, --nslots for all nodes together",
    "--ntasks": "--nslots",
    **dict.fromkeys(("--gres", "--gpus", "--gpus-per-node"), "--gpus-per-task, --gpus-per-slot"),
    **dict.fromkeys(("--licenses", "--mem-per-cpu"), "--request"),
    **dict.fromkeys(("--constraint", "-C", "-w", "--nodelist"), "--requires"),
    **dict.fromkeys(("-D", "--chdir"), "--cwd"),
    "--export": "--env",
    **dict.fromkeys(("--mail-type", "--mail-user"), "--notify"),
    **dict.fromkeys(("-a", "--array"), "--cc, submit --cc"),
    "--wrap": "batch --wrap",
    **dict.fromkeys(("--hold", "-H", "--nice"), "--urgency"),
    "--test-only": "--when, submit --when",
    **dict.fromkeys(("-t", "-s", "-S", "--state", "--states"), "--filter"),
    "--start": "job why",
}
"""Our options by Slurm's names: the first that the command has is named, or a command that has one."""

EPILOG = """\b
TARGETS are everywhere ranks (0-3,7), hosts (node[0-3]), sets (all, property:X,
group:X, queue:X, switch:X) or a list of these (0,node7,property:gpu).
An FSD is a duration as Flux writes it: 30s, 5m, 1.5h, 2d, or seconds.
An IDSET is numbers and ranges of them: 1-1000, or 0,4-7.
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


@click.group("fluxsched", cls=Program, sections=SECTIONS, elsewhere=ELSEWHERE, options_elsewhere=OPTIONS_ELSEWHERE,
             epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})  # fmt: skip
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version,
              help="Show the version and exit.")  # fmt: skip
@click.option("--parent", count=True, help="Use the enclosing instance; may be repeated.")
@click.option("-v", "--verbose", is_flag=True, help="Log requests on stderr, with the ids that the instance logs.")
@click.option("--key", metavar="FILE", help="Your key for a tcp:// instance. [default: FLUXSCHED_KEY]")
@click.pass_context
def main(ctx: click.Context, parent: int, verbose: bool, key: str | None) -> None:
    """Resources and jobs of a machine: acquire, schedule, run, drain."""
    if verbose:
        from fluxsched.system.log import set_up_logging

        set_up_logging(None, DEBUG_VERBOSITY)
    if key is not None:
        os.environ["FLUXSCHED_KEY"] = key
    if parent:
        from fluxsched.cli.instance import go_to_parent

        for _ in range(parent):
            go_to_parent(ctx)
