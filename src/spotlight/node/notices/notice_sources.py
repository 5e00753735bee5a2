"""The sources that the settings name; the agent reads its notices from `node_notices`."""

import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from spotlight.core.clock import Clock
from spotlight.node.notices import file, gcp, sigterm
from spotlight.node.notices.aws import aws_sources
from spotlight.node.notices.azure import azure_sources
from spotlight.node.notices.config import NoticesConfig, NoticeSource
from spotlight.node.notices.metadata_http import MetadataClient
from spotlight.node.notices.notice import Notice, Source
from spotlight.node.notices.probe import find_cloud
from spotlight.node.notices.watch import watch_all

log = logging.getLogger("spotlight.notices")
KILLERS = ("KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID")
"""Environment variables of systems that send SIGTERM before they kill."""


async def node_notices(config: NoticesConfig, clock: Clock) -> AsyncGenerator[Notice, None]:
    """Preemption notices of this node, by its settings; never ends. Use it inside `contextlib.aclosing`.

    A notice with `withdrawn` ends the one announced before it. Without it, a notice replaces the one before: it is more
    severe, or its deadline is nearer.
    """
    names = await chosen(config, clock, os.environ)
    sources = [source for name in names for source in _made(name, config, clock)]
    log.info("preemption notices come from: %s", ", ".join(source.name for source in sources) or "nothing")
    async with aclosing(watch_all(sources)) as notices:
        async for notice in notices:
            yield notice


async def chosen(config: NoticesConfig, clock: Clock, environ: Mapping[str, str]) -> list[NoticeSource]:
    """The kinds of sources to watch; `auto` probes for a cloud, which takes at most 1 s."""
    names: list[NoticeSource] = [] if config.source is NoticeSource.NONE else [config.source]
    if config.source is NoticeSource.AUTO:
        cloud = await find_cloud(clock, config.metadata_url)
        names = [NoticeSource(cloud)] if cloud else []
        names += [NoticeSource.SIGTERM] if any(name in environ for name in KILLERS) else []
    if config.file is not None and NoticeSource.FILE not in names:
        names.append(NoticeSource.FILE)
    return names


def _made(name: NoticeSource, config: NoticesConfig, clock: Clock) -> list[Source]:
    grace_s, poll_s = config.grace_s, config.poll_s
    client = MetadataClient(clock, config.metadata_url)
    match name:
        case NoticeSource.AWS:
            return aws_sources(client, poll_s)
        case NoticeSource.GCP:
            return gcp.gcp_sources(client, grace_s or gcp.GRACE_S)
        case NoticeSource.AZURE:
            return azure_sources(client, poll_s)
        case NoticeSource.SIGTERM:
            return [sigterm.Sigterm(clock, grace_s or sigterm.GRACE_S)]
        case NoticeSource.FILE if config.file is not None:
            return [file.NoticeFile(config.file, clock, poll_s, grace_s or file.GRACE_S)]
    return []
