"""What a recorder writes can be read again: after rotation, a full queue, a full disk, a fork, and kill -9."""

from __future__ import annotations

import errno
import gzip
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lifecycle import Policy
from lifecycle.errors import EventError
from lifecycle.observe import ObservedTable
from lifecycle.recorder import Recorder, segments
from lifecycle.replay import Replay
from lifecycle.shadow import Shadow
from lifecycle.trace import read


def opened(path):
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".zst":
        import zstandard

        return io.BufferedReader(zstandard.open(path, "rb"))
    return path.open("rb")


def replayed(path):
    run = Replay()
    for number, segment in enumerate(segments(path)):
        with opened(segment) as stream:
            for line in read(stream, str(segment)):
                if number == 0 or hasattr(line, "event"):
                    run.feed(line)
    return run


def drive(table, lives, prefix="r"):
    for number in range(lives):
        rid = f"{prefix}{number}"
        table.submit(rid)
        table.fire(rid, "admit", pages=["a", "b"])
        table.fire(rid, "forward_launched", step=1)
        table.fire(rid, "forward_finished", step=1)
        if number % 2:
            table.fire(rid, "abort", source="client", message='"quoted"\n ü')
        else:
            table.fire(rid, "complete", reason="stop", position=7)


@pytest.mark.parametrize("compress", [None, "gzip", "zstd"])
def test_a_trace_in_segments_is_read_as_it_was_written(tmp_path, compress):
    policy = Policy(report="at_decision")
    path = tmp_path / "logs" / "prefill.jsonl"
    with Recorder(path, policy, max_bytes=20_000, compress=compress, flush_every=0.001) as recorder:
        table = ObservedTable([recorder], policy, keep_done=None)
        for part in range(5):
            drive(table, 100, f"{part}-")
            recorder.flush()
    run = replayed(path)
    assert len(segments(path)) > 3
    assert {each.suffix for each in segments(path)[:-1]} == {
        {None: ".jsonl", "gzip": ".gz", "zstd": ".zst"}[compress]
    }
    assert run.policy == policy
    assert run.clean
    assert run.lives == 500
    assert recorder.written == run.events == 2500
    assert (recorder.dropped, recorder.failure) == (0, None)
    for request in table.lives():
        again = run.requests.life(request.rid, request.incarnation)
        assert (again.state, again.reason) == (request.state, request.reason)
        assert again.details == request.details


def test_what_was_refused_or_unknown_is_written_too(tmp_path):
    path = tmp_path / "t.jsonl"
    with Recorder(path) as recorder:
        table = ObservedTable([recorder])
        table.submit("r")
        table.abort("r")
        with pytest.raises(EventError):
            table.fire("r", "admit", pages=1)
        table.fire("stranger", "transfer_succeeded")
        with pytest.raises(EventError):
            table.fire("r", "no_such_event")  # no trace can hold this one
    run = replayed(path)
    assert [each["event"] for each in run.illegal] == ["admit"]
    assert run.requests.unknown.total() == 1
    assert recorder.dropped == 1


