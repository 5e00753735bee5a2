"""Finds the cloud of this machine by its metadata service."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum

from spotlight.core.clock import Clock
from spotlight.node.notices import aws, azure, gcp
from spotlight.node.notices.metadata_http import LINK_LOCAL, MetadataClient
from spotlight.node.notices.notice import SourceFailed

PROBE_S = 1.0


class Cloud(StrEnum):
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"


async def find_cloud(clock: Clock, url: str = LINK_LOCAL, limit_s: float = PROBE_S) -> Cloud | None:
    """The cloud whose metadata service replies within `limit_s`; None on other machines.

    Elsewhere nothing listens at the address: the connection is refused, or the time limit ends it.
    """
    client = MetadataClient(clock, url, limit_s)
    probes: dict[Cloud, Callable[[MetadataClient], Awaitable[bool]]] = {
        Cloud.GCP: _is_gcp,
        Cloud.AZURE: _is_azure,
        Cloud.AWS: _is_aws,
    }
    replies = await asyncio.gather(*(_asked(probe(client)) for probe in probes.values()))
    return next((cloud for cloud, is_here in zip(probes, replies, strict=True) if is_here), None)


async def _asked(reply: Awaitable[bool]) -> bool:
    try:
        return await reply
    except SourceFailed:
        return False


async def _is_aws(client: MetadataClient) -> bool:
    reply = await client.send("PUT", aws.TOKEN, {aws.TTL_HEADER: "60"})
    return reply.status == 200 and aws.is_token(reply.text)


async def _is_gcp(client: MetadataClient) -> bool:
    return gcp.is_google(await client.get("/", gcp.FLAVOR))


async def _is_azure(client: MetadataClient) -> bool:
    reply = await client.get(azure.NAME, azure.HEADER)
    return reply.status == 200 and bool(azure.machine_name(reply))
