"""The code on the pages about watching runs, and prints what the pages say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def ran(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return text, done.stdout


@pytest.mark.parametrize("page", ["logs.md", "metrics.md", "shadow.md"])
def test_the_page_shows_what_its_code_prints(page):
    text, printed = ran(page)
    shown = "".join(re.findall(r"```text\n(.*?)```", text, re.DOTALL))
    assert printed == shown
