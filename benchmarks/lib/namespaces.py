"""Machines as network namespaces on one bridge of this machine; needs root and `ip` of iproute2.

The run's own machine is the namespace of this process. Addresses are of 198.18.0.0/15, which is for such tests.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count

_numbers = count()


def ip(*arguments: str) -> None:
    """Run `ip`; raises OSError with what it prints."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@cache
def refusal() -> str:
    """Why no namespace can be made here; empty if one can."""
    try:
        with namespaces() as network:
            network.add("check")
    except OSError as error:
        return str(error)
    return ""


class Namespaces:
    """A bridge, and a namespace per machine that is added."""

    def __init__(self) -> None:
        # Unlike those of other processes and of other networks in this one.
        number = os.getpid() + 97 * next(_numbers)
        self._mark = f"sl{number}"
        self._subnet = f"198.{18 + number // 256 % 2}.{number % 256}"
        self._machines: dict[str, int] = {}
        ip("link", "add", self._mark, "type", "bridge")
        try:
            ip("address", "add", f"{self.host}/24", "dev", self._mark)
            ip("link", "set", self._mark, "up")
        except OSError:
            self.close()
            raise

    @property
    def host(self) -> str:
        """Address of this process's own namespace."""
        return f"{self._subnet}.1"

    def address(self, name: str) -> str:
        return f"{self._subnet}.{self._machines[name] + 2}"

    def add(self, name: str) -> str:
        """Make a machine, unless there is one of this name; returns its address."""
        if name in self._machines:
            return self.address(name)
        number = self._machines[name] = len(self._machines)
        inside = self._inside(name)
        ip("netns", "add", inside)
        ip("link", "add", self._port(name), "type", "veth", "peer", "name", "eth0", "netns", inside)
        ip("link", "set", self._port(name), "master", self._mark, "up")
        ip("-n", inside, "address", "add", f"{self._subnet}.{number + 2}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", inside, "link", "set", device, "up")
        return self.address(name)

    def command(self, name: str) -> tuple[str, ...]:
        """What a command begins with that runs on the machine."""
        return ("ip", "netns", "exec", self._inside(name))

    def cut(self, name: str) -> None:
        """Pull the machine's cable: packets are lost, and no connection is told."""
        ip("link", "set", self._port(name), "down")

    def mend(self, name: str) -> None:
        ip("link", "set", self._port(name), "up")

    def close(self) -> None:
        """Remove the bridge and all namespaces; processes in them keep theirs until they end."""
        for name in self._machines:
            for arguments in (("netns", "del", self._inside(name)), ("link", "del", self._port(name))):
                subprocess.run(["ip", *arguments], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._mark], capture_output=True, check=False)

    def _inside(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _port(self, name: str) -> str:
        return f"{self._mark}p{self._machines[name]}"


@contextmanager
def namespace(name: str) -> Iterator[tuple[str, ...]]:
    """A namespace without a network but its loopback device; what a command begins with that runs in it."""
    inside = f"sl{os.getpid()}-{name}"
    ip("netns", "add", inside)
    try:
        ip("-n", inside, "link", "set", "lo", "up")
        yield ("ip", "netns", "exec", inside)
    finally:
        subprocess.run(["ip", "netns", "del", inside], capture_output=True, check=False)


@contextmanager
def namespaces() -> Iterator[Namespaces]:
    network = Namespaces()
    try:
        yield network
    finally:
        network.close()
