"""`lifecycle check` finds what a replay finds, groups it, shows the least of it, and reads what is readable."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lifecycle.checklog.checker import KEPT_LINES, Checker
from lifecycle.checklog.excerpt import replayed, shortened
from lifecycle.cli import main
from lifecycle.commands.check import read
from lifecycle.observe import ObservedTable
from lifecycle.recorder import Recorder
from lifecycle.replay import replay
from lifecycle.trace import read as read_trace
from lifecycle.vocabulary import Event

SEED = [
    {"event": "submit", "rid": "r"},
    {"event": "grammar_ready", "rid": "r"},
    {"event": "admit", "rid": "r", "pages": 4},
    {"event": "forward_launched", "rid": "r", "step": 1},
    {"event": "forward_finished", "rid": "r", "step": 1},
    {"event": "prefill_finished", "rid": "r"},
    {"event": "abort", "rid": "r", "source": "client"},
    {"event": "transfer_posted", "rid": "r", "op": "c2"},
    {"event": "transfer_succeeded", "rid": "r"},
]


def log(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def named(lines, rid):
    return [{**line, "rid": rid} for line in lines]


def run(*arguments):
    result = CliRunner().invoke(main, ["check", *map(str, arguments)], catch_exceptions=False)
    return result.exit_code, result.output


def found(*arguments):
    code, output = run(*arguments, "--json")
    return code, json.loads(output)


def test_a_clean_log(tmp_path):
    code, result = found(log(tmp_path / "a.jsonl", SEED[:6] + SEED[8:]))
    assert (code, result["violations"], result["requests"], result["open"]) == (0, 0, 1, 0)


def test_groups_by_invariant_and_cell_with_the_shortest_excerpt(tmp_path):
    lines = []
    for number in range(30):
        extra = [{"event": "transfer_posted", "rid": "r", "op": f"x{number}"}] * (number % 3)
        lines += named(SEED[:3] + extra[:1] + SEED[3:], f"r{number}")
    lines += named([*SEED[:3], {"event": "admit", "pages": 1}], "twice")
    path = log(tmp_path / "a.jsonl", lines)
    code, result = found(path)
    assert code == 1
    groups = {(g["invariant"], g["state"], g["event"]): g for g in result["groups"]}
    assert {key: group["count"] for key, group in groups.items()} == {
        ("no_new_work_after_decision", "aborted", "transfer_posted"): 30,
        ("claim_count", "prefilling", "admit"): 1,
    }
    code, output = run(path, "--excerpts", tmp_path / "out")
    assert code == 1
    assert "no_new_work_after_decision  aborted + transfer_posted  30 times" in output
    excerpt = tmp_path / "out" / "no_new_work_after_decision-aborted-transfer_posted.jsonl"
    kept = [json.loads(line) for line in excerpt.read_text(encoding="utf-8").splitlines()]
    assert [line["event"] for line in kept[1:]] == [
        "submit",
        "admit",
        "prefill_finished",
        "abort",
        "transfer_posted",
    ]
    assert [each["event"] for each in replay(kept)["illegal"]] == ["transfer_posted"]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "policy", [{}, {"report": "at_decision"}, {"late": "strict"}, {"on_undrained": "release"}]
)
def test_it_finds_what_a_replay_finds(seed, policy):
    """Any events in any order, of several lives: the same counts, and excerpts that replay to the same end."""
    chance = random.Random(seed)
    words = [str(event) for event in Event]
    lines = []
    for _ in range(1500):
        line = {"event": chance.choice(words), "rid": f"r{chance.randrange(40)}", "t": 1.0}
        if line["event"] == "complete":
            line["reason"] = "stop"
        if line["event"] == "admit" and chance.random() < 0.3:
            line["pages"] = [f"p{chance.randrange(30)}"]
        if chance.random() < 0.02:
            line["incarnation"] = chance.randrange(1, 3)
        lines.append(line)
    trace = [{"policy": policy}, *lines]
    expected = replay(trace)
    checker = Checker()
    checker.feed("log", 1, [json.dumps(line) for line in trace])
    result = checker.result()
    assert result["damaged"] == 0, result["damage"]
    assert result["events"] == 1500
    assert result["unknown"] == expected["unknown"]
    illegal = sum(
        g["count"] for g in result["groups"] if not g["what"].startswith(("attempt", "page"))
    )
    assert illegal == len(expected["illegal"])
    cells = {(each["state"], each["event"]) for each in expected["illegal"]}
    wrong = {(g["state"], g["event"]) for g in result["groups"]}
    assert cells <= wrong
    for group in checker.groups.values():
        if group.whole and not group.what.startswith("page"):
            kept = shortened(group, checker.policy, checker.table)
            again = replayed(kept, checker.policy, checker.table)
            assert len(again.illegal) + len(again.violations) >= 1
            assert len(kept) <= len(group.excerpt)


def test_packed_logs_and_a_recorders_segments(tmp_path):
    lines = named(SEED, "r1")
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text))
    zstandard = pytest.importorskip("zstandard")
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(text))
    for name in ("a.jsonl.gz", "a.jsonl.zst"):
        assert found(tmp_path / name)[1]["events"] == 9
    with Recorder(tmp_path / "rec.jsonl", max_bytes=1000) as recorder:
        table = ObservedTable([recorder])
        for number in range(50):
            table.submit(f"r{number}")
            table.abort(f"r{number}")
            recorder.flush()
    code, result = found(tmp_path / "rec.jsonl")
    assert (code, result["events"], result["ended"], result["damaged"]) == (0, 100, 50, 0)


def test_a_log_that_was_cut_short_is_no_fault(tmp_path):
    path = tmp_path / "a.jsonl"
    log(path, SEED[:6] + SEED[8:])
    with path.open("a", encoding="utf-8") as stream:
        stream.write('{"event": "submit", "ri')
    code, result = found(path)
    assert (code, result["events"], result["damaged"], result["lost"]) == (0, 7, 1, 0)
    assert result["damage"] == [
        f'{path}:8: the last line was cut short: \'{{"event": "submit", "ri\''
    ]


def test_a_packed_log_that_was_cut_short(tmp_path):
    text = "".join(json.dumps(line) + "\n" for line in named(SEED, "r") * 400)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode())[:-200])
    _, result = found(path)
    assert result["events"] > 0
    assert any("ends or breaks in the middle" in each for each in result["damage"])


def test_lines_of_two_writers_that_ran_into_one_another(tmp_path):
    path = tmp_path / "a.jsonl"
    one, two = (json.dumps(line) for line in (SEED[0], {"event": "submit", "rid": "s"}))
    path.write_text(f"{one[:20]}{two}\n{one}{two[:9]}\n{json.dumps(SEED[2])}\n", encoding="utf-8")
    code, result = found(path)
    assert (code, result["events"], result["requests"], result["violations"]) == (2, 3, 2, 0)
    assert [each.split(": ")[0] for each in result["damage"]] == [f"{path}:1", f"{path}:2"]
    assert "1 whole event of it taken" in result["damage"][0]


def test_lines_that_cannot_be_read_are_told_and_the_rest_is_checked(tmp_path):
    path = tmp_path / "a.jsonl"
    good = [json.dumps(line) for line in SEED]
    bad = [
        "INFO: loading the model",
        '{"event": "nonsense", "rid": "r"}',
        '{"event": "abort"}',
        '{"event": "abort", "rid": 5}',
        '{"event": "abort", "rid": "r", "rid": "s"}',
        '{"event": "abort", "rid": "r", "t": 1e999}',
        '{"event": "abort", "rid": "r", "t": NaN}',
        '{"event": "abort", "rid": "r", "x": 1}',
        '{"event": "admit", "rid": "r", "pages": -1}',
        '{"event": "complete", "rid": "r"}',
        '["event", "rid"]',
        "5",
    ]
    text = "\n".join(line for pair in zip(good, [*bad, ""], strict=False) for line in pair)
    text += "\n" + "\n".join(bad[len(good) :])
    path.write_bytes(text.encode() + b'\n\xff\xfe{"event"}\n\n')
    code, result = found(path)
    assert code == 1  # the violation outweighs the damage
    assert (result["events"], result["lost"]) == (9, len(bad) + 1)
    lines = [int(each[len(str(path)) + 1 :].split(":")[0]) for each in result["damage"]]
    assert sorted(lines) == [2, 4, 6, 8, 10, 12, 14, 16, 18, 19, 20, 21, 22]


def test_a_line_that_never_ends_fills_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("lifecycle.checklog.source.MAX_LINE", 1 << 21)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * (5 << 20) + b"\n" + json.dumps(SEED[0]).encode() + b"\n")
    code, result = found(path)
    assert (code, result["events"]) == (2, 1)
    assert f"{path}:1: the line is longer than 2,097,152 bytes" in result["damage"][0]


def test_a_clock_that_jumps_back_is_told(tmp_path):
    lines = [
        {**line, "t": t} for line, t in zip(SEED[:6], (5.0, 6.0, 5.9, 2.0, 3.0, 4.0), strict=True)
    ]
    code, result = found(log(tmp_path / "a.jsonl", lines))
    assert (code, result["clock_jumps"]) == (0, 1)
    assert "a.jsonl:4: the clock jumps back by 4.000 s" in result["damage"][0]


def test_nothing_to_read_is_bad_input(tmp_path):
    (tmp_path / "other.log").write_text("INFO something else\n" * 3, encoding="utf-8")
    for arguments in (["no/such.jsonl"], [tmp_path], [tmp_path / "other.log"]):
        code, output = run(*arguments)
        assert code == 2, output
        assert output.startswith("lifecycle: ")
        assert "Traceback" not in output


def test_standard_input(tmp_path):
    path = log(tmp_path / "a.jsonl", SEED)
    with Path(path).open("rb") as stream:
        done = subprocess.run(
            [sys.executable, "-m", "lifecycle", "check", "-", "--json"],
            stdin=stream,
            capture_output=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"")
    assert json.loads(done.stdout)["events"] == 9


def test_memory_is_bounded_by_what_is_open_and_not_by_the_log():
    checker = Checker(keep_open=100, keep_done=50)
    for number in range(3000):
        texts = [json.dumps(line) for line in named(SEED[:2], f"never-ends-{number}")]
        texts += [json.dumps(line) for line in named(SEED, f"r{number}")]
        checker.feed("log", 1, texts)
    assert 99 <= checker.open <= 100
    assert checker.let_go + checker.open == 3000
    assert len(checker._open) <= 151
    assert len(checker.requests._newest) <= 151
    life = [json.dumps({"event": "submit", "rid": "long"}), json.dumps({**SEED[2], "rid": "long"})]
    for step in range(1, 200):
        life += [
            json.dumps({"event": event, "rid": "long", "step": step})
            for event in ("forward_launched", "forward_finished")
        ]
    checker.feed("log", 1, life)
    assert len(checker._open["long", 1].lines) == KEPT_LINES


def test_the_cases_are_read_as_a_replay_reads_them():
    for path in (Path(__file__).parents[1] / "cases").glob("*.jsonl"):
        with path.open("rb") as stream:
            expected = replay(read_trace(stream))
        checker = Checker()
        read(checker, str(path))
        assert checker.violations == len(expected["illegal"]) + len(expected["violations"]), path
        assert not checker.damaged
