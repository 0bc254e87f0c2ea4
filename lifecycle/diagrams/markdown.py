"""A picture as a Markdown table: one row an arrow, for readers and tools that see no pictures."""

from __future__ import annotations

from ..prefill import PREFILL
from ..spec import Table
from .picture import Edge, Picture, View
from .views import picture

_OWN = set("\\`*_{}[]<>()#+-!|~&.\"'=:^$@")


def markdown(source: Picture | Table = PREFILL, view: str = View.STATES) -> str:
    """Markdown of a picture, or of a table under `view`; stable from run to run.

    Raises:
        PictureError: there is no such view, or a name cannot be drawn.
    """
    drawn = source if isinstance(source, Picture) else picture(source, view)
    names = {group.key: f"any of {shown(group.title)}" for group in drawn.groups}
    for node in drawn.nodes:
        names[node.key] = shown(node.title if node.group is None else _within(drawn, node.key))
    lines = [f"**{shown(drawn.title)}**", ""]
    lines += [shown(sentence) + "\n" for sentence in drawn.about]
    marked = drawn.marked
    lines.append("| from | event | to | effects |" + (" trace |" if marked else ""))
    lines.append("|---|---|---|---|" + ("---|" if marked else ""))
    if drawn.start is not None:
        start = f"| (start) | submit | {names[drawn.start]} | |"
        lines.append(start + (" |" if marked else ""))
    for edge in drawn.edges:
        what = ", ".join(shown(label) for label in edge.labels)
        cells = [names[edge.start], what, names[edge.end], ", ".join(map(shown, edge.effects))]
        if marked:
            cells.append(", ".join(_marks(edge)))
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        f"| {names[node.key]} | | (end) | |" + (" |" if marked else "") for node in drawn.ends
    ]
    return "\n".join(lines) + "\n"


def shown(text: str) -> str:
    """`text` inside a cell."""
    return "".join(
        f"&#{ord(char)};" if char in _OWN and char not in "_.()-:" else _kept(char) for char in text
    )


def _kept(char: str) -> str:
    return "\\_" if char == "_" else char


def _within(drawn: Picture, key: str) -> str:
    node = drawn.node(key)
    group = next(group.title for group in drawn.groups if group.key == node.group)
    notes = f" ({node.notes[0]})" if drawn.view is View.FULL else ""
    return f"{group}: {node.title}{notes}"


def _marks(edge: Edge) -> list[str]:
    return [shown(mark) for mark in edge.marks] + [f"**{shown(what)}**" for what in edge.wrong]
