"""Every public case, and every reading of the contract, through the code of ``lifecycle replay``."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lifecycle.cli import main
from lifecycle.vocabulary import Invariant

HERE = Path(__file__).parent
CASES = sorted(HERE.glob("cases/*.jsonl"))


def _rulings():
    spec = importlib.util.spec_from_file_location("ruling_traces", HERE / "ruling_traces.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RULINGS


def agrees(result, expected):
    """Every key that the expectation gives, and the illegal events in order."""
    assert set(result["requests"]) == set(expected["requests"])
    for rid, wanted in expected["requests"].items():
        got = {key: result["requests"][rid][key] for key in wanted}
        assert got == wanted, rid
    found = [[entry["line"], entry["event"]] for entry in result["illegal"]]
    assert found == [list(entry) for entry in expected["illegal"]]


def test_there_are_cases():
    assert len(CASES) >= 37


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path):
    expected = json.loads(path.with_suffix(".expect.json").read_text(encoding="utf-8"))
    ran = CliRunner().invoke(main, ["replay", "--json", str(path)])
    agrees(json.loads(ran.stdout), expected)
    assert json.loads(ran.stdout)["violations"] == []
    assert ran.exit_code == (1 if expected["illegal"] else 0)
    assert set(expected["invariants"]) <= {str(invariant) for invariant in Invariant}


def test_the_installed_command_prints_the_same():
    path = HERE / "cases" / "rid-used-again.jsonl"
    command = Path(sys.executable).with_name("lifecycle")
    ran = subprocess.run(
        [str(command), "replay", str(path), "--json"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert list(json.loads(ran.stdout)) == ["requests", "illegal", "unknown", "violations"]
    assert list(json.loads(ran.stdout)["requests"]) == ["r#1", "r"]


@pytest.mark.parametrize(("name", "lines", "expected"), _rulings(), ids=[r[0] for r in _rulings()])
def test_ruling(name, lines, expected, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    ran = CliRunner().invoke(main, ["replay", "--json", str(path)])
    result = json.loads(ran.stdout)
    for rid, wanted in expected.get("requests", {}).items():
        got = {key: result["requests"][rid][key] for key in wanted}
        assert got == wanted, rid
    if "illegal" in expected:
        found = [[entry["line"], entry["event"]] for entry in result["illegal"]]
        assert found == [list(entry)[:2] for entry in expected["illegal"]]
    if "violations" in expected:
        assert [each["invariant"] for each in result["violations"]] == expected["violations"]
    if "unknown" in expected:
        assert result["unknown"] == expected["unknown"]
    assert ran.exit_code == (1 if result["illegal"] or result["violations"] else 0)
