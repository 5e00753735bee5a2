"""Prometheus metrics of a recorded run: the text format, the served page, and the board and rules that name them."""

import asyncio
import json
import math
import os
import re
import socket
from pathlib import Path

import msgspec
import pytest
import yaml
from asgi_client import request
from launch_files import MONITORING
from recorded_folder import recorded_folder
from story_journal import story

from spotlight.config import load_config
from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import EnvironmentProblem
from spotlight.core.events import Evaluated, IterationDone, Record, RunStarted
from spotlight.presence import Presence
from spotlight.surface.dashboard.dashboard_app import dashboard_app
from spotlight.surface.dashboard.run_index import RunIndex
from spotlight.surface.liveness import standing_of
from spotlight.surface.metrics import METRICS, MetricSettings, measure, render
from spotlight.surface.metrics_server import CLIENTS, MetricsServer
from spotlight.surface.projections import RunView
from spotlight.surface.status import status

PRICES = PriceTable.load()
SETTINGS = MetricSettings.of(
    load_config(
        "words-nft", ["cluster.spot=3", "budget.max_dollars=10", "budget.max_hours=2", "rollout.prompts=4"]
    ).model_dump(mode="json")
)
LINE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def page(view: RunView, run: str = "demo-1") -> str:
    return render(measure(run, view, standing_of(view), SETTINGS, PRICES))


def parsed(text: str) -> Series:
    """As Prometheus reads the format: comments, then one series a line, values of a name together."""
    found: Series = {}
    order: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP \w+ .+|TYPE \w+ (gauge|counter))", line), line
            continue
        match = LINE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        key = (name, frozenset((k, v) for k, v in LABEL.findall(labels or "")))
        assert key not in found
        found[key] = float(value)
        if not order or order[-1] != name:
            assert name not in order, f"{name} is in two places"
            order.append(name)
    return found


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, frozenset({("run", "demo-1"), *labels.items()})]


def test_metrics_are_the_numbers_of_status():
    view = RunView.of(story())
    found, known = parsed(page(view)), status(view, PRICES)
    assert {name for name, _ in found} <= METRICS.keys()
    assert value(found, "spotlight_iterations") == len(known.iterations) == 5
    assert value(found, "spotlight_cost_dollars") == pytest.approx(known.cost.dollars)
    assert value(found, "spotlight_run_state", state="finished") == 1
    assert sum(v for (name, _), v in found.items() if name == "spotlight_run_state") == 1
    for name, interval in known.evaluations[-1].scores.items():
        assert value(found, "spotlight_held_out_score", score=name) == pytest.approx(interval.value)
        assert value(found, "spotlight_held_out_score_low", score=name) == pytest.approx(interval.low)
    for state, count in known.samples.rollouts.items():
        assert value(found, "spotlight_rollouts", state=state) == count
    assert value(found, "spotlight_preemptions_total", noticed="true") == known.losses.noticed
    assert value(found, "spotlight_denoising_steps_redone_total") == sum(known.samples.steps_redone.values())
    slots = sum(v for (name, _), v in found.items() if name == "spotlight_slots")
    assert slots == len(known.slots)
    assert value(found, "spotlight_budget_seconds") == 7200
    assert value(found, "spotlight_spot_nodes_wanted") == 3


def test_a_run_that_has_just_begun_has_metrics_without_invented_values():
    found = parsed(page(RunView.of(story()[:1])))
    names = {name for name, _ in found}
    assert "spotlight_iterations" in names
    assert not {"spotlight_held_out_score", "spotlight_training_reward", "spotlight_flat_group_share"} & names
    assert all(math.isfinite(number) for number in found.values())


def test_hostile_names_stay_inside_their_labels():
    hostile = 'a"} 1\nspotlight_evil{x="1"} 2\\\x1b[2J\u202e' + "x" * 5000
    records = [
        Record(r.seq, r.at, msgspec.structs.replace(r.event, recipe=hostile))
        if isinstance(r.event, RunStarted)
        else Record(r.seq, r.at, msgspec.structs.replace(r.event, scores={hostile: (0.5, 0.4, 0.6)}))
        if isinstance(r.event, Evaluated)
        else r
        for r in story()
    ]
    text = page(RunView.of(records), run=hostile)
    found = parsed(text)
    assert {name for name, _ in found} <= METRICS.keys()
    assert not set(text) & {"\x1b", "\u202e"}
    assert not [line for line in text.splitlines() if line.startswith("spotlight_evil")]
    assert max(map(len, text.splitlines())) < 1500


