"""Writes what is generated from the tables into the files that show it, or says that they have drifted.

python scripts/drift.py           rewrite
python scripts/drift.py --check   exit 1 if a file differs from what would be written

Graphviz lays out the pictures in docs/diagrams, and two versions of it place things differently. So a picture
is compared by two digests that it carries: of the DOT text that it was drawn from, and of its own text, which
nobody is to edit. The check needs no Graphviz; to rewrite a picture that has drifted does.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

from lifecycle.decode import DECODE
from lifecycle.diagrams import Picture, PictureError, View, mermaid, picture
from lifecycle.diagrams.render import digest, svg
from lifecycle.prefill import PREFILL

ROOT = Path(__file__).resolve().parent.parent
TABLES = {table.name: table for table in (PREFILL, DECODE)}
BLOCK = re.compile(
    r"(?P<open><!-- diagram: (?P<table>\w+) -->\n```mermaid\n).*?(?P<close>```\n<!-- /diagram -->)",
    re.DOTALL,
)
FILES = ("README.md",)
PICTURES = {
    f"docs/diagrams/{name}-{view}.svg": (name, view)
    for name in TABLES
    for view in (View.STATES, View.CLAIMS)
}


def drawn(text: str) -> str:
    """`text` with every diagram block filled in from its table."""
    return BLOCK.sub(lambda m: m["open"] + mermaid(TABLES[m["table"]]) + m["close"], text)


def sealed(text: str) -> str:
    """`text` of an SVG file, and a last comment with a digest of it."""
    return f"{text.rstrip()}\n<!-- sealed {hashlib.sha256(text.rstrip().encode()).hexdigest()[:16]} -->\n"


def is_current(text: str, shown: Picture) -> bool:
    """Whether `text` is an SVG file of `shown` as it is drawn today, and as Graphviz left it."""
    head = text.partition("\n")[0]
    body = text.rpartition("<!-- sealed ")[0]
    return head.endswith(f"drawn from {digest(shown)} -->") and text == sealed(body)


def pages(check: bool) -> list[str]:
    """The pages that have drifted; they are rewritten, but for a check."""
    drifted = []
    for name in FILES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        if drawn(text) != text:
            drifted.append(name)
            if not check:
                path.write_text(drawn(text), encoding="utf-8")
    return drifted


def pictures(check: bool) -> list[str]:
    """The pictures that have drifted or are not there; they are drawn anew, but for a check.

    Raises:
        PictureError: one is to be drawn, and Graphviz is missing.
    """
    drifted = []
    for name, (table, view) in PICTURES.items():
        path, shown = ROOT / name, picture(TABLES[table], view)
        if not path.exists() or not is_current(path.read_text(encoding="utf-8"), shown):
            drifted.append(name)
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(sealed(svg(shown)), encoding="utf-8")
    return drifted


def main() -> int:
    """Rewrite, or check."""
    check = "--check" in sys.argv[1:]
    try:
        drifted = pages(check) + pictures(check)
    except PictureError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for name in drifted:
        sys.stderr.write(f"{name}: {'has drifted from its table' if check else 'rewritten'}\n")
    return 1 if check and drifted else 0


if __name__ == "__main__":
    sys.exit(main())
