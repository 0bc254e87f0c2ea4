"""The code in the docs runs, and shows what the text says that it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_scheduler_that_forgets_one_thing_is_caught():
    text = (DOCS / "testing.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    first = ran.stdout.splitlines()[0]
    assert re.match(r"(stream_order|no_free_in_flight) is broken for request 'r1'", first), first


def test_links_between_pages_lead_somewhere():
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page.name, target)