def test_scores_whose_names_are_cut_to_one_label_are_one_series():
    scores = {"x" * 300 + end: (0.5, 0.4, 0.6) for end in "ab"}
    records = [
        Record(r.seq, r.at, msgspec.structs.replace(r.event, scores=scores)) if isinstance(r.event, Evaluated) else r
        for r in story(1)
    ]
    found = parsed(page(RunView.of(records)))
    assert len([name for name, _ in found if name == "spotlight_held_out_score"]) == 1


def expressions() -> list[str]:
    board = json.loads((MONITORING / "grafana.json").read_text())
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    queries = [variable["query"]["query"] for variable in board["templating"]["list"] if "run" in variable["name"]]
    drawn = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [*queries, *drawn, *(rule["expr"] for group in rules["groups"] for rule in group["rules"])]


def test_every_metric_and_label_of_the_board_and_the_rules_exists():
    """On a run with budgets, evaluations and spot slots every selector finds something."""
    counted = {"flat_groups": 1.0, "samples": 16.0}
    records = [
        Record(r.seq, r.at, msgspec.structs.replace(r.event, figures=counted))
        if isinstance(r.event, IterationDone)
        else r
        for r in story()
    ]
    found = parsed(page(RunView.of(records)))
    assert value(found, "spotlight_flat_group_share") == 0.25
    labels: dict[str, dict[str, set[str]]] = {}
    for name, pairs in found:
        for label, text in pairs:
            labels.setdefault(name, {}).setdefault(label, set()).add(text)
    used = [
        (name, selector)
        for expression in expressions()
        for name, selector in re.findall(r"\b(spotlight_\w+)(?:\{([^}]*)\})?", expression)
    ]
    assert len({name for name, _ in used}) > 20
    assert {name for name, _ in used} - labels.keys() == set()
    for name, selector in used:
        for label, operator, text in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', selector):
            known = labels[name]
            assert label in known, f"{name} has no label {label}"
            assert operator != "=" or text in known[label], f"{name} has no {label} {text}"
    grouped = {
        label for expr in expressions() for part in re.findall(r"by \(([^)]*)\)", expr) for label in part.split(", ")
    }
    assert grouped <= {"instance", *(label for each in labels.values() for label in each)}


def test_the_rules_cover_progress_spot_reward_and_budget():
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"][0]["rules"]
    named = {rule["alert"]: rule for rule in rules}
    assert {"SpotlightNoProgress", "SpotlightNoSpot", "SpotlightConstantReward", "SpotlightBudget"} <= named.keys()
    assert all({"summary", "action"} <= rule["annotations"].keys() for rule in rules)
    scraped = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    assert scraped["rule_files"] == ["alerts.yaml"]
    assert [job["job_name"] for job in scraped["scrape_configs"]] == ["spotlight"]


def test_a_folder_of_runs_has_metrics_of_those_that_are_recent(tmp_path: Path):
    runs = [recorded_folder(tmp_path / name, story(2)) for name in ("new", "old", "live", "broken", "foreign")]
    for name in ("old", "live"):
        for segment in (tmp_path / name / "journal").glob("segment-*"):
            os.utime(segment, (0, 0))
    Presence(tmp_path / "live", lambda: "", lambda: 0.0, tuple).write()
    (tmp_path / "broken" / "config.json").write_text("{}")
    foreign = runs[-1].read_config()
    (runs[-1].config).write_text(json.dumps({**foreign, "cluster": {"spot": "all"}}))
    page = request(dashboard_app(RunIndex(tmp_path, PRICES)), "/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = parsed(page.text)
    assert {value for _, labels in found for name, value in labels if name == "run"} == {"new", "live"}


async def asked(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


def test_the_page_is_served_and_odd_clients_are_dropped():
    server = MetricsServer(0)
    server.text = lambda: page(RunView.of(story()))
    port = int(server.url.rpartition(":")[2].partition("/")[0])

    async def scenario() -> None:
        serving = asyncio.create_task(server.serve(lambda source, problem: None))
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CLIENTS // 2)]
        answer = await asked(port, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert b"text/plain; version=0.0.4" in head
        assert parsed(body.decode())
        assert (await asked(port, b"HEAD /metrics HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
        assert (await asked(port, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404")
        assert (await asked(port, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")
        assert await asked(port, b"\r\n\r\n") == b""
        assert await asked(port, b"x" * 100_000 + b"\r\n\r\n") == b""
        for _, writer in silent:
            writer.close()
        serving.cancel()

    asyncio.run(scenario())


def test_a_port_in_use_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentProblem, match=f"--metrics-port is {port}, but that port of 127.0.0.1"):
            MetricsServer(port)
