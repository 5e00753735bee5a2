"""Examination of what a run may use beside this machine, for `spotlight doctor`: Ray, the hub, the browser page.

Every look has a bound: a name server or a network that does not reply costs `REPLY_S`, not the patience of the user.
"""

import importlib.util
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from spotlight.core.errors import EnvironmentProblem
from spotlight.pools.ray import check_installed, installed_version
from spotlight.preflight.machine_state import Examined, Health
from spotlight.preflight.this_machine import nearest_folder

REPLY_S = 2.0
HUB = "https://huggingface.co"
TRUE = ("1", "on", "yes", "true")
PAGE_MODULES = ("starlette", "uvicorn", "jinja2")
PAGE_PORT = 8420
"""First port that `spotlight dashboard` tries."""
RAY_PORTS = {"ray": 10001, "": 6379}
"""Default ports of an address, by its scheme."""


def reachable(host: str, port: int) -> str:
    """Connect within `REPLY_S`; returns why that is not possible, or ''."""
    outcome = [f"no reply within {REPLY_S:g} s"]

    def connect() -> None:
        try:
            with socket.create_connection((host, port), timeout=REPLY_S):
                outcome[0] = ""
        except OSError as error:
            outcome[0] = error.strerror or str(error)

    # In a thread, because a name is looked up without a bound.
    looking = threading.Thread(target=connect, daemon=True)
    looking.start()
    looking.join(REPLY_S)
    return outcome[0]


@dataclass(frozen=True, kw_only=True)
class ServiceFacts:
    """What is examined."""

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    reach: Callable[[str, int], str] = reachable
    has_module: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None
    page_port: int = PAGE_PORT


def examine_services(around: ServiceFacts) -> Iterator[Examined]:
    yield from _ray(around)
    yield _hub_cache(around)
    yield _hub(around)
    yield _page(around)


def _ray(around: ServiceFacts) -> Iterator[Examined]:
    address = around.environment.get("RAY_ADDRESS", "")
    if not around.has_module("ray"):
        state = Health.WARNING if address else Health.OK
        mend = "Only runs on a Ray cluster need it: pip install 'spotlight-rl[ray]'."
        yield Examined("ray", state, "not installed", mend)
        return
    try:
        check_installed()
    except EnvironmentProblem as error:
        what, _, mend = str(error).rpartition("; ")
        yield Examined("ray", Health.WARNING, what, f"{mend[:1].upper()}{mend[1:]}")
        return
    yield Examined("ray", Health.OK, installed_version())
    place = _host_and_port(address)
    if place is not None:
        problem = around.reach(*place)
        mend = "Start the cluster, or unset RAY_ADDRESS; cluster.address names another." if problem else ""
        found = f"{address} cannot be reached ({problem})" if problem else f"{address} can be reached"
        yield Examined("ray cluster", Health.WARNING if problem else Health.OK, found, mend)


def _host_and_port(address: str) -> tuple[str, int] | None:
    """Of `HOST:PORT` or `ray://HOST:PORT`; None for `auto` and `local`, which name a cluster on this machine."""
    if address in ("", "auto", "local"):
        return None
    scheme, _, place = address.rpartition("://")
    host, colon, port = place.rpartition(":")
    if not colon:
        host, port = place, ""
    return host.strip("[]"), int(port) if port.isdecimal() else RAY_PORTS.get(scheme, RAY_PORTS[""])


def _hub_cache(around: ServiceFacts) -> Examined:
    """The folder that models and datasets of the hub are stored in."""
    known = around.environment
    default = Path(known.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    home = Path(known.get("HF_HOME") or default).expanduser()
    place = nearest_folder(home)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        mend = "Models of the hub cannot be stored: set HF_HOME to a folder of your own."
        return Examined("hub cache", Health.WARNING, f"{place} takes no files ({error.strerror})", mend)
    return Examined("hub cache", Health.OK, f"{home} is writable")


def _hub(around: ServiceFacts) -> Examined:
    known = around.environment
    offline = next((n for n in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if known.get(n, "").lower() in TRUE), None)
    if offline is not None:
        return Examined("hub", Health.OK, f"offline by {offline}: only models in the cache can be named")
    endpoint = known.get("HF_ENDPOINT") or HUB
    proxy = known.get("HTTPS_PROXY") or known.get("https_proxy")
    target = urlsplit(proxy or endpoint)
    try:
        port = target.port or (80 if target.scheme == "http" else 443)
    except ValueError:
        port = 443
    name = urlsplit(endpoint).hostname or endpoint
    if target.hostname is None:
        return Examined("hub", Health.WARNING, f"'{proxy or endpoint}' is not an address", "Correct it, or unset it.")
    problem = around.reach(target.hostname, port)
    way = f" by the proxy {target.hostname}" if proxy else ""
    if problem:
        mend = "Shipped models need no hub; for others fix the network, or set HF_HUB_OFFLINE=1 and use the cache."
        return Examined("hub", Health.WARNING, f"{name} cannot be reached{way} ({problem})", mend)
    return Examined("hub", Health.OK, f"{name} can be reached{way}")


def _page(around: ServiceFacts) -> Examined:
    absent = [name for name in PAGE_MODULES if not around.has_module(name)]
    if absent:
        mend = "`spotlight dashboard` needs them: install spotlight-rl again."
        return Examined("browser page", Health.WARNING, f"{', '.join(absent)} not installed", mend)
    try:
        with socket.socket(socket.AF_INET) as sock:
            sock.bind(("127.0.0.1", around.page_port))
    except OSError as error:
        found = f"port {around.page_port} of 127.0.0.1 is not free ({error.strerror}): the next free one is taken"
        return Examined("browser page", Health.OK, found)
    return Examined("browser page", Health.OK, f"port {around.page_port} of 127.0.0.1 is free")
