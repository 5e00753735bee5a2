"""`spotlight dashboard` before it serves: what it refuses, what it prints, and which socket it takes."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from command_line import spotlight
from recorded_folder import recorded_folder
from story_journal import story

from spotlight.core.errors import InputError
from spotlight.surface.cli.dashboard import folder_of
from spotlight.surface.dashboard.serving import token_for


def test_place_is_a_run_or_a_folder_of_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert folder_of("runs").name == "runs", "it may not exist yet: the page waits for the first run"
    folder = recorded_folder(tmp_path / "runs/one", story(iterations=1), pictures=0)
    assert folder_of("one").resolve() == folder_of(str(folder.path)).resolve() == folder.path
    assert folder_of(str(tmp_path / "runs")) == tmp_path / "runs"
    with pytest.raises(InputError, match="no run and no folder 'two'"):
        folder_of("two")


def test_port_that_is_taken_is_refused_with_one_sentence(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = spotlight("dashboard", tmp_path, "--port", str(port))
    assert outcome.code == 3
    assert f"cannot listen at 127.0.0.1:{port}" in outcome.err
    assert spotlight("dashboard", tmp_path / "nothing").code == 2


def test_token_is_made_beyond_this_machine_and_a_given_one_is_kept():
    assert token_for("127.0.0.1", None) is None
    made = token_for("0.0.0.0", None)
    assert made is not None
    assert len(made) >= 32
    assert made != token_for("0.0.0.0", None)
    assert token_for("127.0.0.1", "given") == token_for("10.0.0.1", "given") == "given"


def test_page_is_served_until_it_is_interrupted(tmp_path):
    command = [sys.executable, "-m", "spotlight.surface.cli.main", "dashboard", str(tmp_path), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        printed = json.loads(process.stdout.readline())
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", printed["address"])
        assert printed["token"] is None
        with urllib.request.urlopen(f"{printed['address']}healthz", timeout=60) as reply:
            assert reply.read() == b"ok\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
