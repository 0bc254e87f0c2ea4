"""A picture as Mermaid text, which code hosts and notebooks draw.

It is a flowchart rather than a ``stateDiagram``: only a flowchart can colour its arrows, and its texts stand in
quotes, so that a state may be called ``end`` or hold any character. Ids are ``n0``, ``n1``, ...; names are only
ever texts. A test lets mermaid.js itself draw every view and reads the names back.
"""

from __future__ import annotations

import string

from ..prefill import PREFILL
from ..spec import Table
from .dot import wrapped
from .picture import DARK, LIGHT, Edge, Ink, Look, Node, Picture, View
from .views import picture

# What Mermaid would read as its own (quotes, entities, HTML, Markdown) goes in as a number.
_OWN = set("\"#&;<>`*~|\\[]{}()$@%:=-+'")
_SIMPLE = set(string.ascii_letters + string.digits + " .,:_")


def mermaid(
    source: Picture | Table = PREFILL, view: str = View.STATES, *, dark: bool = False
) -> str:
    """Mermaid text of a picture, or of a table under `view`; stable from run to run.

    Raises:
        PictureError: there is no such view, or a name cannot be drawn.
    """
    drawn = source if isinstance(source, Picture) else picture(source, view)
    inks = DARK if dark else LIGHT
    ids = drawn.ids()
    frames = {group.key: f"g{number}" for number, group in enumerate(drawn.groups)}
    lines = ["flowchart LR"]
    if _SIMPLE.issuperset(drawn.title):  # nothing can be escaped there
        lines.append(f"    accTitle: {drawn.title}")
    if drawn.start is not None:
        lines.append('    start@{ shape: f-circ, label: "the beginning" }')
    lines += [f"    {_node(node, ids)}" for node in drawn.nodes if node.group is None]
    for group in drawn.groups:
        lines.append(f'    subgraph {frames[group.key]}["{shown(group.title)}"]')
        lines += [f"        {_node(node, ids)}" for node in drawn.nodes if node.group == group.key]
        lines.append("    end")
    numbers: dict[tuple[Look, bool], list[int]] = {}
    count = 0
    if drawn.start is not None:
        lines.append(f"    start -->|submit| {ids[drawn.start]}")
        count = 1
    for number, edge in enumerate(drawn.edges, count):
        arrow = "-.->" if edge.look is Look.LATE or edge.wrong else "-->"
        text = _label(edge)
        said = f'|"{text}"|' if text else ""
        start, end = ({**ids, **frames}[key] for key in (edge.start, edge.end))
        lines.append(f"    {start} {arrow}{said} {end}")
        thick = bool(edge.marks) or any(effect.endswith("_kv") for effect in edge.effects)
        numbers.setdefault((Look.WRONG if edge.wrong else edge.look, thick), []).append(number)
    lines += _styles(drawn, ids, inks)
    for look, thick in sorted(numbers, key=lambda key: (list(Look).index(key[0]), key[1])):
        ink, of = inks[look], ",".join(map(str, numbers[look, thick]))
        width = ",stroke-width:3px" if thick else ""  # a second linkStyle would replace the first
        lines.append(f"    linkStyle {of} stroke:{ink.line},color:{ink.line}{width}")
    return "\n".join(lines) + "\n"


def shown(text: str) -> str:
    """`text` inside a quoted Mermaid string."""
    return "".join(f"#{ord(char)};" if char in _OWN else char for char in text)


def ident(look: Look) -> str:
    """The name of a look as a style class; ``end`` alone would be a keyword."""
    return str(look).replace("-", "_")


def _node(node: Node, ids: dict[str, str]) -> str:
    text = "<br>".join(
        [f"<b>{shown(node.title)}</b>", *(f"<small>{shown(note)}</small>" for note in node.notes)]
    )
    # Mermaid's double circle grows with its text; a final state is a box with a double frame instead.
    return f'{ids[node.key]}[["{text}"]]' if node.terminal else f'{ids[node.key]}("{text}")'


def _label(edge: Edge) -> str:
    lines = [shown(line) for line in wrapped(edge.labels, 20)]
    lines += [f"<b>{shown(effect)}</b>" for effect in edge.effects]
    lines += [f"<i>{shown(mark)}</i>" for mark in edge.marks]
    lines += [f"<b>{shown(what)}</b>" for what in edge.wrong]
    return "<br>".join(lines)


def _styles(drawn: Picture, ids: dict[str, str], inks: dict[Look, Ink]) -> list[str]:
    lines = [
        f"    style g{number} fill:transparent,stroke:{inks[group.look].line},color:{inks[group.look].line}"
        for number, group in enumerate(drawn.groups)
    ]
    for look in Look:
        those = [ids[node.key] for node in drawn.nodes if node.look is look]
        if those:
            ink = inks[look]
            style = f"fill:{ink.fill},stroke:{ink.line},color:{ink.text},stroke-width:1.5px"
            lines.append(f"    classDef look_{ident(look)} {style}")
            lines.append(f"    class {','.join(those)} look_{ident(look)}")
    marked = [ids[node.key] for node in drawn.nodes if node.marked]
    if marked:
        lines.append("    classDef look_marked stroke-width:4px")
        lines.append(f"    class {','.join(marked)} look_marked")
    if drawn.start is not None:
        ink = inks[Look.END]
        lines.append(f"    style start fill:{ink.line},stroke:{ink.line}")
    return lines
