"""The command `lifecycle diagram`: exit codes, traces that break, bad input; and the trail of a trace."""

from __future__ import annotations

import itertools
import json

import pytest
from click.testing import CliRunner

from lifecycle import PREFILL, TraceError
from lifecycle.cli import main
from lifecycle.diagrams import PictureError, follow, picture
from lifecycle.diagrams.trail import trail

GOOD = [
    {"event": "submit", "rid": "r1"},
    {"event": "admit", "rid": "r1", "pages": 4},
    {"event": "prefill_finished", "rid": "r1"},
    {"event": "transfer_succeeded", "rid": "r1"},
]
ILLEGAL = [*GOOD, {"event": "admit", "rid": "r1", "pages": 4}]
BROKEN = [
    {"policy": {"on_undrained": "release"}},
    *GOOD[:3],
    {"event": "abort", "rid": "r1"},
    {"event": "drain_timeout", "rid": "r1"},
]


def run(*arguments, given=None):
    return CliRunner().invoke(main, ["diagram", *arguments], input=given)


def written(tmp_path, lines):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def drawn_json(tmp_path, lines, *arguments):
    ran = run("--format", "json", "--highlight", written(tmp_path, lines), *arguments)
    return ran.exit_code, json.loads(ran.stdout)


def test_a_clean_trace_is_marked_and_exits_with_0(tmp_path):
    code, read = drawn_json(tmp_path, GOOD)
    assert code == 0
    marks = {(edge["from"], edge["to"]): edge["marks"] for edge in read["edges"] if edge["marks"]}
    assert marks == {
        ("queued", "prefilling"): ["line 2"],
        ("prefilling", "transferring"): ["line 3"],
        ("transferring", "done"): ["line 4"],
    }
    marked = {node["key"] for node in read["nodes"] if node["marked"]}
    assert marked == {"queued", "prefilling", "transferring", "done"}


@pytest.mark.parametrize(
    ("lines", "said", "line"),
    [(ILLEGAL, "illegal: admit", "line 5"), (BROKEN, "breaks no_free_in_flight", "line 6")],
    ids=["illegal", "invariant"],
)
def test_a_trace_that_goes_wrong_is_drawn_and_exits_with_1(tmp_path, lines, said, line):
    code, read = drawn_json(tmp_path, lines)
    assert code == 1
    wrong = [edge for edge in read["edges"] if edge["wrong"]]
    assert [(edge["wrong"], edge["marks"]) for edge in wrong] == [([said], [line])]


def test_a_trace_may_come_from_standard_input():
    given = "".join(json.dumps(line) + "\n" for line in GOOD)
    ran = run("--highlight", "-", given=given)
    assert ran.exit_code == 0
    assert "line 4" in ran.stdout


def test_of_several_requests_one_is_named(tmp_path):
    lines = [*GOOD, {"event": "submit", "rid": "r2"}]
    path = written(tmp_path, lines)
    ran = run("--highlight", path)
    assert ran.exit_code == 2
    assert "2 requests (r1, r2); name one with --rid" in ran.stderr
    code, read = drawn_json(tmp_path, lines, "--rid", "r2")
    assert code == 0
    assert [node["key"] for node in read["nodes"] if node["marked"]] == ["queued"]
    assert "does not speak of request 'r3'" in run("--highlight", path, "--rid", "r3").stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "bmp"], "no format 'bmp'"),
        (["--view", "sideways"], "no view 'sideways'"),
        (["--table", "nowhere"], "no table 'nowhere'"),
        (["--rid", "r1"], "give a trace"),
        (["--policy", "report"], "--policy takes NAME=CHOICE"),
        (["--policy", "report=soon"], "policy report is one of"),
        (["--policy", "report=at_done", "--highlight", "-"], "a trace brings its own policy"),
        (["--format", "scxml", "--view", "states"], "scxml is the whole automaton"),
        (["--highlight", "no such file"], "no such file: "),
        (["--out", "no such folder/x.mmd"], "no such folder/x.mmd: "),
        (["--view", "reasons", "--highlight", "-"], "cannot be followed through the view reasons"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_bad_input_is_told_in_one_message_and_exits_with_2(arguments, said):
    ran = run(*arguments, given="".join(json.dumps(line) + "\n" for line in GOOD))
    assert ran.exit_code == 2, ran.output
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_a_trace_that_cannot_be_read_names_file_and_line_and_writes_nothing(tmp_path):
    path = written(tmp_path, [*GOOD, {"event": "explode", "rid": "r1"}])
    out = tmp_path / "out.mmd"
    ran = run("--highlight", path, "--out", str(out))
    assert ran.exit_code == 2
    assert f"{path}:5: 'event' must be one of" in ran.stderr
    assert not out.exists()


def test_the_name_of_the_file_chooses_the_format(tmp_path):
    for name, begins in (("a.mmd", "flowchart"), ("a.gv", "digraph"), ("a.puml", "@startuml")):
        out = tmp_path / name
        assert run("--out", str(out)).exit_code == 0
        assert out.read_text().startswith(begins)


# The trail.


def test_the_trail_says_where_the_request_stood_before_and_after_each_event():
    hops, policy = trail(BROKEN)
    assert policy.on_undrained == "release"
    assert [(hop.line, hop.event, hop.after.state) for hop in hops] == [
        (2, "submit", "queued"),
        (3, "admit", "prefilling"),
        (4, "prefill_finished", "transferring"),
        (5, "abort", "aborted"),
        (6, "drain_timeout", "done"),
    ]
    assert hops[0].before is None
    assert all(one.after == two.before for one, two in itertools.pairwise(hops))
    assert [hop.wrong for hop in hops] == [(), (), (), (), ("breaks no_free_in_flight",)]


def test_an_illegal_event_leaves_the_trail_where_it_was():
    hops, _ = trail(ILLEGAL)
    assert hops[-1].outcome == "illegal"
    assert hops[-1].before == hops[-1].after


@pytest.mark.parametrize("view", ["states", "claims", "full"])
def test_every_move_of_a_trace_finds_its_arrow(view):
    drawn = picture(PREFILL, view)
    followed = follow(drawn, GOOD)
    assert len(followed.edges) == len(drawn.edges)
    marks = [mark for edge in followed.edges for mark in edge.marks]
    assert sorted(marks) == ["line 2", "line 3", "line 4"]


def test_a_trail_refuses_what_it_cannot_follow():
    with pytest.raises(PictureError, match="speaks of 0 requests"):
        trail([{"policy": {}}])
    with pytest.raises(TraceError, match=":2: "):
        trail([GOOD[0], {"event": "admit"}])


def test_the_last_claim_takes_the_arrow_that_stands_for_it():
    lines = [
        *GOOD[:3],
        {"event": "abort", "rid": "r1"},
        {"event": "transfer_drained", "rid": "r1"},
    ]
    drawn = picture(PREFILL)
    followed = follow(drawn, lines)
    assert len(followed.edges) == len(drawn.edges)
    (last,) = [edge for edge in followed.edges if "line 5" in edge.marks]
    assert (last.start, last.end) == ("aborted", "done")
    assert "last claim dropped" in last.labels
