"""Rewards behind an endpoint, against a real server that is down, slow, busy, answers nonsense, and recovers."""

import json
import threading

import numpy as np
import pytest
from chat_server import ChatServer, Handler, says, silent, status

from spotlight.compute.rewards.circuit_breaker import CircuitBreaker
from spotlight.compute.rewards.endpoint import PATIENCE_S, REST_S, EndpointConfig, VisionEndpoint
from spotlight.compute.rewards.endpoint_rewards import OcrEndpoint, RubricEndpoint, ocr_endpoint, rubric_endpoint
from spotlight.core.errors import ConfigError, EnvironmentProblem, RewardError, RewardUnavailable
from spotlight.core.types import Prompt

HAT = Prompt(text='a sign that says "hat"', target="hat")


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    server = ChatServer()
    yield server
    server.stop()


def picture(shade: int) -> np.ndarray:
    return np.full((8, 12, 3), shade, dtype=np.uint8)


class Time:
    """A clock that only waits move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if seconds:
            self.waits.append(seconds)


def client(server: ChatServer, time: Time, **settings) -> VisionEndpoint[str]:
    """A client that parses an answer as a JSON string."""
    config = EndpointConfig(url=server.url, model="seer", **settings)
    return VisionEndpoint(config, lambda answer: str(json.loads(answer)), lambda: time.now, time.sleep)


def quick(server: ChatServer, **settings) -> EndpointConfig:
    return EndpointConfig(**{"url": server.url, "model": "seer", "first_wait_s": 0.001, **settings})


def test_ocr_score_is_the_edit_similarity_of_what_the_endpoint_reads(server):
    server.script.extend(says(json.dumps({"text": read})) for read in ("HAT", "hot", ""))
    reward = OcrEndpoint(quick(server, concurrency=1))
    scores = reward.score([picture(0), picture(1), picture(2)], [HAT] * 3)
    assert scores.total.tolist() == pytest.approx([1, 2 / 3, 0])
    assert scores.components["exact"].tolist() == [1, 0, 0]


def test_ocr_needs_a_target(server):
    assert "no text to read" in ocr_endpoint(url=server.url, model="seer").problem_with(Prompt(text="a hat"))
    assert ocr_endpoint(url=server.url, model="seer").problem_with(HAT) is None


def test_rubric_score_is_a_tenth_of_the_grade_and_the_request_has_rubric_prompt_and_picture(server):
    server.script.extend([says('{"score": 7}'), says('```json\n{"score": 2.5}\n```')])
    reward = RubricEndpoint(quick(server, concurrency=1), "Is the {text} legible?")
    images = [picture(3), np.arange(24, dtype=np.uint8).reshape(2, 4, 3)]
    assert reward.score(images, [HAT, HAT]).total.tolist() == [0.7, 0.25]
    request = server.requests[1]
    assert request.path == "/v1/chat/completions"
    assert (request.question["model"], request.question["temperature"]) == ("seer", 0)
    assert "Is the {text} legible?" in request.text
    assert HAT.text in request.text
    assert np.array_equal(request.image, images[1])


@pytest.mark.parametrize(
    "answer",
    [
        "7", "score: 7", '{"score": "7"}', '{"score": 11}', '{"score": -1}', '{"score": true}', '{"score": null}', "{}",
        '{"score": 7, "but": 1}', '{"score": 7} or so', '{"score": NaN}', "I cannot help with that.", "", None, ["x"],
    ],
)  # fmt: skip
def test_answer_that_is_no_grade_is_requested_again_and_then_unavailable_never_0(server, answer):
    server.usual = says(answer)
    reward = RubricEndpoint(quick(server, attempts=3), "legible?")
    with pytest.raises(RewardUnavailable, match="an answer that cannot be used"):
        reward.score([picture(0)], [HAT])
    assert len(server.requests) == 3


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff\xfe", b"{}", b'{"choices": []}', b"[" * 200_000, b"[]"])
def test_body_that_is_no_completion_is_unavailable(server, body):
    server.usual = status(200, body)
    with pytest.raises(RewardUnavailable, match="an answer that cannot be used"):
        OcrEndpoint(quick(server, attempts=1)).score([picture(0)], [HAT])


def test_endless_answer_is_not_read_to_its_end(server):
    server.usual = status(200, b" " * (4 << 20))
    with pytest.raises(RewardUnavailable, match="an answer of more than"):
        OcrEndpoint(quick(server, attempts=1)).score([picture(0)], [HAT])


def test_nonsense_then_a_grade_is_the_grade(server):
    server.script.extend([says("hm"), status(200, b"<html>"), says('{"score": 10}')])
    assert RubricEndpoint(quick(server), "legible?").score([picture(0)], [HAT]).total.tolist() == [1.0]


def test_endpoint_that_is_down_is_unavailable_and_scores_after_it_recovers(server):
    down = ChatServer()
    down.stop()
    with pytest.raises(RewardUnavailable, match=rf"{down.url} gave no score \(.*refused.*; check that it is up"):
        OcrEndpoint(quick(down)).score([picture(0)], [HAT])
    server.script.extend([status(503), status(500), status(502)])
    assert OcrEndpoint(quick(server)).score([picture(0)], [HAT]).total.tolist() == [0.0]
    assert len(server.requests) == 4


def test_endpoint_that_never_replies_is_given_up_at_the_time_limit(server):
    server.usual = silent
    with pytest.raises(RewardUnavailable, match=r"no answer within 0\.05 s, after 2 attempts"):
        OcrEndpoint(quick(server, timeout_s=0.05, attempts=2)).score([picture(0)], [HAT])


def test_endpoint_that_sends_byte_after_byte_is_given_up_at_the_time_limit(server):
    time = Time()

    def dribble(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        time.now += 31
        handler.wfile.write(b" ")
        silent(handler)

    server.usual = dribble
    with pytest.raises(RewardUnavailable, match="no answer within 30 s"):
        client(server, time, attempts=1).answers(["?"], [picture(0)])


def test_waits_double_with_a_jitter_that_is_the_same_for_the_same_picture(server):
    server.usual = status(500)
    times = [Time(), Time(), Time()]
    for time, shade in zip(times, (0, 0, 1), strict=True):
        with pytest.raises(RewardUnavailable, match="status 500"):
            client(server, time, attempts=4).answers(["?"], [picture(shade)])
    waits = times[0].waits
    assert [0.5 * 2**step <= wait <= 2**step for step, wait in enumerate(waits)] == [True] * 3
    assert times[1].waits == waits
    assert times[2].waits != waits


def test_busy_endpoint_is_asked_again_after_the_time_it_names(server):
    time = Time()
    past, future = "Mon, 01 Jan 2001 00:00:00 GMT", "Fri, 01 Jan 2900 00:00:00 GMT"
    server.script.extend([status(429, Retry_After="7"), status(503, Retry_After=past), says('"yes"')])
    assert client(server, time).answers(["?"], [picture(0)]) == ["yes"]
    assert time.waits == [7.0]
    server.script.append(status(429, Retry_After=future))
    with pytest.raises(RewardUnavailable, match="status 429"):
        client(server, time).answers(["?"], [picture(1)])
    assert time.waits == [7.0]


def test_requests_of_a_call_begin_within_the_patience(server):
    time = Time()
    server.usual = status(429, Retry_After="50")
    with pytest.raises(RewardUnavailable, match=f"would begin after {PATIENCE_S:g} s"):
        client(server, time, attempts=100).answers(["?"], [picture(0)])
    assert time.now <= PATIENCE_S


def test_dead_endpoint_is_left_alone_after_failures_and_probed_by_one_request(server):
    time = Time()
    endpoint = client(server, time, attempts=1, concurrency=1)
    server.usual = status(500)

    def ask(*shades: int) -> list[str]:
        return endpoint.answers(["?"] * len(shades), [picture(shade) for shade in shades])

    sent = []
    for shade in range(20):
        with pytest.raises(RewardUnavailable):
            ask(shade)
        sent.append(len(server.requests))
    assert sent[:3] == [1, 2, 3]
    assert sent[-1] == sent[9]
    with pytest.raises(RewardUnavailable, match="no request is sent for up to"):
        ask(0)
    time.now += REST_S
    with pytest.raises(RewardUnavailable):
        ask(1)
    with pytest.raises(RewardUnavailable):
        ask(2)
    assert len(server.requests) == sent[-1] + 1
    server.usual = says('"yes"')
    time.now += REST_S
    assert ask(1, 2, 3) == ["yes"] * 3


def test_busy_endpoint_is_not_taken_for_a_dead_one(server):
    time = Time()
    endpoint = client(server, time, attempts=3, concurrency=1)
    server.script.extend([status(429)] * 12)
    for shade in range(4):
        with pytest.raises(RewardUnavailable):
            endpoint.answers(["?"], [picture(shade)])
    server.usual = says('"yes"')
    assert endpoint.answers(["?"], [picture(0)]) == ["yes"]


@pytest.mark.parametrize(
    ("code", "error"),
    [(401, RewardUnavailable), (404, RewardUnavailable), (302, RewardUnavailable), (400, RewardError)],
)
def test_status_that_no_retry_helps_is_reported_after_one_request(server, code, error):
    server.usual = status(code, b"no such model", Location=f"{server.url}/elsewhere")
    with pytest.raises(RewardError, match=f"status {code} .* no such model") as raised:
        OcrEndpoint(quick(server)).score([picture(0)], [HAT])
    assert type(raised.value) is error
    assert len(server.requests) == 1


def test_pictures_of_a_call_are_asked_about_together_within_the_limit_and_answered_in_order(server):
    together, lock = threading.Barrier(4, timeout=30), threading.Lock()
    under_way: list[int] = [0]

    def reply(handler: Handler) -> None:
        with lock:
            under_way.append(under_way[-1] + 1)
        together.wait()
        with lock:
            under_way.append(under_way[-1] - 1)
        says(json.dumps({"score": int(handler.image[0, 0, 0])}))(handler)

    server.usual = reply
    shades = [4, 2, 7, 1, 0, 9, 3, 8]
    scores = RubricEndpoint(quick(server, concurrency=4), "dark?").score([picture(x) for x in shades], [HAT] * 8)
    assert scores.total.tolist() == [shade / 10 for shade in shades]
    assert max(under_way) == 4


def test_answered_pictures_of_a_failed_call_are_not_requested_again(server):
    server.script.extend([says('{"score": 1}'), says('{"score": 2}'), status(400)])
    reward = RubricEndpoint(quick(server, concurrency=1), "dark?")
    images = [picture(0), picture(1), picture(2)]
    with pytest.raises(RewardError):
        reward.score(images, [HAT] * 3)
    server.usual = says('{"score": 3}')
    assert reward.score(images, [HAT] * 3).total.tolist() == [0.1, 0.2, 0.3]
    assert len(server.requests) == 4


def test_key_comes_from_the_named_variable_and_shows_in_no_error(server, monkeypatch):
    monkeypatch.setenv("SEER_KEY", " s3cret\n")
    reward = rubric_endpoint(url=server.url, model="seer", rubric="dark?", key_variable="SEER_KEY")
    server.usual = status(401)
    with pytest.raises(RewardUnavailable) as raised:
        reward.score([picture(0)], [HAT])
    assert server.requests[0].headers["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in f"{raised.value} {reward.version} {raised.value.__cause__!r}"
    ocr_endpoint(url=server.url, model="seer").score([], [])
    monkeypatch.delenv("SEER_KEY")
    with pytest.raises(EnvironmentProblem, match="SEER_KEY does not hold an API key"):
        ocr_endpoint(url=server.url, model="seer", key_variable="SEER_KEY")


def test_request_without_a_key_variable_has_no_key(server):
    ocr_endpoint(url=server.url, model="seer").score([picture(0)], [HAT])
    assert server.requests[0].headers["Authorization"] is None


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "file:///etc/passwd", "ftp://host/v1", "http://", "http://me:key@host/v1",
     "https://host/v1?key=1", "https://host/v1#x", "http://host:x/v1", "http://[/v1", "http://host/v\n1"],
)  # fmt: skip
def test_address_that_is_not_plain_http_is_refused_without_showing_it(url):
    with pytest.raises(ConfigError, match="http://HOST/PATH") as refused:
        ocr_endpoint(url=url, model="seer")
    assert "me:key" not in str(refused.value)


@pytest.mark.parametrize("settings", [{"timeout_s": 0}, {"attempts": 0}, {"concurrency": 0}])
def test_endpoint_that_would_never_be_asked_is_refused(settings):
    with pytest.raises(ConfigError, match="must be positive"):
        EndpointConfig(url="http://host/v1", model="seer", **settings)


def test_empty_rubric_is_refused():
    with pytest.raises(ConfigError, match="rubric is empty"):
        rubric_endpoint(url="http://host/v1", model="seer", rubric=" ")


def test_version_changes_with_model_address_and_rubric():
    made = [
        rubric_endpoint(url=url, model=model, rubric=rubric).version
        for url, model, rubric in [("a", "x", "1"), ("b", "x", "1"), ("a", "y", "1"), ("a", "x", "2")]
        for url in [f"http://{url}/v1"]
    ]
    assert len(set(made)) == 4


def test_breaker_opens_after_failures_in_a_row_and_closes_when_its_one_probe_is_answered():
    breaker = CircuitBreaker(limit=3, rest_s=10)
    for _ in range(2):
        breaker.failed(0.0)
    breaker.answered()
    for _ in range(2):
        breaker.failed(1.0)
    assert breaker.allows(1.0)
    breaker.failed(1.0)
    assert [breaker.allows(10.9), breaker.allows(11.0), breaker.allows(11.0)] == [False, True, False]
    breaker.failed(12.0)
    assert [breaker.allows(21.9), breaker.allows(22.0), breaker.allows(31.9)] == [False, True, False]
    # The second probe has no outcome.
    assert [breaker.allows(32.0), breaker.allows(32.0)] == [True, False]
    breaker.answered()
    assert [breaker.allows(32.0), breaker.allows(32.0)] == [True, True]
