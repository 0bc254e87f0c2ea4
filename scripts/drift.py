"""Writes what is generated from the tables into the files that show it, or says that they have drifted.

python scripts/drift.py           rewrite
python scripts/drift.py --check   exit 1 if a file differs from what would be written
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lifecycle.decode import DECODE
from lifecycle.diagrams.mermaid import mermaid
from lifecycle.prefill import PREFILL

ROOT = Path(__file__).resolve().parent.parent
TABLES = {table.name: table for table in (PREFILL, DECODE)}
BLOCK = re.compile(
    r"(?P<open><!-- diagram: (?P<table>\w+) -->\n```mermaid\n).*?(?P<close>```\n<!-- /diagram -->)",
    re.DOTALL,
)
FILES = ("README.md",)


def drawn(text: str) -> str:
    """`text` with every diagram block filled in from its table."""
    return BLOCK.sub(lambda m: m["open"] + mermaid(TABLES[m["table"]]) + m["close"], text)


def main() -> int:
    """Rewrite, or check."""
    check = "--check" in sys.argv[1:]
    drifted = []
    for name in FILES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        if drawn(text) != text:
            drifted.append(name)
            if not check:
                path.write_text(drawn(text), encoding="utf-8")
    for name in drifted:
        sys.stderr.write(f"{name}: {'has drifted from its table' if check else 'rewritten'}\n")
    return 1 if check and drifted else 0


if __name__ == "__main__":
    sys.exit(main())
