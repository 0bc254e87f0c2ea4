"""What ``lifecycle replay`` and ``explain`` show a person."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lifecycle import PREFILL, Event
from lifecycle.cli import main
from lifecycle.decode import DECODE
from lifecycle.timeline import KEPT_FIRST, KEPT_LAST, KEPT_REQUESTS

CASE = str(Path(__file__).parent / "cases" / "abort-between-chunks.jsonl")


def shown(*lines, width="110", options=()):
    content = "".join(json.dumps(line) + "\n" for line in lines)
    ran = CliRunner(env={"COLUMNS": width}).invoke(main, ["replay", *options, "-"], input=content)
    assert ran.stderr == ""
    return ran


def life(rid, *events):
    return [{"event": event, "rid": rid} for event in ("submit", *events)]


def test_each_line_shows_event_state_claims_reason_and_effects():
    ran = shown(*life("r1", "admit", "prefill_finished", "abort", "transfer_drained"))
    assert ran.exit_code == 0
    head, _, *rows = ran.stdout.splitlines()
    assert head == "request r1  done  client_abort -> abort/499  kv released"
    assert rows[2].split() == ["3", "prefill_finished", "transferring", "op:kv,", "request"]
    assert rows[3].split() == [
        "4", "abort", "aborted", "op:kv,", "request", "client_abort", "cancel_transfer",
    ]  # fmt: skip
    assert rows[4].split()[-2:] == ["release_kv,", "report"]
    assert ran.stdout.splitlines()[-1].startswith("5 events, 1 request, 0 illegal, 0 violations")


def test_illegal_and_late_lines_are_marked():
    ran = shown(*life("r", "abort", "admit", "transfer_pending"))
    assert ran.exit_code == 1
    assert "illegal: no new work for a" in ran.stdout
    assert any(line.split()[-1] == "late" for line in ran.stdout.splitlines())
    assert "1 illegal" in ran.stdout


def test_a_broken_invariant_is_named():
    ran = shown(
        {"policy": {"on_undrained": "release"}},
        *life("r", "admit", "prefill_finished", "abort", "drain_timeout"),
    )
    assert ran.exit_code == 1
    assert "line 6: no_free_in_flight is broken for request r" in ran.stdout


def test_what_is_shown_is_bounded_and_says_what_is_left_out():
    events = KEPT_FIRST + KEPT_LAST + 100
    ran = shown(*life("r", *["transfer_pending"] * events))
    assert "... 101 events left out ..." in ran.stdout
    ran = shown(*(line for number in range(KEPT_REQUESTS * 3) for line in life(f"r{number}")))
    assert ran.stdout.count("request r") == KEPT_REQUESTS
    assert (
        f"{KEPT_REQUESTS * 3} requests ({KEPT_REQUESTS} shown; name others with --rid)"
        in ran.stdout
    )


def test_requests_with_trouble_are_shown_before_those_without():
    calm = [line for number in range(KEPT_REQUESTS * 2) for line in life(f"r{number}")]
    ran = shown(*calm, *life("trouble", "preempt"))
    assert "request trouble" in ran.stdout


def test_one_request_can_be_asked_for():
    ran = shown(*life("a"), *life("b"), options=("--rid", "b"))
    assert "request b" in ran.stdout
    assert "request a" not in ran.stdout


def test_events_for_nobody_are_shown():
    ran = shown({"event": "admit", "rid": "ghost"})
    assert "events for requests that the trace never submitted" in ran.stdout
    assert "1 unknown" in ran.stdout


@pytest.mark.parametrize("width", ["60", "100", "140"])
def test_no_word_of_the_columns_is_broken_at_any_width(width):
    ran = CliRunner(env={"COLUMNS": width}).invoke(main, ["replay", CASE])
    for word in ("forward_launched(step=1)", "prefilling", "client_abort", "cancel_transfer"):
        assert word in ran.stdout


@pytest.mark.parametrize("table", [PREFILL, DECODE], ids=lambda table: table.name)
@pytest.mark.parametrize("event", [str(event) for event in Event])
def test_every_cell_is_explained_with_its_why(table, event):
    for state in table.states:
        ran = CliRunner(env={"COLUMNS": "200"}).invoke(
            main, ["explain", str(state.name), event, "--table", table.name]
        )
        assert ran.exit_code == 0, ran.output
        for row in table.rows_of(state.name, event):
            assert row.why in ran.stdout


def test_a_table_of_ones_own_is_explained(tmp_path, monkeypatch):
    (tmp_path / "own_leg.py").write_text(
        "from lifecycle.decode import DECODE as LEG\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(main, ["explain", "queued", "admit", "--table", "own_leg:LEG"])
    assert "it becomes transferring" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "transfering", "abort"], "did you mean 'transferring'?"),
        (["explain", "done", "abrot"], "did you mean 'abort'?"),
        (["explain", "done", "abort", "--table", "other"], "no table 'other'"),
        (["explain", "done", "abort", "--table", "nowhere:T"], "No module named 'nowhere'"),
        (["explain", "done", "abort", "--table", "json:dumps"], "is no lifecycle.Table"),
        (["explode"], "No such command 'explode'"),
        (["replay"], "Missing argument 'TRACE'"),
    ],
)
def test_what_cannot_be_understood_exits_with_two(arguments, message):
    ran = CliRunner().invoke(main, arguments)
    assert ran.exit_code == 2
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
