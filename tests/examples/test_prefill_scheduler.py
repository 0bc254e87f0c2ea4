"""The example scheduler: clean on the library, at fault by hand in the known ways, repeatable by seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))  # it is a folder of scripts; the wheel does not carry it

import prefill_scheduler  # noqa: E402
from prefill.ledger import Ledger  # noqa: E402
from prefill.load import make_load  # noqa: E402
from prefill.run import AFTER, BEFORE, KINDS, LIFECYCLE, run  # noqa: E402
from prefill.witness import Witness  # noqa: E402

from lifecycle import WIRE, FinishReason, Outcome  # noqa: E402

REQUESTS, SEED = 150, 30


@pytest.fixture(scope="module")
def results():
    load = make_load(REQUESTS, SEED)
    return {kind: run(kind, load) for kind in KINDS}


def test_every_request_ends_whoever_decides(results):
    for result in results.values():
        assert len(result.witness.outcomes) == REQUESTS


def test_the_library_makes_no_fault(results):
    result = results[LIFECYCLE]
    assert {**result.faults(), **result.library_faults()} == dict.fromkeys(
        [*result.faults(), *result.library_faults()], 0
    )
    assert result.clean
    assert result.receiver.right_bytes > 10_000_000


def test_every_page_is_released_once_or_quarantined(results):
    ledger = results[LIFECYCLE].ledger
    assert ledger.released_once > 0
    assert ledger.quarantined > 0
    assert ledger.released_once + ledger.quarantined == ledger.handed_out
    assert results[LIFECYCLE].final_audit.stats.quarantined == 0


def test_the_load_meets_every_kind_of_end(results):
    told = results[LIFECYCLE].witness.by_reason
    assert set(told) == set(FinishReason) - {
        FinishReason.STOP,
        FinishReason.SHUTDOWN,
        FinishReason.SERVER_ABORT,
    }
    assert sum(results[LIFECYCLE].attempts.values()) > 0  # preemptions
    assert results[LIFECYCLE].late > 0


def test_before_the_fix_pages_are_freed_twice_and_kv_goes_to_the_wrong_client(results):
    result = results[BEFORE]
    faults = result.faults()
    assert faults["pages freed twice"] > 0
    assert faults["pages given to two requests at once"] > 0
    assert faults["wrong bytes at the decode worker"] > 0
    assert faults["clients told 200 with another's KV"] > 0
    assert faults["finish reasons replaced"] > 0
    assert not result.clean


def test_after_the_fix_aborts_are_lost_and_failed_is_taken_for_drained(results):
    result = results[AFTER]
    faults = result.faults()
    assert faults["pages freed twice"] == 0
    assert faults["pages given to two requests at once"] == 0
    assert faults["pages freed while a transfer read them"] > 0
    assert faults["pages reused while a transfer read them"] > 0
    assert faults["wrong bytes at the decode worker"] > 0
    assert faults["aborts lost (client told 200)"] > 0
    assert faults["finish reasons replaced"] > 0
    assert not result.clean


def test_the_fix_mends_what_it_was_made_for(results):
    due = [
        rid for rid in results[AFTER].witness.outcomes
        if results[AFTER].witness.due(rid) is FinishReason.GRAMMAR_ERROR
    ]  # fmt: skip
    assert due
    told = {results[AFTER].witness.outcomes[rid].reason for rid in due}
    assert told == {FinishReason.GRAMMAR_ERROR}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_makes_the_same_decisions(results, kind):
    again = run(kind, make_load(REQUESTS, SEED))
    assert again.decisions == results[kind].decisions
    assert vars(again.ledger) == vars(results[kind].ledger)


def test_another_seed_makes_another_load():
    assert make_load(50, 1) == make_load(50, 1)
    assert make_load(50, 1) != make_load(50, 2)


@pytest.mark.parametrize("seed", range(4, 8))
def test_the_library_makes_no_fault_on_other_loads(seed):
    result = run(LIFECYCLE, make_load(100, seed))
    assert result.clean, {**result.faults(), **result.library_faults()}


# The judges: a judge that sees nothing would make all of the above pass.


def test_the_ledger_tells_apart_what_can_go_wrong_with_a_page():
    ledger, ann, bob = Ledger(), ("ann", 0), ("bob", 0)
    ledger.took([1, 2, 3], ann)
    ledger.lent([2], ann)
    ledger.gave_back([1, 2], ann)
    assert (ledger.released_once, ledger.freed_in_flight) == (1, 1)
    ledger.gave_back([1], ann)
    assert ledger.freed_twice == 1
    ledger.took([2, 3], bob)
    assert (ledger.reused_in_flight, ledger.two_owners) == (1, 1)
    ledger.drained([2], ann)
    ledger.gave_back([2], bob)
    assert (ledger.released_once, ledger.handed_out, ledger.leaked) == (2, 5, 2)
    ledger.set_aside([3], ann)
    assert (ledger.quarantined, ledger.leaked) == (1, 1)


def outcome(rid, reason):
    wire = WIRE[reason]
    return Outcome(rid, 1, reason, wire.finish, wire.status, wire.message)


def test_the_witness_knows_what_was_due():
    witness = Witness()
    causes = [FinishReason.TRANSFER_FAILED, FinishReason.TIMEOUT, FinishReason.CLIENT_ABORT]
    for cause in causes:
        witness.saw("lost", cause)
        witness.saw("replaced", cause)
        witness.saw("right", cause)
    witness.report(outcome("lost", FinishReason.LENGTH))
    witness.report(outcome("replaced", FinishReason.TRANSFER_FAILED))
    witness.report(outcome("right", FinishReason.TIMEOUT))
    witness.saw("right", FinishReason.GRAMMAR_ERROR)  # after the report
    witness.report(outcome("fine", FinishReason.LENGTH))
    assert (witness.aborts_lost, witness.reasons_replaced, witness.told_twice) == (1, 1, 0)
    witness.report(outcome("fine", FinishReason.LENGTH))
    assert witness.told_twice == 1


# The command.


def test_the_tables_are_printed_within_100_columns(tmp_path, capsys):
    plot = tmp_path / "pool.svg"
    assert prefill_scheduler.main(["--requests", "40", "--seed", "1", "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    for text in ("What the clients were told", "pool.audit()", "what must be zero", "pool.svg"):
        assert text in out
    assert max(len(line.rstrip()) for line in out.splitlines() if "pool.svg" not in line) <= 100
    assert plot.read_text(encoding="utf-8").lstrip().startswith("<?xml")


def test_quiet_prints_the_last_table_only(capsys):
    assert prefill_scheduler.main(["--requests", "5", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "what must be zero" in out
    assert "What the clients were told" not in out


def test_a_fault_of_the_library_would_be_the_exit_code(monkeypatch, capsys):
    def faulty(kind, load, watch=None):
        return run(BEFORE if kind == LIFECYCLE else kind, load, watch)

    monkeypatch.setattr(prefill_scheduler, "run", faulty)
    assert prefill_scheduler.main(["--requests", str(REQUESTS), "--seed", str(SEED)]) == 1
    assert "what must be zero" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--requests", "0"], "a whole number of at least 1, not '0'"),
        (["--requests", "many"], "a whole number of at least 1, not 'many'"),
        (["--seed", "x"], "invalid int value: 'x'"),
        (["--plot", "pool.doc"], "a file that ends in .png, .svg, .pdf, not 'pool.doc'"),
        (["--plot", "nowhere/at/all.png"], "there is no folder 'nowhere/at'"),
        (["--what"], "unrecognized arguments: --what"),
    ],
)
def test_bad_input_is_told_without_a_traceback(arguments, says, capsys):
    with pytest.raises(SystemExit) as exit_:
        prefill_scheduler.main(arguments)
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err


def test_a_plot_that_cannot_be_written_is_told(tmp_path, capsys):
    folder = tmp_path / "taken.png"
    folder.mkdir()
    assert prefill_scheduler.main(["--requests", "5", "--plot", str(folder)]) == 2
    assert str(folder) in capsys.readouterr().err


def test_it_runs_as_a_script_from_any_folder(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "prefill_scheduler.py"), "--requests", "10", "--quiet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "what must be zero" in done.stdout
