"""A picture as PlantUML: states, frames, and a final state that is drawn as one.

Ids are ``n0``, ``n1``, ...; names are only ever texts. What PlantUML's own markup would read in them is written as
``<U+002A>``.
"""

from __future__ import annotations

from ..prefill import PREFILL
from ..spec import Table
from .dot import wrapped
from .picture import LIGHT, Edge, Look, Node, Picture, View
from .views import picture


def plantuml(source: Picture | Table = PREFILL, view: str = View.STATES) -> str:
    """PlantUML text of a picture, or of a table under `view`; stable from run to run.

    Raises:
        PictureError: there is no such view, or a name cannot be drawn.
    """
    drawn = source if isinstance(source, Picture) else picture(source, view)
    ids = drawn.ids()
    frames = {group.key: f"g{number}" for number, group in enumerate(drawn.groups)}
    lines = ["@startuml", "left to right direction", "hide empty description"]
    lines += _styles()
    lines.append(f"title {shown(drawn.title)}")
    lines += [_node(node, ids) for node in drawn.nodes if node.group is None]
    for group in drawn.groups:
        lines.append(f'state "{shown(group.title)}" as {frames[group.key]} {{')
        lines += ["  " + _node(node, ids) for node in drawn.nodes if node.group == group.key]
        lines.append("}")
    if drawn.start is not None:
        lines.append(f"[*] --> {ids[drawn.start]} : submit")
    for edge in drawn.edges:
        start, end = ({**ids, **frames}[key] for key in (edge.start, edge.end))
        text = _label(edge)
        lines.append(f"{start} -{_line(edge)}-> {end}" + (f" : {text}" if text else ""))
    lines += [f"{ids[node.key]} --> [*]" for node in drawn.ends]
    lines.append("@enduml")
    return "\n".join(lines) + "\n"


def shown(text: str) -> str:
    """`text` where PlantUML's markup is read."""
    made = ""
    for place, char in enumerate(text):
        twice = char in (text[:place][-1:], text[place + 1 : place + 2])  # // and __ are markup
        safe = char.isalnum() or char == " " or (char in ",.:()/_" and not twice)
        made += char if safe else f"<U+{ord(char):04X}>"
    return made


def _styles() -> list[str]:
    lines = ["skinparam defaultFontName Helvetica", "skinparam state {"]
    for look in Look:
        ink, name = LIGHT[look], f"look_{look}".replace("-", "_")
        lines += [
            f"  BackgroundColor<<{name}>> {ink.fill}",
            f"  BorderColor<<{name}>> {ink.line}",
            f"  FontColor<<{name}>> {ink.text}",
        ]
    return [*lines, "}", "hide stereotype"]


def _node(node: Node, ids: dict[str, str]) -> str:
    text = "\\n".join([shown(node.title), *(f"<size:10>{shown(note)}" for note in node.notes)])
    look = f"look_{node.look}".replace("-", "_")
    thick = " ##[bold]" if node.marked else ""
    return f'state "{text}" as {ids[node.key]} <<{look}>>{thick}'


def _line(edge: Edge) -> str:
    look = Look.WRONG if edge.wrong else edge.look
    style = ",dashed" if look in (Look.LATE, Look.WRONG) else ""
    thick = edge.marks or any(effect.endswith("_kv") for effect in edge.effects)
    return f"[{LIGHT[look].line}{style}{',thickness=3' if thick else ''}]"


def _label(edge: Edge) -> str:
    lines = [shown(line) for line in wrapped(edge.labels, 26)]
    lines += [f"<b>{shown(effect)}</b>" for effect in edge.effects]
    lines += [f"<i>{shown(mark)}</i>" for mark in edge.marks]
    lines += [f"<b>{shown(what)}</b>" for what in edge.wrong]
    return "\\n".join(lines)
