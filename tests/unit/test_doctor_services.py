"""`spotlight doctor` on what lies beside the machine: Ray, the hub, the browser page; nothing is waited for long."""

import json
import socket
import threading
from pathlib import Path

import pytest
from command_line import spotlight

from spotlight.preflight import service_state
from spotlight.preflight.machine_state import Examined, Health
from spotlight.preflight.service_state import ServiceFacts, examine_services, reachable


def found(environment: dict[str, str] | None = None, **changes: object) -> dict[str, Examined]:
    """Findings of a machine on which all is installed and everything can be reached."""
    facts = {"environment": environment or {}, "reach": lambda host, port: "", "page_port": 0} | changes
    return {finding.subject: finding for finding in examine_services(ServiceFacts(**facts))}


def test_sound_services_are_ok_and_only_the_hub_is_asked():
    asked: list[tuple[str, int]] = []
    findings = found(reach=lambda host, port: asked.append((host, port)) or "")
    assert {finding.state for finding in findings.values()} == {Health.OK}
    assert asked == [("huggingface.co", 443)]
    assert set(findings) == {"ray", "hub cache", "hub", "browser page"}


def test_ray_is_examined_by_version_and_by_the_cluster_that_the_environment_names(monkeypatch):
    away = found({"RAY_ADDRESS": "ray://head:10002"}, reach=lambda host, port: f"nothing at {host} {port}")[
        "ray cluster"
    ]
    assert (away.state, away.found) == (Health.WARNING, "ray://head:10002 cannot be reached (nothing at head 10002)")
    assert found({"RAY_ADDRESS": "10.0.0.1:6379"})["ray cluster"].state is Health.OK
    assert "ray cluster" not in found({"RAY_ADDRESS": "auto"})
    absent = found(has_module=lambda name: name != "ray")["ray"]
    assert (absent.state, absent.mend) == (
        Health.OK, "Only runs on a Ray cluster need it: pip install 'spotlight-rl[ray]'.",
    )  # fmt: skip
    monkeypatch.setattr("spotlight.pools.ray.installed_version", lambda: "1.0.0")
    assert found()["ray"].state is Health.WARNING
    assert "Ray 1.0.0 is installed" in found()["ray"].found


def test_the_hub_is_offline_by_choice_away_or_behind_a_proxy():
    offline = found({"HF_HUB_OFFLINE": "1"}, reach=lambda host, port: pytest.fail("it must not be asked"))["hub"]
    assert (offline.state, offline.found) == (
        Health.OK, "offline by HF_HUB_OFFLINE: only models in the cache can be named",
    )  # fmt: skip
    away = found(reach=lambda host, port: "no reply within 2 s")["hub"]
    assert (away.state, away.found) == (Health.WARNING, "huggingface.co cannot be reached (no reply within 2 s)")
    asked: list[tuple[str, int]] = []
    through = {"HTTPS_PROXY": "http://proxy:3128", "HF_ENDPOINT": "https://mirror.example/hf"}
    behind = found(through, reach=lambda host, port: asked.append((host, port)) or "")["hub"]
    assert (behind.found, asked) == ("mirror.example can be reached by the proxy proxy", [("proxy", 3128)])


def test_a_cache_without_write_rights_is_a_warning(tmp_path: Path):
    assert found({"HF_HOME": str(tmp_path / "new" / "place")})["hub cache"].state is Health.OK
    assert not (tmp_path / "new").exists()
    finding = found({"HF_HOME": "/proc/hub"})["hub cache"]
    assert finding.state is Health.WARNING
    assert "set HF_HOME to a folder of your own" in finding.mend


def test_the_page_needs_its_packages_and_takes_the_next_port():
    missing = found(has_module=lambda name: name != "uvicorn")["browser page"]
    assert (missing.state, missing.found) == (Health.WARNING, "uvicorn not installed")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finding = found(page_port=port)["browser page"]
    assert finding.state is Health.OK
    assert f"port {port} of 127.0.0.1 is not free (Address already in use)" in finding.found


def test_a_name_server_that_never_replies_costs_only_the_bound(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(service_state, "REPLY_S", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: never.wait(60) and [])
    assert reachable("hub.example", 443) == "no reply within 0.05 s"
    never.set()


def test_the_command_has_the_services_in_its_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    shown = spotlight("doctor", "--json")
    assert shown.code == 0, shown.err
    subjects = [finding["subject"] for finding in json.loads(shown.out)["findings"]]
    assert {"torch", "ray", "hub", "hub cache", "browser page"} <= set(subjects)
