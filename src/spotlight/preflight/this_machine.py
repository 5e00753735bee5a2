"""Checks that this machine can hold the run: folder, sockets, open files and disk."""

import asyncio
import importlib.util
import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from spotlight.config import RunConfig
from spotlight.core.errors import EnvironmentProblem, InputError
from spotlight.folder import CHECKPOINTS_KEPT
from spotlight.pools.config import PoolKind
from spotlight.pools.machine import sockets
from spotlight.pools.ray import check_installed, connect_order, found_in_cluster
from spotlight.preflight.planned_run import PlannedRun

SOCKET_PATH_BYTES = 107
"""The longest path of a unix socket on Linux."""
OPEN_BEFORE_NODES = 64
"""Files that a process has open before any node, worker or reward process; 14 were counted in a controller."""
OPEN_PER_NODE = 4
"""Files of the controller per node: connection, pidfd, pipe of the agent, and one that is being replaced."""
OPEN_PER_SLOT = 4
"""Files of an agent per slot: the worker's socket, its connection to the group store, and both of its successor."""
OPEN_PER_CHILD = 2
"""Files of the nursery per worker and spare process: the pidfd, and the line to a process that is or was a spare."""
OPEN_PER_REWARD_PROCESS = 8
FLOAT_BYTES = 4
LOOPBACK = "127.0.0.1"


def check_folder(subject: PlannedRun) -> Iterator[str]:
    """The run folder can be made and written to."""
    place = nearest_folder(subject.folder.path)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise EnvironmentProblem(
            f"the run folder {subject.folder.path} cannot be written, because {place} takes no files "
            f"({error.strerror}); set output.folder to another place."
        ) from error
    yield from ()


def check_gang_port(subject: PlannedRun) -> Iterator[str]:
    """The port at which the training ranks meet is free."""
    cluster = subject.config.cluster
    if cluster.gang_port and cluster.gang > 1:
        try:
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((LOOPBACK, cluster.gang_port))
        except OSError as error:
            raise EnvironmentProblem(
                f"cluster.gang_port is {cluster.gang_port}, but that port of {LOOPBACK} cannot be used "
                f"({error.strerror}), and the training ranks meet there; free it, or set cluster.gang_port to another "
                "port, or to 0 for any."
            ) from error
    yield from ()


def check_ray(subject: PlannedRun) -> Iterator[str]:
    """The Ray cluster can be used, and some of its nodes are marked."""
    cluster = subject.config.cluster
    if cluster.pool is PoolKind.RAY:
        check_installed()
        order = connect_order(cluster, subject.config.model.device, subject.folder.path)
        # A run that is resumed may have lost all its nodes.
        yield asyncio.run(found_in_cluster(order, is_resumed=subject.folder.path.exists()))


def check_trackers(subject: PlannedRun) -> Iterator[str]:
    """The packages of the trackers are installed."""
    for kind in subject.config.output.trackers:
        if importlib.util.find_spec(kind.value) is None:
            raise EnvironmentProblem(
                f"output.trackers has {kind.value}, but the package {kind.value} is not installed; install it with "
                f"`pip install 'spotlight-rl[{kind.value}]'`, or leave it out."
            )
    yield from ()


def check_sockets(subject: PlannedRun) -> Iterator[str]:
    """Unix sockets can be made where the run's processes meet, and their paths are short enough."""
    folder, cluster = sockets(subject.folder.path), subject.config.cluster
    nodes = (*cluster.reserved_nodes(), *cluster.spot_nodes(), *cluster.stand_ins())
    longest = max((os.fsencode(folder / f"{node.name}.groups") for node in nodes), key=len)
    if len(longest) > SOCKET_PATH_BYTES:
        raise InputError(
            f"the path of the socket {os.fsdecode(longest)} has {len(longest)} bytes, but Linux takes "
            f"{SOCKET_PATH_BYTES}; choose a shorter output.name."
        )
    place = nearest_folder(folder)
    try:
        with tempfile.TemporaryDirectory(dir=place) as scratch, socket.socket(socket.AF_UNIX) as sock:
            sock.bind(f"{scratch}/s")
    except OSError as error:
        raise EnvironmentProblem(
            f"no unix socket can be made in {place} ({error.strerror}), and the processes of a run need them; "
            f"make {place} writable, or mount a tmpfs there."
        ) from error
    yield from ()


