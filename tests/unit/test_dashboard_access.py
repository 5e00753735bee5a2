"""Who may read the page: the token is exchanged for a cookie, and a foreign name of this machine is refused."""

import hmac

import pytest
from asgi_client import request

from spotlight.control.market.prices import PriceTable
from spotlight.surface.dashboard.access import is_loopback, session_of
from spotlight.surface.dashboard.dashboard_app import dashboard_app
from spotlight.surface.dashboard.run_index import RunIndex

TOKEN = "correct-horse"


@pytest.fixture
def guarded(tmp_path):
    return dashboard_app(RunIndex(tmp_path, PriceTable.load()), "0.0.0.0", TOKEN)


def test_without_the_token_there_is_a_form_and_nothing_of_a_run(guarded):
    for address in ("/", "/cards", "/runs/x", "/runs/x/events", "/runs/x/panels"):
        reply = request(guarded, address, host="box:8420")
        assert reply.status == 401
        assert "needs a token" in reply.text
    assert "a token is needed" in request(guarded, "/", host="box:8420", accept="*/*").text
    assert request(guarded, "/healthz", host="box:8420").status == 200


def test_token_in_the_address_becomes_a_cookie_and_leaves_the_address(guarded):
    reply = request(guarded, f"/runs/demo?token={TOKEN}&x=1", host="box:8420")
    assert (reply.status, reply.headers["location"]) == (303, "/runs/demo?x=1")
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    pair = cookie.partition(";")[0]
    assert request(guarded, "/", host="box:8420", cookie=pair).status == 200


@pytest.mark.parametrize("given", ["", "correct-hors", "correct-horse ", "CORRECT-HORSE", "é"])
def test_wrong_token_is_refused(guarded, given):
    assert request(guarded, f"/?token={given}", host="box:8420").status == 401
    assert request(guarded, "/", host="box:8420", authorization=f"Bearer {given}x").status == 401
    assert request(guarded, "/", host="box:8420", cookie=f"spotlight_8420={given}").status == 401


def test_bearer_token_opens_for_machines(guarded):
    assert request(guarded, "/cards", host="box:8420", authorization=f"Bearer {TOKEN}").status == 200


def test_form_takes_the_token(guarded):
    kind = "application/x-www-form-urlencoded"
    good = request(guarded, "/login", "POST", f"token={TOKEN}".encode(), host="box:8420", content_type=kind)
    assert (good.status, good.headers["location"]) == (303, "/")
    bad = request(guarded, "/login", "POST", b"token=x", host="box:8420", content_type=kind)
    assert (bad.status, "That token is wrong" in bad.text) == (401, True)
    assert request(guarded, "/login", "POST", b"t" * 5000, host="box:8420", content_type=kind).status == 413


def test_redirect_after_a_token_stays_on_this_host(guarded):
    assert request(guarded, f"//evil.example/?token={TOKEN}", host="box:8420").headers["location"] == "/evil.example/"


def test_secrets_are_compared_in_constant_time(guarded, monkeypatch):
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    request(guarded, "/?token=guess", host="box:8420")
    request(guarded, "/", host="box:8420", cookie="spotlight_8420=guess")
    assert (b"guess", TOKEN.encode()) in compared
    assert (b"guess", session_of(TOKEN).encode()) in compared


def test_loopback_needs_no_token_but_answers_only_to_its_own_names(tmp_path):
    app = dashboard_app(RunIndex(tmp_path, PriceTable.load()))
    for host in ("127.0.0.1:8420", "localhost", "[::1]:8420"):
        assert request(app, "/", host=host).status == 200
    for host in ("evil.example", "evil.example:8420", "127.0.0.1.evil.example", ""):
        assert request(app, "/", host=host).status == 421


def test_addresses_of_this_machine_are_known():
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.3", "box")] == [False] * 4
