"""The journal: numbering, restarts, sync policies, full disks, live readers, rotation, snapshots."""

import errno
import os
import subprocess
import sys

import pytest
from journal_stories import CALM, SMALL, FussyDisk, HandClock, lease, segments, write

from spotlight.core.errors import InputError, Stopped
from spotlight.core.events import Checkpointed, Restored, RunStopped, WorkerLost
from spotlight.core.journal import (
    Disk,
    Journal,
    JournalConfig,
    JournalUnwritable,
    Sync,
    newest_snapshot,
    read,
)
from spotlight.core.types import WorkerId

# -- numbering and time ------------------------------------------------------------------------------------------------


def test_records_are_numbered_and_bear_run_time_across_a_restart(tmp_path):
    clock = HandClock(start=5000.0)
    with Journal.create(tmp_path, clock.now, CALM) as journal:
        journal.append(lease(0))
        clock.seconds += 7.5
        journal.append(lease(1))
    clock = HandClock(start=3.0)
    with Journal.open(tmp_path, clock.now, CALM) as journal:
        assert journal.recovery.records == 2
        assert journal.recovery.torn_bytes == 0
        journal.append(lease(2))
        clock.seconds += 1.5
        journal.append(lease(3))
    assert [(record.seq, record.at) for record in read(tmp_path)] == [(0, 0.0), (1, 7.5), (2, 7.5), (3, 9.0)]
    assert [record.event for record in read(tmp_path)] == [lease(number) for number in range(4)]


def test_a_reader_that_knows_a_prefix_gets_only_what_follows_it(tmp_path):
    written = write(tmp_path, 60, SMALL)
    assert len(segments(tmp_path)) > 2
    for after in (-1, 0, 17, 40, 58, 59, 100):
        assert list(read(tmp_path, after)) == written[after + 1 :]


def test_a_second_journal_in_the_same_folder_is_refused(tmp_path):
    write(tmp_path, 1)
    with pytest.raises(InputError, match="holds a journal already"):
        Journal.create(tmp_path, HandClock().now)


def test_a_folder_without_a_journal_is_named(tmp_path):
    with pytest.raises(InputError, match=f"no journal in {tmp_path}/gone"):
        list(read(tmp_path / "gone"))
    with pytest.raises(InputError, match="no journal"):
        Journal.open(tmp_path / "gone", HandClock().now)


def test_a_second_writer_in_another_process_is_refused(tmp_path):
    with Journal.create(tmp_path, HandClock().now) as journal:
        journal.append(lease(0))
        code = (
            "import sys, pathlib, spotlight.core.journal as j; j.Journal.open(pathlib.Path(sys.argv[1]), lambda: 0.0)"
        )
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
        assert "another process writes the journal" in other.stderr
    code += "; print('went on')"
    other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert other.stdout == "went on\n", other.stderr


# -- durability --------------------------------------------------------------------------------------------------------


def test_sync_always_forces_durable_events_only(tmp_path):
    disk = FussyDisk()
    with Journal.create(tmp_path, HandClock().now, JournalConfig(sync=Sync.ALWAYS), disk.disk()) as journal:
        journal.append(lease(0))
        journal.append(WorkerLost(worker=WorkerId("w"), cause="killed"))
        assert disk.syncs == 0
        journal.append(Checkpointed(step=1, path="checkpoints/1"))
        assert disk.syncs == 1


def test_sync_interval_waits_and_tick_catches_up(tmp_path):
    disk, clock = FussyDisk(), HandClock()
    config = JournalConfig(sync=Sync.INTERVAL, interval_s=2.0)
    with Journal.create(tmp_path, clock.now, config, disk.disk()) as journal:
        journal.append(Restored(step=0, reason="a"))
        journal.tick()
        assert disk.syncs == 0
        clock.seconds += 2.0
        journal.tick()
        journal.tick()
        assert disk.syncs == 1
        clock.seconds += 5.0
        journal.append(Restored(step=0, reason="b"))
        assert disk.syncs == 2


