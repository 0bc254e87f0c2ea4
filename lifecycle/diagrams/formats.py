"""Every format under its name, so that the command line, the docs and a notebook ask one function.

>>> text = diagram(PREFILL, "mermaid")
>>> text.splitlines()[0]
'flowchart LR'
"""

from __future__ import annotations

from ..policy import DEFAULT_POLICY, Policy
from ..prefill import PREFILL
from ..spec import Table
from ..vocabulary import Word
from .data import to_json
from .dot import dot
from .markdown import markdown
from .mermaid import mermaid
from .picture import Picture, PictureError, View
from .plantuml import plantuml
from .render import png, svg
from .views import picture


class Format(Word):
    """What a diagram can be written as."""

    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"
    PNG = "png"
    PLANTUML = "plantuml"
    SCXML = "scxml"
    XSTATE = "xstate"
    MARKDOWN = "markdown"
    JSON = "json"
    TRANSITIONS = "transitions"


MACHINES = (Format.SCXML, Format.XSTATE, Format.TRANSITIONS)
"""Formats that other programs execute. They hold every configuration, whatever the view."""

SUFFIXES = {
    ".mmd": Format.MERMAID,
    ".mermaid": Format.MERMAID,
    ".dot": Format.DOT,
    ".gv": Format.DOT,
    ".svg": Format.SVG,
    ".png": Format.PNG,
    ".puml": Format.PLANTUML,
    ".plantuml": Format.PLANTUML,
    ".scxml": Format.SCXML,
    ".md": Format.MARKDOWN,
    ".json": Format.JSON,
}
"""The format that the name of a file stands for."""


def diagram(
    table: Table = PREFILL,
    format: str = Format.MERMAID,  # noqa: A002  # what everybody calls it
    view: str = View.STATES,
    *,
    policy: Policy = DEFAULT_POLICY,
    theme: str = "auto",
    drawn: Picture | None = None,
) -> str | bytes:
    """The diagram of `table`; text, or bytes for ``png``. Stable from run to run.

    Args:
        table: any declared table.
        format: one of :class:`Format`.
        view: one of :class:`View`. The formats in :data:`MACHINES` are of the whole product.
        policy: the contract's open choices; the views but ``states`` show their consequences.
        theme: for svg and png: ``auto``, ``light`` or ``dark``.
        drawn: a picture made before (with a trace in it, say) instead of a fresh one.

    Raises:
        PictureError: an unknown format, view or theme, a name that cannot be drawn, Graphviz missing.
    """
    try:
        wanted = Format(format)
    except ValueError:
        msg = f"no format {format!r}; the formats are {', '.join(Format)}"
        raise PictureError(msg) from None
    made = picture(table, view, policy) if drawn is None else drawn
    if wanted in MACHINES:
        return _machine(wanted, table, policy)
    if wanted is Format.SVG:
        return svg(made, theme=theme)
    if wanted is Format.PNG:
        return png(made, theme=theme)
    writers = {
        Format.DOT: dot,
        Format.PLANTUML: plantuml,
        Format.MARKDOWN: markdown,
        Format.JSON: to_json,
        Format.MERMAID: mermaid,
    }
    return writers[wanted](made)


def _machine(wanted: Format, table: Table, policy: Policy) -> str:
    from .markup import markup
    from .scxml import scxml
    from .xstate import xstate

    writers = {Format.SCXML: scxml, Format.XSTATE: xstate, Format.TRANSITIONS: markup}
    return writers[wanted](table, policy)