def check_open_files(subject: PlannedRun) -> Iterator[str]:
    """Controller, nursery and agents may open enough files; the soft limit is raised up to the hard one."""
    process, needed = max(open_files(subject.config).items(), key=lambda item: item[1])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and needed > hard:
        cluster = subject.config.cluster
        raise EnvironmentProblem(
            f"the {process} of this run opens up to {needed} files ({cluster.reserved} reserved and {cluster.spot} "
            f"spot nodes of {cluster.slots} slots), but the limit is {hard}; raise it with `ulimit -n {needed}`, or "
            "use fewer nodes."
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    yield from ()


def open_files(config: RunConfig) -> dict[str, int]:
    """Largest number of open files by kind of process."""
    cluster = config.cluster
    judges = sum(term.processes for term in config.reward.terms) or config.reward.processes
    nodes = cluster.reserved + cluster.spot + (cluster.spot if config.market.fallback_s is not None else 0)
    return {
        "controller": OPEN_BEFORE_NODES + OPEN_PER_NODE * nodes,
        "nursery": OPEN_BEFORE_NODES + nodes * (1 + OPEN_PER_CHILD * (cluster.slots + 1)),
        "agent": OPEN_BEFORE_NODES + OPEN_PER_SLOT * cluster.slots + OPEN_PER_REWARD_PROCESS * judges,
    }


def check_disk(subject: PlannedRun) -> Iterator[str]:
    """The disk has room for the largest size of the run folder, less its present size."""
    parts = disk_bytes(subject)
    needed = max(0, sum(parts.values()) - _size(subject.folder.path))
    place = nearest_folder(subject.folder.path)
    free = shutil.disk_usage(place).free
    summary = (
        f"the run needs about {_gigabytes(needed)} in {place} ("
        + ", ".join(f"{name} {_gigabytes(size)}" for name, size in parts.items())
        + f"), and {_gigabytes(free)} are free there"
    )
    if free < needed:
        raise EnvironmentProblem(
            f"{summary}; free {_gigabytes(needed - free)}, set output.folder to another disk, or lower "
            "output.checkpoint_every."
        )
    if free < 2 * needed:
        yield f"{summary}: little more than the run needs."


def disk_bytes(subject: PlannedRun) -> dict[str, int]:
    """Largest bytes on disk by kind; pictures, journal and logs are small beside these."""
    config, facts = subject.config, subject.facts
    lora = config.train.lora
    trained = FLOAT_BYTES * (facts.parameters if lora is None else lora.rank * facts.matrix_edges)
    every, rollout, size = config.output.checkpoint_every, config.rollout, facts.size(config.data.size)
    # The finished picture, and with a window its states before and after every step and their means.
    tensors = 1 + (2 * rollout.window_size + 1 if rollout.window_size else 0)
    sample = FLOAT_BYTES * facts.geometry.tokens(size) * facts.geometry.token_channels * tensors
    return {
        # One more than are kept, for the one being written.
        "checkpoints": (CHECKPOINTS_KEPT + 1) * trained * copies_kept(config),
        # All since the last checkpoint and the one before, those for evaluations included.
        "published weights": trained * (every + 2 + every // config.eval.every + 2),
        "samples": sample * rollout.prompts * rollout.group_size * (every + 1),
    }


def copies_kept(config: RunConfig) -> int:
    """Copies of the trained weights in a checkpoint: theta, AdamW's two moments, the average, and the loss's own."""
    return 4 + config.algorithm.weight_sets(config.pipeline.asynchrony, config.model.is_on_gpu)


def nearest_folder(path: Path) -> Path:
    """The path itself, or the first folder above it that exists."""
    return next(each for each in (path, *path.parents) if each.is_dir())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size < 10e9 else f"{size / 1e9:.0f} GB"
