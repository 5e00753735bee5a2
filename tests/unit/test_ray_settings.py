"""Refusals of runs that cannot use a Ray cluster, and what is said about one that they can."""

import asyncio
import socket
import sys
from importlib import metadata, util

import msgspec
import pytest
from join_stories import listening

from spotlight.config import load_config
from spotlight.core import join_messages as joins
from spotlight.core.errors import ConfigError, EnvironmentProblem
from spotlight.pools.config import ClusterConfig, MarketConfig, PoolKind
from spotlight.pools.devices import Device, Devices, assign
from spotlight.pools.ray import RayCluster, RayMachines, RayPool, check_installed, connect_order, used_nodes
from spotlight.pools.ray_lines import Connected, RayNode


@pytest.fixture
def connect(tmp_path):
    return connect_order(ClusterConfig(pool=PoolKind.RAY), "cpu", tmp_path / "run")


def connected(*nodes: RayNode) -> Connected:
    return Connected(version="2.60.0", host="10.0.0.1", nodes=nodes)


def test_missing_ray_is_refused_with_the_name_of_the_extra(monkeypatch):
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'spotlight-rl\[ray\]'"):
        check_installed()


@pytest.mark.parametrize("version", ["2.57.1", "2.62.0", "3.0.0"])
def test_other_versions_of_ray_are_refused_with_the_range(monkeypatch, version):
    monkeypatch.setattr(util, "find_spec", lambda name: name)
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with pytest.raises(EnvironmentProblem, match=r"Ray .* is installed.*ray>=2.58,<2.62") as caught:
        check_installed()
    assert version in str(caught.value)


def test_cluster_without_a_marked_node_is_refused_and_the_way_to_mark_is_said(connect):
    found = connected(RayNode(id="1", name="a"), RayNode(id="2", name="b", labels={"market": "spot"}))
    with pytest.raises(EnvironmentProblem, match=r"none of the 2 other nodes .*ray start --labels spotlight=spot"):
        used_nodes(found, connect, is_resumed=False)


def test_run_whose_nodes_are_all_gone_can_be_resumed(connect):
    assert "no node" in used_nodes(connected(RayNode(id="1", name="a")), connect, is_resumed=True)


def test_cluster_whose_nodes_are_yet_to_come_can_be_used(connect):
    assert "no node but this one yet" in used_nodes(connected(), connect, is_resumed=False)


def test_nodes_that_the_run_uses_are_named_by_class(connect):
    cloud = RayNode(id="1", name="a", labels={"ray.io/market-type": "spot"}, resources={"GPU": 8.0})
    kept = RayNode(id="2", name="b", resources={"reserved": 1.0})
    assert "reserved b; spot a (8 GPUs)" in used_nodes(connected(cloud, kept), connect, is_resumed=False)


def test_ray_client_needs_an_address_at_which_its_nodes_reach_the_run():
    with pytest.raises(ConfigError, match=r"ray://head:10001 but cluster.listen is not set"):
        ClusterConfig(pool=PoolKind.RAY, address="ray://head:10001")
    ClusterConfig(pool=PoolKind.RAY, address="ray://head:10001", listen="10.0.0.1:7000")


def test_market_over_the_nodes_of_a_ray_cluster_is_refused():
    with pytest.raises(ConfigError, match=r"cluster.pool is ray but market.fallback_s is set"):
        ClusterConfig(pool=PoolKind.RAY).check_market(MarketConfig(fallback_s=1.0))


def test_more_training_ranks_than_this_machine_has_gpus_are_refused_because_they_stay_here():
    found = Devices(torch="2.11", cuda="13.0", devices=(Device("cuda:0", "H200", 1 << 30, 1 << 30),))
    with pytest.raises(ConfigError, match=r"training ranks stay on this machine with cluster.pool=ray"):
        assign(ClusterConfig(pool=PoolKind.RAY, reserved=2, gang=2), found)


def test_driver_process_that_dies_is_an_environment_problem_with_the_address(connect, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvironmentProblem, match=r"cluster.address=auto cannot be used.*ray status"):
        asyncio.run(RayCluster(connect).connect())


def test_cluster_of_a_thousand_nodes_can_be_used(connect, monkeypatch, tmp_path):
    labels = {"spotlight": "spot", "ray.io/node-id": "0" * 56}
    nodes = [RayNode(id=f"{number:056}", name=f"node-{number}", labels=labels) for number in range(1000)]
    (tmp_path / "lines").write_bytes(msgspec.json.encode(connected(*nodes)) + b"\n")
    driver = tmp_path / "driver"
    driver.write_text(f"#!/bin/sh\nexec cat {tmp_path}/lines\n")
    driver.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(driver))
    assert len(asyncio.run(RayCluster(connect).connect()).nodes) == 1000


def test_cluster_that_nothing_serves_is_an_environment_problem_with_the_address(connect):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(EnvironmentProblem, match=rf"cluster.address={address} cannot be used .*refused.*ray status"):
        asyncio.run(RayCluster(msgspec.structs.replace(connect, address=address)).connect())


def test_machine_that_joins_cannot_have_the_name_of_a_ray_node_whose_end_would_end_it(tmp_path, connect):
    async def story():
        async with listening(tmp_path) as run:
            plain = run.pool
            pool = RayPool(
                plain._local, run.door, plain._settings, run.secrets, RayMachines(RayCluster(connect), print)
            )
            reply = await run.dialled(run.join(name="ray-a"))
            assert isinstance(reply, joins.JoinRefused)
            assert (reply.exit_code, reply.wait_s) == (2, 0.0)
            assert "ray-a is kept for a Ray node" in reply.reason
            await run.joined("box")
            await run.joined("ray-a", from_ray=True)
            pool.ended("ray-a", "node lost")
            assert pool.nodes() == ("box.1",)

    asyncio.run(story())


@pytest.mark.parametrize("pool", ["join", "ray"])
def test_fleet_is_refused_where_machines_report_what_they_are(pool):
    described = ["cluster.fleet=[{speed: 0.3}]", f"cluster.pool={pool}", "cluster.listen=127.0.0.1:7700"]
    with pytest.raises(ConfigError, match=rf"cluster.fleet is set but cluster.pool is {pool}"):
        load_config("words-nft", described)
