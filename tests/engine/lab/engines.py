"""Slurm, Flux and sshd on the hosts of a lab, without any file outside of its directory."""

from __future__ import annotations

import secrets
from pathlib import Path

from tests.engine.lab.hosts import SWITCH, Lab, until

SLURM = """
ClusterName=lab
SlurmctldHost={switch}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={lab}/munge.sock
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
StateSaveLocation={lab}/slurm
SlurmdSpoolDir={lab}/%n/slurmd
SlurmdPidFile={lab}/%n/slurmd.pid
SlurmctldPidFile={lab}/slurm/slurmctld.pid
SlurmdLogFile={lab}/%n/slurmd.log
SlurmctldLogFile={lab}/slurm/slurmctld.log
SlurmctldTimeout=30
SlurmdTimeout=120
InactiveLimit=0
KillWait=5
MinJobAge=300
ReturnToService=2
SchedulerType=sched/backfill
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
NodeName=n[1-{hosts}] CPUs={cpus} CoresPerSocket={cpus} Sockets=1 ThreadsPerCore=1 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
FLUX = """
[bootstrap]
curve_cert = "{lab}/flux/curve.cert"
default_port = 8050
default_bind = "tcp://eth0:%p"
default_connect = "tcp://%h:%p"
hosts = [ {{ host = "n[1-{hosts}]" }} ]
[tbon]
tcp_user_timeout = "20s"
keepalive_idle = 5
keepalive_interval = 2
keepalive_count = 3
[resource]
noverify = true
[[resource.config]]
hosts = "n[1-{hosts}]"
cores = "0-1"
"""
SSHD = """
HostKey {lab}/ssh/host_key
AuthorizedKeysFile {lab}/ssh/key.pub
ListenAddress {address}
PidFile {lab}/{name}/sshd.pid
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
MaxStartups 100
"""
SSH = """
Host n*
  IdentityFile {lab}/ssh/key
  UserKnownHostsFile {lab}/ssh/known_hosts
  StrictHostKeyChecking yes
  BatchMode yes
  LogLevel ERROR
"""
CPUS = 8
"""Of a host, as Slurm has it: it makes steps up to these, whatever the machine has."""


def add_slurm(lab: Lab) -> None:
    """Start a controller on n0 and a daemon a host; all hosts are idle afterwards."""
    state, conf = lab.directory / "slurm", lab.directory / "slurm.conf"
    state.mkdir()
    conf.write_text(
        SLURM.format(switch=SWITCH, address=lab.address(SWITCH), lab=lab.directory, hosts=len(lab.names), cpus=CPUS)
    )
    lab.variables["SLURM_CONF"] = str(conf)
    lab.write_on()
    key = lab.directory / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    lab.directory.chmod(0o755)  # munged does not take a socket in a directory that others cannot enter
    own = {"key-file": key, "socket": "munge.sock", "pid-file": "munge.pid", "seed-file": "munge.seed"}
    words = [f"--{name}={lab.directory / value}" for name, value in {**own, "log-file": "munge.log"}.items()]
    lab.run(SWITCH, "munged", "--force", *words)
    until(lab.directory.joinpath("munge.sock").is_socket, "munged listens")
    lab.run(SWITCH, "slurmctld", "-f", conf)
    for name in lab.names:
        start_slurmd(lab, name)
    idle = str(len(lab.names))
    until(lambda: lab.run(SWITCH, "sinfo", "-h", "-t", "idle", "-o", "%D", status=None).strip() == idle, "idle hosts")


def start_slurmd(lab: Lab, name: str) -> None:
    lab.directory.joinpath(name, "slurmd").mkdir(exist_ok=True)
    lab.run(name, "slurmd", "-N", name, "-f", lab.directory / "slurm.conf")


def add_flux(lab: Lab) -> None:
    """Start a broker a host, rank 0 on n1; commands on each host find the broker there."""
    conf = lab.directory / "flux"
    conf.mkdir()
    lab.run("n1", "flux", "keygen", conf / "curve.cert")
    conf.joinpath("system.toml").write_text(FLUX.format(lab=lab.directory, hosts=len(lab.names)))
    lab.variables["FLUX_URI"] = "local:///run/flux/local"
    lab.write_on()
    for name in lab.names:
        start_broker(lab, name)
    until(lambda: all_brokers_are_up(lab), "all brokers are up")


def all_brokers_are_up(lab: Lab) -> bool:
    count = ("flux", "resource", "list", "-s", "up", "-no", "{nnodes}")
    return lab.run("n1", *count, status=None).strip() == str(len(lab.names))


def restore_flux(lab: Lab) -> None:
    """Start the brokers that have ended because they were cut off, as systemd does where Flux is installed."""

    def restored() -> bool:
        for name in lab.names:
            if not any(one.command.startswith("broker ") for one in lab.processes(name)):
                start_broker(lab, name)
        return all_brokers_are_up(lab)

    until(restored, "all brokers are up again")


def start_broker(lab: Lab, name: str) -> None:
    lab.run(name, "mkdir", "-p", "-m", "700", "/run/flux")
    options = ["-Srundir=/run/flux", "-Slocal-uri=local:///run/flux/local", "-Sbroker.rc2_none=1"]
    words = ["setsid", "-f", "flux", "broker", "-c", lab.directory / "flux", *options, "-Slog-stderr-level=4"]
    with lab.directory.joinpath(name, "flux.log").open("a") as log:
        lab.popen(name, *words, stdout=log, stderr=log).wait()


def add_ssh(lab: Lab) -> None:
    """Start an sshd a host, with keys of the lab; `ssh HOST` works on all hosts without further ado."""
    folder = lab.directory / "ssh"
    for name in ("host_key", "key"):
        lab.run(SWITCH, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
    host_key = folder.joinpath("host_key.pub").read_text()
    names = ",".join(f"{name},{lab.address(name)}" for name in lab.names)
    folder.joinpath("known_hosts").write_text(f"{names} {host_key}")
    folder.joinpath("lab.conf").write_text(SSH.format(lab=lab.directory))
    for name in lab.names:
        start_sshd(lab, name)


def start_sshd(lab: Lab, name: str) -> None:
    conf = lab.directory / name / "sshd_config"
    conf.write_text(SSHD.format(lab=lab.directory, address=lab.address(name), name=name))
    sshd = Path(lab.run(name, "sh", "-c", "command -v sshd").strip())  # it starts itself again, and insists on a path
    lab.run(name, sshd, "-f", conf)


BEGIN = {"slurm": start_slurmd, "flux": start_broker, "ssh": start_sshd}
"""Start the daemon of a part on a host that was booted."""
ADD = {"slurm": add_slurm, "flux": add_flux, "ssh": add_ssh}
