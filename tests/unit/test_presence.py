"""The controller of a run: a process counts as alive only while it is the one that the run's file names."""

import os
import subprocess
import sys
import time

import msgspec
import pytest

from spotlight.presence import NAME, OLD_S, Presence, born_at, read_beat


@pytest.fixture
def presence(tmp_path):
    return Presence(tmp_path, waiting_for=lambda: "3 rollouts", quiet_s=lambda: 2.5, nodes=lambda: ())


def test_file_names_the_process_and_what_it_waits_for_and_goes_with_it(tmp_path, presence):
    with presence:
        beat = read_beat(tmp_path)
        assert (beat.pid, beat.is_alive, beat.waiting_for, beat.quiet_s) == (os.getpid(), True, "3 rollouts", 2.5)
        assert not beat.is_draining
        presence.is_draining = True
        presence.write()
        assert read_beat(tmp_path).is_draining
    assert read_beat(tmp_path) is None


def test_process_that_was_killed_is_not_alive(tmp_path, presence):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    presence.write()
    beat = msgspec.structs.replace(read_beat(tmp_path), pid=process.pid, born=born_at(process.pid))
    assert beat.is_alive
    process.kill()
    process.communicate()
    assert not beat.is_alive


def test_another_process_with_the_same_id_does_not_count_as_the_controller(tmp_path, presence):
    presence.write()
    beat = read_beat(tmp_path)
    assert not msgspec.structs.replace(beat, born=beat.born - 1).is_alive


@pytest.mark.parametrize(("age_s", "is_alive"), [(1.0, True), (2 * OLD_S, False)])
def test_controller_of_another_machine_is_judged_by_the_age_of_its_file(tmp_path, presence, age_s, is_alive):
    presence.write()
    beat = msgspec.structs.replace(read_beat(tmp_path), host="elsewhere", pid=1, wall=time.time() - age_s)
    assert beat.is_alive is is_alive


def test_file_with_other_content_names_no_process(tmp_path):
    (tmp_path / NAME).write_text("{}")
    assert read_beat(tmp_path) is None
