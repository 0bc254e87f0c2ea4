"""Coverage of behaviour: what is recorded is what happened, and this suite visits every cell."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lifecycle import PREFILL, IllegalEvent, Policy, RequestLifecycle, compile_table
from lifecycle.cli import main
from lifecycle.compile import LETTER_INDEX
from lifecycle.decode import DECODE
from lifecycle.errors import BadDetail
from lifecycle.testing import coverage
from lifecycle.testing.coverage import CannotRecord, Coverage, Scope, name_of, reachable, scope_of
from tests.product import follow, walk

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def plain_build():
    if type(RequestLifecycle.fire).__name__ != "function":
        pytest.skip("the compiled build cannot be watched")


@pytest.fixture
def recording(monkeypatch):
    """These tests record themselves, also where the whole run is recorded."""
    monkeypatch.setattr(Coverage, "_recording", None)


pytestmark = pytest.mark.usefixtures("recording")


@pytest.mark.parametrize("table", [PREFILL, DECODE], ids=lambda table: table.name)
@pytest.mark.parametrize(
    "policy",
    [Policy(), Policy(report="at_decision", on_undrained="hold")],
    ids=["default", "other"],
)
def test_each_event_is_counted_in_its_cell(table, policy):
    automaton = compile_table(table, policy)
    wrong = []
    with Coverage() as seen:
        for path, tries in walk(automaton):
            for letter, event, details in tries:
                request = follow(automaton, path)
                cell = (request._node.configuration, LETTER_INDEX[letter])
                cells = seen.cells.setdefault(scope_of(automaton), coverage.Counter())
                before, of_all = cells[cell], cells.total()
                with contextlib.suppress(IllegalEvent):
                    request.fire(event, **details)
                if (cells[cell], cells.total()) != (before + 1, of_all + 1):
                    wrong.append(name_of(cell))
    assert wrong == []
    visited = {cell for cell, times in seen.cells[scope_of(automaton)].items() if times}
    assert visited == reachable(automaton)  # the walk comes everywhere, and nowhere else
    assert seen.percent == 100
    assert seen.rows()[0].missing == ()


@pytest.mark.slow  # the test above proves it for the default policy
def test_the_whole_suite_visits_every_cell_under_every_policy(tmp_path):
    """A part of the suite does; so the suite does."""
    out = tmp_path / "seen.json"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_product.py",
         "--lifecycle-coverage", str(out), "--lifecycle-coverage-fail-under", "100"],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr
    seen = json.loads(out.read_text(encoding="utf-8"))
    held = [table for table in seen["tables"] if table["reachable"] is not None]
    assert {table["table"] for table in held} == {"prefill", "decode"}
    assert (
        len(held) == 2 * 12
    )  # every combination of the policies that decide which cells there are
    assert all(table["missing"] == [] for table in held)
    assert all(table["visited"] == table["reachable"] > 1_000 for table in held)


def test_a_cell_that_nothing_visits_is_told():
    with Coverage() as seen:
        RequestLifecycle("r").fire("admit")
    (row,) = seen.rows()
    assert row.visited == 1
    assert len(row.missing) == row.reachable - 1 > 1_500
    names = [name_of(cell) for cell in row.missing]
    assert "queued[none] x admit" not in names
    assert "queued[none] x abort(client_abort)" in names
    assert f"never: {names[0]}" in seen.text()
    assert f"... and {row.reachable - 9} more" in seen.text()
    assert all(f"- `{name}`" in seen.markdown() for name in names[:3])


def test_what_is_about_an_older_attempt_is_in_no_cell():
    with Coverage() as seen:
        request = RequestLifecycle("r")
        for event, details in (
            ("admit", {}),
            ("forward_launched", {"step": 1}),
            ("preempt", {}),
            ("admit", {}),
            ("forward_finished", {"step": 1}),  # of attempt 0
            ("forward_finished", {"step": 1, "attempt": 0}),  # late there
        ):
            request.fire(event, **details)
    (cells,) = seen.cells.values()
    assert cells.total() == 4
    assert seen.pairs["admit", "forward_finished"] == 1


def test_an_event_with_a_wrong_detail_is_in_no_cell_and_a_plain_one_counts_once():
    with Coverage() as seen:
        request = RequestLifecycle("r")
        request.fire("admit", attempt=0)  # which fires once more, inside
        with pytest.raises(BadDetail):
            request.fire("abort", source="nobody")
        with pytest.raises(BadDetail):
            request.fire("levitate")
    assert sum(cells.total() for cells in seen.cells.values()) == 1
    assert seen.pairs == {("submit", "admit"): 1}


def test_off_means_off():
    plain = RequestLifecycle.fire
    with Coverage():
        assert RequestLifecycle.fire is not plain
    assert RequestLifecycle.fire is plain
    with pytest.raises(ZeroDivisionError), Coverage():
        raise ZeroDivisionError
    assert RequestLifecycle.fire is plain
    with Coverage(), pytest.raises(CannotRecord, match="recorded already"), Coverage():
        pass
    assert RequestLifecycle.fire is plain


def test_only_so_many_requests_are_remembered(monkeypatch):
    monkeypatch.setattr(coverage, "REMEMBERED", 2)
    with Coverage() as seen:
        requests = [RequestLifecycle(str(n)) for n in range(3)]
        for request in requests:
            request.fire("admit")
        assert len(seen._last) == 2
        requests[2].fire("abort")
    assert seen.pairs["admit", "abort"] == 1
    assert not seen._last


def test_parts_of_several_processes_are_added():
    with Coverage() as seen:
        RequestLifecycle("r").fire("admit")
        RequestLifecycle("r", compile_table(DECODE, Policy(report="at_decision"))).fire("abort")
    total = Coverage()
    dumped = json.loads(json.dumps(seen.dump()))
    total.merge(dumped)
    total.merge(dumped)
    assert total.rows() == seen.rows()
    assert total.pairs == {pair: 2 * times for pair, times in seen.pairs.items()}
    assert [str(row.scope) for row in total.rows()] == [
        "decode, report=at_decision",
        "prefill, default policy",
    ]


def test_other_orders_of_reasons_are_counted_and_held_against_nothing():
    order = Policy(precedence=[str(reason) for reason in reversed(list(coverage.FinishReason))])
    with Coverage() as seen:
        RequestLifecycle("r", compile_table(PREFILL, order)).fire("admit")
    (row,) = seen.rows()
    assert row.scope == Scope("prefill", "", "", "", coverage.OTHER_ORDERS)
    assert (row.visited, row.reachable) == (1, None)
    assert seen.percent == 0


def test_the_command_writes_it(tmp_path):
    for name in ("seen.json", "seen.md"):
        out = tmp_path / name
        ran = CliRunner().invoke(
            main,
            [
                "fuzz",
                "lifecycle.testing.careful:Careful",
                "--budget",
                "0.5",
                "--coverage",
                str(out),
            ],
        )
        assert ran.exit_code == 0, ran.output
        assert "prefill, default policy:" in ran.output
        assert "pairs of consecutive events:" in ran.output
    seen = json.loads((tmp_path / "seen.json").read_text(encoding="utf-8"))
    assert seen["tables"][0]["cells"]["queued[none] x grammar_ready"] > 0
    text = (tmp_path / "seen.md").read_text(encoding="utf-8")
    assert "## Pairs of consecutive events" in text
    assert "| prefill, default policy |" in text
