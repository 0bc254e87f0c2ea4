"""What the README shows is true: its code runs and prints what it says, its diagram is the table's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from lifecycle import Event, State

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_embedding_frees_once_after_the_drain_and_reports_the_abort():
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    assert len(code.splitlines()) <= 20
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "cancel the transfer of 'r1' attempt 0",
        "free the pages of 'r1' attempt 0",
        "tell the client: abort 499 The client aborted the request.",
    ]


def test_generated_diagrams_have_not_drifted():
    ran = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "drift.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def test_it_counts_states_and_events_right():
    words = {6: "Six", 18: "eighteen"}
    assert f"{words[len(State)]} states, {words[len(Event)]} events" in README


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target
