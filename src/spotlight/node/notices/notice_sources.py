"""The sources that the settings name; the agent reads its notices from `node_notices`."""

import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path

from spotlight.core.clock import Clock
from spotlight.node.notices import file, gcp, sigterm
from spotlight.node.notices.aws import aws_sources
from spotlight.node.notices.azure import azure_sources
from spotlight.node.notices.config import FILE, NoticesConfig, NoticeSource
from spotlight.node.notices.metadata_http import MetadataClient
from spotlight.node.notices.notice import Notice, WatchedSource
from spotlight.node.notices.probe import find_cloud
from spotlight.node.notices.watch import watch_all

log = logging.getLogger("spotlight.notices")
KILLERS = ("KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID")
"""Environment variables of systems that send SIGTERM before they kill."""


async def node_notices(config: NoticesConfig, clock: Clock) -> AsyncGenerator[Notice, None]:
    """Notices and withdrawals of this node's sources, by its settings; never ends.

    Use it inside `contextlib.aclosing`.
    """
    names = await chosen(config, clock, os.environ)
    sources = [source for name in names for source in made(name, config, clock)]
    log.info("preemption notices come from: %s", ", ".join(source.name for source in sources) or "nothing")
    async with aclosing(watch_all(sources)) as notices:
        async for notice in notices:
            yield notice


async def chosen(config: NoticesConfig, clock: Clock, environ: Mapping[str, str]) -> list[str]:
    """Names of the sources to watch, each once; `auto` probes for a cloud, which takes at most 1 s."""
    if config.sources == "off":
        return []
    if config.sources != "auto":
        return list(dict.fromkeys(config.sources))
    cloud = await find_cloud(clock, config.metadata_url)
    is_killed_by_signal = any(name in environ for name in KILLERS)
    return [*([cloud] if cloud else []), *([NoticeSource.SIGTERM] if is_killed_by_signal else [])]


def made(name: str, config: NoticesConfig, clock: Clock) -> list[WatchedSource]:
    """The sources of one name: some clouds have two places that announce a loss."""
    grace_s, poll_s = config.grace_s, config.poll_s
    client = MetadataClient(clock, config.metadata_url)
    if name.startswith(FILE):
        return [file.NoticeFile(Path(name.removeprefix(FILE)), clock, poll_s, grace_s or file.GRACE_S)]
    match NoticeSource(name):
        case NoticeSource.AWS:
            return aws_sources(client, poll_s)
        case NoticeSource.GCP:
            return gcp.gcp_sources(client, grace_s or gcp.GRACE_S)
        case NoticeSource.AZURE:
            return azure_sources(client, poll_s)
        case NoticeSource.SIGTERM:
            return [sigterm.Sigterm(clock, grace_s or sigterm.GRACE_S)]
