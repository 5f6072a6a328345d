"""A SLURM of two nodes on this machine's loopback: munge, a controller and a daemon for each node,
all state below one folder.
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
# cred_expire is also how long a requeued job waits before it starts again; a cluster has 120
# seconds.
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
KillWait=5
MinJobAge=300
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 State=UNKNOWN
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 State=UNKNOWN
PartitionName=test Nodes=node1,node2 Default=YES MaxTime=60 State=UP
"""


def missing() -> str | None:
    """Why no cluster can be started here, if none can."""
    absent = [name for name in (*DAEMONS, "sbatch") if shutil.which(name, path=PLACES) is None]
    if absent:
        return f"{', '.join(absent)} not found; on Debian: apt-get install slurm-wlm munge"
    return None


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which sbatch, squeue and scontrol talk to a cluster that lives as long as
    the context.

    Raises:
        RuntimeError: it does not come up; with the ends of the logs.
    """
    for name in ("state", "spool-node1", "spool-node2"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)
    user, host = pwd.getpwuid(os.getuid()).pw_name, socket.gethostname().split(".")[0]
    (folder / "slurm.conf").write_text(
        CONF.format(host=host, user=user, folder=folder, ports=free_ports(3))
    )
    environment = {**os.environ, "PATH": PLACES, "SLURM_CONF": str(folder / "slurm.conf")}
    key = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    commands = [["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *key]]
    commands += [["slurmctld", "-D"]]
    commands += [*(["slurmd", "-D", "-N", node] for node in ("node1", "node2"))]
    daemons = []
    try:
        for number, command in enumerate(commands):
            with (folder / f"{command[0]}-{number}.out").open("w") as out:
                daemons.append(
                    subprocess.Popen(
                        command, env=environment, stdout=out, stderr=out, start_new_session=True
                    )
                )
            if command[0] == "munged":
                wait_for(lambda: (folder / "munge.socket").exists(), 10, folder)
        wait_for(
            lambda: ask(environment, "sinfo", "--noheader", "--format=%t %D") == "idle 2",
            60,
            folder,
        )
        yield environment
    finally:
        if len(daemons) == len(commands):
            ask(environment, "scancel", f"--user={user}")
            wait_for(lambda: not ask(environment, "squeue", "--noheader"), 20, folder, must=False)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()


def ask(environment: dict[str, str], *command: str) -> str:
    """What a command of SLURM's prints; nothing while the controller does not answer."""
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=30
    ).stdout.strip()


def wait_for(condition, seconds: float, folder: Path, must: bool = True):
    """Wait until ``condition()`` is true, and return what it gave."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    if must:
        logs = [
            f"{p.name}:\n{p.read_text(errors='replace')[-1500:]}"
            for p in (*folder.glob("*.log"), *folder.glob("*.out"))
        ]
        raise RuntimeError("waited in vain;\n" + "\n".join(logs))


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
