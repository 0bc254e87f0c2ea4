"""Reading traces: what is refused, with file and line; and that any text can be a rid."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lifecycle import Policy, TraceError, replay, trace
from lifecycle.cli import main
from lifecycle.testing.strategies import traces

GOOD = b'{"event": "submit", "rid": "r"}\n'


def _line(**fields):
    return json.dumps({"event": "admit", "rid": "r", **fields}).encode() + b"\n"


BAD = {
    "no json": (b"submit r1\n", "not JSON"),
    "half a line": (b'{"event": "sub', "not JSON"),
    "a list": (b"[1]\n", "must be a JSON object"),
    "a string": (b'"submit"\n', "must be a JSON object"),
    "null": (b"null\n", "must be a JSON object"),
    "no rid": (b'{"event": "submit"}\n', "'rid' is missing"),
    "no event": (b'{"rid": "r"}\n', "'event' is missing"),
    "unknown event": (b'{"event": "explode", "rid": "r"}\n', "'event' must be one of submit"),
    "unknown field": (_line(colour="red"), "unknown field 'colour'"),
    "rid is a number": (b'{"event": "submit", "rid": 7}\n', "'rid' must be a string"),
    "event is a list": (b'{"event": [], "rid": "r"}\n', "'event' must be one of"),
    "pages below zero": (_line(pages=-1), "'pages' must be a count"),
    "pages a truth": (_line(pages=True), "'pages' must be a count"),
    "pages a fraction": (_line(pages=1.5), "'pages' must be a count"),
    "a page twice": (_line(pages=["p", "p"]), "different page names"),
    "a page of no name": (_line(pages=[1]), "different page names"),
    "step a string": (_line(step="1"), "'step' must be a whole number"),
    "step null": (_line(step=None), "'step' must be a whole number"),
    "op a number": (_line(op=1), "'op' must be a string"),
    "no such source": (_line(source="me"), "'source' must be one of client"),
    "position below zero": (_line(position=-1), "'position' must be"),
    "attempt a truth": (_line(attempt=False), "'attempt' must be"),
    "life zero": (_line(incarnation=0), "'incarnation' must be"),
    "message a list": (_line(message=[]), "'message' must be a string"),
    "no such status": (_line(status=1000), "'status' must be"),
    "time a string": (_line(t="now"), "'t' must be a number of seconds"),
    "time too large": (_line(t=1)[:-2] + b"e999}\n", "'t' must be a number of seconds"),
    "not a number": (b'{"event": "admit", "rid": "r", "t": NaN}\n', "NaN is no number"),
    "infinity": (b'{"event": "admit", "rid": "r", "t": -Infinity}\n', "-Infinity is no number"),
    "5,000 digits": (_line(step=0)[:-2] + b"1" * 5000 + b"}\n", "not JSON"),
    "a key twice": (b'{"event": "submit", "rid": "a", "rid": "b"}\n', "'rid' stands twice"),
    "nested deeply": (b"[" * 100_000 + b"\n", "nested too deeply"),
    "no utf-8": (b'{"event": "submit", "rid": "\xff"}\n', "not UTF-8: byte 29"),
    "a nul byte": (b'{"event": "submit",\x00 "rid": "r"}\n', "not JSON"),
    "no such cause": (
        b'{"event": "grammar_failed", "rid": "r", "cause": "taste"}\n',
        "'cause' of grammar_failed",
    ),
    "complete without reason": (
        b'{"event": "complete", "rid": "r"}\n',
        "complete needs a 'reason'",
    ),
    "complete by abort": (
        b'{"event": "complete", "rid": "r", "reason": "timeout"}\n',
        "'reason' of complete",
    ),
    "policy in the middle": (b'{"policy": {}}\n', "only be the first line"),
    "a blank line": (b"\n" + GOOD, "a blank line in the middle"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_line_that_is_not_well_formed_is_told_with_file_and_line(name, tmp_path):
    line, message = BAD[name]
    path = tmp_path / "trace.jsonl"
    path.write_bytes(GOOD + GOOD.replace(b'"r"', b'"q"') + line)
    ran = CliRunner().invoke(main, ["replay", "--json", str(path)])
    assert ran.exit_code == 2
    assert ran.stdout == ""
    assert f"{path}:3: " in ran.stderr
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the trace is empty"),
        (b"\n\n", "the trace is empty"),
        (b'{"policy": []}\n', "'policy' must be an object"),
        (b'{"policy": {"report": "never"}}\n', "policy report is one of 'at_done', 'at_decision'"),
        (b'{"policy": {"colour": "red"}}\n', "unknown policy 'colour'"),
        (b'{"policy": {}, "event": "submit"}\n', "a policy line has no other field"),
        (b'{"policy": {"precedence": ["stop"]}}\n', "missing: client_abort"),
        (b'{"policy": {"precedence": ["stop", "stop"]}}\n', "names 'stop' twice"),
        (b'{"policy": {"precedence": ["luck"]}}\n', "no finish reason"),
        (b'{"policy": {"precedence": 7}}\n', "policy precedence is"),
    ],
)
def test_a_file_that_is_not_well_formed(content, message, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    ran = CliRunner().invoke(main, ["replay", str(path)])
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert message in ran.stderr
    assert str(path) in ran.stderr


def test_a_line_that_would_fill_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(trace, "MAX_LINE", 100)
    stream = io.BytesIO(GOOD + b'{"event": "submit", "rid": "' + b"r" * 200 + b'"}\n')
    lines = trace.read(stream, "x")
    next(lines)
    with pytest.raises(TraceError, match="x:2: the line is longer than 100 bytes"):
        next(lines)


@pytest.mark.parametrize("path", ["/nowhere/at/all", str(Path(__file__).parent)])
def test_what_is_no_file_is_told(path):
    ran = CliRunner().invoke(main, ["replay", path])
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert path in ran.stderr
    assert "Traceback" not in ran.stderr


def test_blank_lines_at_the_end_and_a_byte_order_mark_are_taken():
    stream = io.BytesIO(b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n") + b"\n\n")
    assert [line.rid for line in trace.read(stream)] == ["r"]


@given(st.text(st.characters(exclude_categories=())))
def test_a_rid_is_any_text(rid):
    lines = [{"event": "submit", "rid": rid}, {"event": "abort", "rid": rid}]
    stream = io.StringIO()
    assert trace.write(lines, stream) == 2
    content = stream.getvalue().encode()
    assert [line.rid for line in trace.read(io.BytesIO(content))] == [rid, rid]
    ran = CliRunner().invoke(main, ["replay", "--json", "-"], input=content)
    assert ran.exit_code == 0, ran.output
    assert list(json.loads(ran.stdout)["requests"]) == [rid]
    shown = CliRunner().invoke(main, ["replay", "-"], input=content)
    assert shown.exit_code == 0, shown.output
    assert "\x1b" not in shown.stdout


@given(traces())
def test_what_is_written_reads_back(lines):
    events = lines[1:]
    stream = io.StringIO()
    trace.write(events, stream, Policy.from_mapping(lines[0]["policy"]))
    read = list(trace.read(io.BytesIO(stream.getvalue().encode())))
    assert read[0].policy == Policy.from_mapping(lines[0]["policy"])
    assert [line.to_json() for line in read[1:]] == events


def test_a_closed_pipe_is_no_traceback(tmp_path):
    path = tmp_path / "trace.jsonl"
    with path.open("w") as stream:
        trace.write(({"event": "submit", "rid": f"r{n}"} for n in range(20_000)), stream)
    command = f"{sys.executable} -m lifecycle replay --json {path} | head -1"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert ran.stderr == ""


def _many_lives(lives):
    for number in range(lives):
        rid = f"r{number}"
        for event in (
            "submit",
            "admit",
            "prefill_finished",
            "transfer_pending",
            "transfer_succeeded",
        ):
            yield {"event": event, "rid": rid}


def test_memory_does_not_grow_with_the_trace(monkeypatch):
    monkeypatch.setattr(replay, "ENDED_IN_MEMORY", 100)

    def peak(lives):
        run = replay.Replay()
        tracemalloc.start()
        for number, line in enumerate(_many_lives(lives), 1):
            run.feed(trace.parse(json.dumps(line), number))
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert sum(1 for _ in run.requests_json()) == lives
        return highest

    peak(500)
    assert peak(4_000) < 1.5 * peak(1_000)


@given(traces(max_size=60), st.sampled_from([0, 1, 3]))
def test_lives_that_were_put_away_behave_as_if_they_had_stayed(lines, kept):
    whole = replay.replay(lines)
    before = replay.ENDED_IN_MEMORY
    replay.ENDED_IN_MEMORY = kept
    try:
        assert replay.replay(lines) == whole
    finally:
        replay.ENDED_IN_MEMORY = before


def test_the_keys_of_earlier_lives_never_clash_with_a_rid():
    lines = [
        {"event": "submit", "rid": "r"},
        {"event": "abort", "rid": "r"},
        {"event": "submit", "rid": "r"},
        {"event": "submit", "rid": "r#1"},
    ]
    assert list(replay.replay(lines)["requests"]) == ["r##1", "r", "r#1"]


def test_a_page_in_quarantine_that_is_given_out_again_is_a_violation():
    lines = [
        {"event": "submit", "rid": "a"},
        {"event": "admit", "rid": "a", "pages": ["p", "q"]},
        {"event": "prefill_finished", "rid": "a"},
        {"event": "abort", "rid": "a"},
        {"event": "drain_timeout", "rid": "a"},
        {"event": "submit", "rid": "b"},
        {"event": "admit", "rid": "b", "pages": ["q"]},
    ]
    (broken,) = replay.replay(lines)["violations"]
    assert (broken["invariant"], broken["line"], broken["rid"]) == ("no_free_in_flight", 7, "b")