def test_sync_never_forces_nothing_but_every_record_is_readable_at_once(tmp_path):
    disk = FussyDisk()
    with Journal.create(tmp_path, HandClock().now, CALM, disk.disk()) as journal:
        record = journal.append(RunStopped(reason="done", finished=True))
        assert list(read(tmp_path)) == [record]
    assert disk.syncs == 0


def test_a_killed_process_loses_no_record_that_append_returned(tmp_path):
    code = """
import os, pathlib, signal, sys
from spotlight.core.events import Restored
from spotlight.core.journal import Journal, JournalConfig, Sync
journal = Journal.create(pathlib.Path(sys.argv[1]), lambda: 0.0, JournalConfig(sync=Sync.NEVER))
for step in range(500):
    journal.append(Restored(step=step, reason="x"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert [record.event.step for record in read(tmp_path)] == list(range(500))


# -- a disk that fails -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 1, 9, 30])
def test_a_full_disk_stops_the_run_resumably_and_leaves_no_half_record(tmp_path, room):
    disk = FussyDisk()
    with Journal.create(tmp_path, HandClock().now, CALM, disk.disk()) as journal:
        first = journal.append(lease(0))
        disk.room = room
        with pytest.raises(JournalUnwritable, match=r"No space left on device.*resume") as caught:
            journal.append(lease(1))
        assert isinstance(caught.value, Stopped)
        assert list(read(tmp_path)) == [first]
        disk.room = 1 << 20
        assert journal.append(lease(2)).seq == 1
    assert [record.event for record in read(tmp_path)] == [lease(0), lease(2)]


def test_a_real_file_size_limit_stops_the_run_resumably(tmp_path):
    code = """
import pathlib, resource, signal, sys
from spotlight.core.events import Restored
from spotlight.core.journal import Journal, JournalConfig, JournalUnwritable, Sync
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal.create(pathlib.Path(sys.argv[1]), lambda: 0.0, JournalConfig(sync=Sync.NEVER))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    while True:
        journal.append(Restored(step=1, reason="x" * 40))
except JournalUnwritable as error:
    print(journal.next_seq)
    sys.exit(error.exit_code)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    with Journal.open(tmp_path, HandClock().now, CALM) as journal:
        assert journal.recovery.records == int(done.stdout) > 5
        assert journal.recovery.torn_bytes == 0


def test_after_a_failed_sync_nothing_more_is_written(tmp_path):
    disk = FussyDisk(fails_sync=True)
    with Journal.create(tmp_path, HandClock().now, JournalConfig(sync=Sync.ALWAYS), disk.disk()) as journal:
        with pytest.raises(JournalUnwritable, match="Input/output error"):
            journal.append(Restored(step=0, reason="x"))
        with pytest.raises(JournalUnwritable, match="failed before"):
            journal.append(lease(1))


def test_a_segment_that_cannot_be_made_stops_the_run_resumably(tmp_path):
    obstacle = tmp_path / "segment-000001.log.tmp"
    with Journal.create(tmp_path, HandClock().now, SMALL) as journal:
        obstacle.mkdir()
        written = [journal.append(lease(number)) for number in range(6)]
        with pytest.raises(JournalUnwritable, match="the run stops here"):
            journal.append(Restored(step=0, reason="x" * SMALL.segment_bytes))
        with pytest.raises(JournalUnwritable, match="failed before"):
            journal.append(Restored(step=0, reason=""))
    obstacle.rmdir()
    with Journal.open(tmp_path, HandClock().now, SMALL) as journal:
        assert list(read(tmp_path)) == written
        assert journal.append(lease(1)).seq == 6


def test_a_closed_journal_takes_nothing_more(tmp_path):
    journal = Journal.create(tmp_path, HandClock().now, CALM)
    journal.close()
    journal.close()
    with pytest.raises(JournalUnwritable, match="closed"):
        journal.append(lease(0))


def test_a_journal_whose_close_fails_raises_once_and_releases_its_lock(tmp_path):
    def failing(handle: int) -> None:
        os.close(handle)
        raise OSError(errno.EIO, "Input/output error")

    handles = len(os.listdir("/proc/self/fd"))
    journal = Journal.create(tmp_path, HandClock().now, CALM, Disk(close=failing))
    written = journal.append(lease(0))
    with pytest.raises(JournalUnwritable, match=r"Input/output error.*resume"):
        journal.close()
    journal.close()
    assert len(os.listdir("/proc/self/fd")) == handles
    assert list(read(tmp_path)) == [written]


