"""Two hosts on one machine: network namespaces, joined by a cable (veth) that can be cut."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

ADDRESSES = ("10.77.0.1", "10.77.0.2")


def missing() -> str | None:
    """Why there can be no two hosts here, or None."""
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True)
    return "network namespaces need root" if os.geteuid() or tried.returncode else None


@dataclass(frozen=True)
class Host:
    """A namespace with a name, an address, and the interface that leads to the other one."""

    name: str
    address: str
    interface: str

    def command(self, *words: str) -> list[str]:
        """The command line that runs ``words`` on this host."""
        return ["ip", "netns", "exec", self.name, *words]

    def link(self, state: str) -> None:
        """Plug the cable in (``up``) or pull it out (``down``)."""
        ip("-n", self.name, "link", "set", self.interface, state)


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Both hosts, connected; what still runs on them is killed at the end."""
    tag = f"te{os.getpid()}"
    first, second = hosts = tuple(
        Host(f"{tag}{end}", address, f"{tag}{end}")
        for end, address in zip("ab", ADDRESSES, strict=True)
    )
    try:
        for host in hosts:
            ip("netns", "add", host.name)
        ip(
            *("link", "add", first.interface, "netns", first.name, "type", "veth"),
            *("peer", "name", second.interface, "netns", second.name),
        )
        for host in hosts:
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.interface)
            ip("-n", host.name, "link", "set", "lo", "up")
            host.link("up")
        yield first, second
    finally:
        for host in hosts:
            listed = subprocess.run(["ip", "netns", "pids", host.name], capture_output=True)
            for process in listed.stdout.split():
                subprocess.run(["kill", "-9", process], capture_output=True)
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)


def ip(*words: str) -> None:
    """Run ``ip``."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
