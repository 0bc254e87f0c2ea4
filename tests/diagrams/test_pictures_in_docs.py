"""The committed pictures are those of today's tables, and what the page about them shows runs."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import attrs
import pytest

from lifecycle.diagrams.picture import Edge, Look
from lifecycle.diagrams.render import can_render
from lifecycle.diagrams.views import picture

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "diagrams.md"


@pytest.fixture(scope="module")
def drift() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drift", ROOT / "scripts" / "drift.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_picture_is_stale_once_its_table_says_more_or_somebody_edits_it(drift):
    for name, (table, view) in drift.PICTURES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        shown = picture(drift.TABLES[table], view)
        assert drift.is_current(text, shown)
        start, end = shown.nodes[0].key, shown.nodes[-1].key
        more = Edge(start, end, ("one_more",), Look.PLAIN)
        assert not drift.is_current(text, attrs.evolve(shown, edges=(*shown.edges, more)))
        assert not drift.is_current(text.replace("submit", "sbumit", 1), shown)
        assert not drift.is_current(text.rpartition("<!-- sealed")[0], shown)
        assert not drift.is_current("", shown)


def test_a_missing_picture_is_named_and_drawn(drift, monkeypatch, tmp_path):
    if not can_render():
        pytest.skip("Graphviz is not installed")
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(drift, "ROOT", tmp_path)
    assert drift.pictures(check=True) == list(drift.PICTURES)
    assert not (tmp_path / "docs" / "diagrams").exists()
    assert drift.pictures(check=False) == list(drift.PICTURES)
    assert drift.pictures(check=True) == []


def test_the_page_shows_every_picture(drift):
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert [f"docs/{name}" for name in shown] == list(drift.PICTURES)


def test_the_page_s_code_runs(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    assert ran.stdout.startswith("flowchart")
    assert re.search(r"^\d+ boxes, \d+ arrows$", ran.stdout, re.MULTILINE)


def test_the_page_s_commands_run(tmp_path):
    if not can_render():
        pytest.skip("Graphviz is not installed")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    commands = re.findall(r"^\$ lifecycle (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert commands
    for command in commands:
        ran = subprocess.run(
            [sys.executable, "-m", "lifecycle", *shlex.split(command)],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": os.environ.get("PATH", "")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, (command, ran.stderr)
        out = re.search(r"--out (\S+)", command)
        assert (tmp_path / out[1]).stat().st_size > 500 if out else "flowchart" in ran.stdout