# -- live readers, rotation, snapshots ---------------------------------------------------------------------------------


def test_a_live_reader_sees_a_growing_prefix_even_within_a_half_written_record(tmp_path):
    seen = []

    def write_in_pieces(handle: int, data: bytes | memoryview) -> int:
        seen.append([record.seq for record in read(tmp_path)])
        return os.write(handle, data[:11])

    with Journal.create(tmp_path, HandClock().now, SMALL, Disk(write=write_in_pieces)) as journal:
        for number in range(30):
            journal.append(lease(number))
    assert all(numbers == list(range(len(numbers))) for numbers in seen)
    assert [len(numbers) for numbers in seen] == sorted(len(numbers) for numbers in seen)
    assert len(seen[-1]) == 29


def test_segments_stay_below_their_size_and_none_is_lost_at_a_rotation(tmp_path):
    written = write(tmp_path, 200, SMALL)
    assert all(path.stat().st_size <= 1024 for path in segments(tmp_path))
    assert list(read(tmp_path)) == written
    with Journal.open(tmp_path, HandClock().now, SMALL) as journal:
        assert journal.append(lease(1)).seq == 200


def test_a_record_larger_than_a_segment_gets_one_of_its_own(tmp_path):
    with Journal.create(tmp_path, HandClock().now, SMALL) as journal:
        journal.append(lease(0))
        journal.append(Restored(step=0, reason="x" * SMALL.segment_bytes))
        journal.append(lease(2))
    assert [record.seq for record in read(tmp_path)] == [0, 1, 2]
    assert len(segments(tmp_path)) == 3


def test_a_crash_just_after_a_rotation_recovers_with_the_last_time(tmp_path):
    clock = HandClock()
    with Journal.create(tmp_path, clock.now, SMALL) as journal:
        while len(segments(tmp_path)) < 2:
            clock.seconds += 1.0
            last = journal.append(lease(0))
    newest = segments(tmp_path)[1]
    newest.write_bytes(newest.read_bytes()[:-1])
    with Journal.open(tmp_path, HandClock().now, SMALL) as journal:
        assert journal.recovery.records == last.seq
        assert journal.now() == last.at - 1.0


def test_the_newest_sound_snapshot_wins_and_two_are_kept(tmp_path):
    assert newest_snapshot(tmp_path) is None
    with Journal.create(tmp_path, HandClock().now, CALM) as journal:
        for number in range(3):
            journal.append(lease(number))
            journal.snapshot({"status": bytes([number]) * 100})
    found = newest_snapshot(tmp_path)
    assert found is not None
    assert (found.seq, found.parts) == (2, {"status": b"\2" * 100})
    assert list(read(tmp_path, after=found.seq)) == []
    older, newer = sorted(tmp_path.glob("snapshot-*.msgpack"))
    damaged = bytearray(newer.read_bytes())
    damaged[60] ^= 1
    newer.write_bytes(bytes(damaged))
    found = newest_snapshot(tmp_path)
    assert found is not None
    assert (found.seq, found.parts) == (1, {"status": b"\1" * 100})
    older.write_bytes(b"")
    assert newest_snapshot(tmp_path) is None


def test_a_snapshot_makes_the_journal_before_it_durable_first(tmp_path):
    disk = FussyDisk()
    with Journal.create(tmp_path, HandClock().now, CALM, disk.disk()) as journal:
        journal.append(lease(0))
        journal.snapshot({})
        assert disk.syncs == 1


def test_leftovers_of_a_crash_while_making_a_file_are_cleared(tmp_path):
    written = write(tmp_path, 2)
    (tmp_path / "segment-000001.log.tmp").write_bytes(b"half")
    with Journal.open(tmp_path, HandClock().now, CALM):
        assert list(read(tmp_path)) == written
    assert not list(tmp_path.glob("*.tmp"))