def test_a_shadow_writes_the_events_and_beside_them_what_it_found(tmp_path):
    path = tmp_path / "t.jsonl"
    with Recorder(path) as recorder:
        shadow = Shadow(observers=(recorder,))
        for event in ("submit", "admit", "prefill_finished", "abort"):
            shadow.saw("r", event)
        shadow.freed("r")
        shadow.saw("r", "admit", pages=object())
    assert [each["event"] for each in replayed(path).illegal] == ["admit"]
    beside = (tmp_path / "t.divergences.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["kind"] for line in beside] == ["freed_in_flight", "illegal_event"]
    assert shadow.errors == 0


def test_only_the_newest_segments_are_kept(tmp_path):
    path = tmp_path / "t.jsonl"
    with Recorder(path, max_bytes=5000, keep=2) as recorder:
        table = ObservedTable([recorder])
        for part in range(10):
            drive(table, 20, f"{part}-")
            recorder.flush()
        numbers = [each.name for each in segments(path)]
    assert len(numbers) == 3
    assert "t.000001.jsonl.gz" not in numbers


def test_a_full_queue_cuts_lives_short_and_never_makes_a_wrong_one(tmp_path):
    path = tmp_path / "t.jsonl"
    recorder = Recorder(path, max_waiting=50, flush_every=3600)
    table = ObservedTable([recorder])
    for rid in range(20):
        table.submit(f"r{rid}")
    for event in ("admit", "prefill_finished", "transfer_succeeded"):
        for rid in range(20):
            table.fire(f"r{rid}", event)
    recorder.flush()
    for event in ("transfer_pending", "transfer_failed"):
        for rid in range(20):
            table.fire(f"r{rid}", event)
    drive(table, 1, "whole")
    recorder.close()
    assert recorder.dropped > 20
    assert recorder.written + recorder.dropped == 20 * 6 + 5
    run = replayed(path)
    assert run.clean
    assert run.requests["whole0"].done


def test_a_full_disk_loses_whole_lines(tmp_path, monkeypatch):
    path = tmp_path / "t.jsonl"
    recorder = Recorder(path, flush_every=3600)
    table = ObservedTable([recorder])
    drive(table, 1, "before")
    recorder.flush()
    write = os.write

    def full(descriptor, data):
        if len(data) > 100:
            return write(descriptor, data[:100])  # a write that stops in mid-line
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    drive(table, 1, "lost")
    recorder.flush()
    monkeypatch.setattr(os, "write", write)
    drive(table, 1, "after")
    recorder.close()
    assert recorder.failure.errno == errno.ENOSPC
    assert recorder.dropped == 5
    run = replayed(path)
    assert sorted(life.rid for life in run.requests.lives()) == ["after0", "before0"]


def test_a_process_that_is_killed_leaves_a_trace(tmp_path):
    path = tmp_path / "t.jsonl"
    script = Path(__file__).with_name("killed_recorder.py")
    child = subprocess.Popen(
        [sys.executable, str(script), str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(script.parents[2])},
    )
    try:
        for said in child.stdout:
            if int(said) > 15_000:
                break
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    left = segments(path)
    assert len(left) > 2
    with left[-1].open("ab") as stream:  # what a machine that lost its power leaves
        stream.write(b'{"event": "submit", "ri')
    after = Recorder(
        path, flush_every=0.001
    )  # starts anew: takes a new segment, puts the others away
    drive(ObservedTable([after]), 3, "after")
    deadline = time.monotonic() + 20
    while any(each.suffix == ".jsonl" for each in segments(path)[:-1]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    after.close()
    events = lives = 0
    for segment in segments(path):
        with opened(segment) as stream:
            lines = stream.read().split(b"\n")
        tail = lines.pop()
        assert tail in (b"", b'{"event": "submit", "ri')
        events += len(lines) - 1
        lives += sum(b'"submit"' in line for line in lines)
        for line in lines:
            json.loads(line)
    assert events >= 15_000 + 15
    assert lives >= 15_000 // 4


def _in_child(recorder, table, queue):
    drive(table, 1, "child")
    recorder.flush()
    queue.put(recorder.dropped)


def test_a_forked_child_leaves_the_parents_segment_alone(tmp_path):
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    path = tmp_path / "t.jsonl"
    with Recorder(path, flush_every=3600) as recorder:
        table = ObservedTable([recorder])
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=_in_child, args=(recorder, table, queue))
        child.start()
        assert queue.get() == 5
        child.join()
        drive(table, 1, "parent")
    assert [life.rid for life in replayed(path).requests.lives()] == ["parent0"]


def test_a_child_that_is_forked_while_the_parent_writes_is_not_locked_out(tmp_path):
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    with Recorder(tmp_path / "t.jsonl", flush_every=3600) as recorder:
        table = ObservedTable([recorder])
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=_in_child, args=(recorder, table, queue))
        with recorder._writing:
            child.start()
        child.join(20)
        try:
            assert child.exitcode == 0
        finally:
            child.kill()


def test_two_recorders_of_one_path_take_different_segments(tmp_path):
    path = tmp_path / "t.jsonl"
    with Recorder(path, max_bytes=3000) as one, Recorder(path, max_bytes=3000) as two:
        for _ in range(3):
            drive(ObservedTable([one]), 10, "one")
            drive(ObservedTable([two]), 10, "two")
            one.flush()
            two.flush()
        assert one.segment != two.segment
    events = 0
    for segment in segments(path):
        with opened(segment) as stream:
            events += sum(1 for _ in read(stream, str(segment))) - 1
    assert events == one.written + two.written == 300


@pytest.mark.parametrize("options", [{"compress": "rar"}])
def test_a_choice_that_does_not_exist_is_refused(tmp_path, options):
    with pytest.raises(ValueError, match="rar"):
        Recorder(tmp_path / "t.jsonl", **options)
