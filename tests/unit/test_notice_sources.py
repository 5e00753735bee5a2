"""Which sources a node watches: settings, the probe for a cloud, and both together as the agent uses them."""

import asyncio
from contextlib import aclosing

import pytest
from metadata_server import CLOUDS, PREEMPTED, MetadataServer, hang, raw, status
from notice_stories import StoryClock, is_imminent, story
from pydantic import ValidationError

from spotlight.core.errors import ConfigError
from spotlight.node.notices.config import NoticesConfig
from spotlight.node.notices.notice_sources import chosen, node_notices
from spotlight.node.notices.probe import find_cloud


@pytest.mark.parametrize("cloud", CLOUDS)
@story
async def test_probe_finds_the_cloud_that_replies(cloud):
    async with MetadataServer(clouds=(cloud,)) as server:
        assert await find_cloud(StoryClock(), server.url) == cloud


@pytest.mark.parametrize("fault", [status(500), raw(b"HTTP/1.1 200 OK\r\n\r\n<html>Log in, please</html>"), hang])
@story
async def test_probe_of_another_server_or_a_hung_one_finds_none(fault):
    async with MetadataServer(clouds=()) as server:
        server.fail(fault, times=3)
        assert await find_cloud(StoryClock(), server.url, limit_s=0.2) is None
        assert len(server.requests) == 3, "the clouds are probed at once"


@story
async def test_probe_where_nothing_listens_finds_none():
    async with MetadataServer() as gone:
        pass
    assert await find_cloud(StoryClock(), gone.url) is None


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ["gcp"]),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ["gcp", "sigterm"]),
        ({"SLURM_JOB_ID": "7"}, ["gcp", "sigterm"]),
    ],
)
@story
async def test_auto_watches_the_cloud_and_sigterm_where_a_scheduler_sends_it(environ, names):
    async with MetadataServer(clouds=("gcp",)) as server:
        config = NoticesConfig(metadata_url=server.url)
        assert await chosen(config, StoryClock(), environ) == names


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ("off", []),
        (False, []),
        ("aws", ["aws"]),
        (["sigterm", "file:/run/preempted", "sigterm"], ["sigterm", "file:/run/preempted"]),
        ({"sources": ["gcp"], "poll_s": 2}, ["gcp"]),
        (["file:/run/{node}/a", "file:/run/b"], ["file:/run/spot-1/a", "file:/run/b"]),
    ],
)
@story
async def test_named_sources_are_watched_without_a_probe(settings, names):
    config = NoticesConfig.model_validate(settings).of_node("spot-1")
    assert await chosen(config, StoryClock(), {"SLURM_JOB_ID": "7"}) == names


def test_simulated_nodes_watch_what_is_named_and_nothing_by_themselves():
    assert NoticesConfig().on_simulated_nodes().sources == "off"
    assert NoticesConfig(sources=["aws"]).on_simulated_nodes().sources == ("aws",)


@pytest.mark.parametrize("source", ["auto", "named"])
@pytest.mark.parametrize("cloud", CLOUDS)
@story
async def test_agent_receives_the_notice_of_its_cloud(cloud, source, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with MetadataServer(clouds=(cloud,)) as server:
        server.interrupt(30)
        server.schedule(30)
        await server.set_key(PREEMPTED, "TRUE")
        name = "auto" if source == "auto" else cloud
        config = NoticesConfig(sources=name, metadata_url=server.url, poll_s=0.01)
        async with aclosing(node_notices(config, StoryClock())) as notices:
            notice = await asyncio.wait_for(anext(notices), 20)
        assert notice.source == cloud
        assert is_imminent(notice, 30)


@story
async def test_grace_of_the_settings_applies_to_a_signal_without_a_time(tmp_path):
    (tmp_path / "gone").touch()
    config = NoticesConfig(sources=f"file:{tmp_path}/gone", grace_s=77)
    async with aclosing(node_notices(config, StoryClock())) as notices:
        assert is_imminent(await anext(notices), 77)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sources": []}, "is an empty list, so it says neither .* name a source, or write off"),
        ({"sources": ["aws", "azzure"]}, "'azzure', which is no source of notices; choose from aws, gcp, azure"),
        ({"sources": 7}, "is 7, which is no list of sources; choose from aws"),
        ({"sources": ["auto", "aws"]}, "'auto', which is no source .* write auto or off alone"),
        ({"sources": "file:preempted"}, "whose path is relative, and agents run in other folders; write"),
        ({"metadata_url": "https://10.0.0.1"}, "'https://10.0.0.1', and metadata services speak plain HTTP; write"),
        ({"metadata_url": "10.0.0.1:80"}, "write it as http://host"),
        ({"metadata_url": "http://host:x"}, "write it as http://host"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_sentence(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        NoticesConfig(**settings)


@pytest.mark.parametrize("settings", [{"poll_s": 0}, {"grace_s": -1}, {"url": "http://x"}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValidationError):
        NoticesConfig(**settings)
