"""A picture as DOT, the language of Graphviz.

The nodes of the path to a good end stand in one line; the others stand below. Every node, edge and frame carries a
``class`` with its look, which Graphviz writes into SVG, so that :mod:`lifecycle.diagrams.render` can give one file
the colours of a light and of a dark page.
"""

from __future__ import annotations

import itertools
from html import escape

from ..prefill import PREFILL
from ..spec import Table
from .picture import DARK, LIGHT, Edge, Ink, Look, Node, Picture, View
from .views import picture

FONT = "Helvetica,Arial,sans-serif"


def dot(source: Picture | Table = PREFILL, view: str = View.STATES, *, dark: bool = False) -> str:
    """DOT text of a picture, or of a table under `view`; stable from run to run.

    Raises:
        PictureError: there is no such view, or a name cannot be drawn.
    """
    drawn = source if isinstance(source, Picture) else picture(source, view)
    inks = DARK if dark else LIGHT
    return "\n".join(_Writer(drawn, inks).lines()) + "\n"


def quoted(text: str) -> str:
    """`text` as a DOT string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _Writer:
    def __init__(self, drawn: Picture, inks: dict[Look, Ink]) -> None:
        self.picture, self.inks = drawn, inks
        self.ids = drawn.ids()
        self.small = drawn.view in (View.CLAIMS, View.FULL)

    def lines(self) -> list[str]:
        drawn = self.picture
        apart, ranks = (0.3, 0.5) if self.small else (0.4, 0.3)
        lines = [
            "digraph lifecycle {",
            (
                f"  graph [rankdir=LR, bgcolor=transparent, fontname={quoted(FONT)}, fontsize=11,"
                f" compound=true, newrank=true, nodesep={apart}, ranksep={ranks},"
                f" tooltip={quoted(drawn.title)}];"
            ),
            (
                f'  node [shape=box, style="rounded,filled", penwidth=1.4, margin="0.16,0.08",'
                f" fontname={quoted(FONT)}, fontsize=13];"
            ),
            f"  edge [fontname={quoted(FONT)}, fontsize=11, penwidth=1.4, arrowsize=0.7];",
        ]
        if drawn.start is not None:
            ink = self.inks[Look.END]
            lines.append(
                f'  start [shape=circle, label="", width=0.18, height=0.18, style=filled, class="look-end dot",'
                f' color="{ink.line}", fillcolor="{ink.line}", tooltip="the beginning"];'
            )
        lines += self._nodes()
        if drawn.start is not None:
            plain = self.inks[Look.PLAIN]
            lines.append(
                f'  start -> {self.ids[drawn.start]} [label=" submit ", class="look-plain", color="{plain.line}",'
                f' fontcolor="{plain.text}", weight=20];'
            )
        lines += [self._edge(edge) for edge in drawn.edges]
        ends = [self.ids[node.key] for node in drawn.ends if node.group is not None]
        if len(ends) > 1 and drawn.view is View.CLAIMS:
            lines.append(f"  {{ rank=same; {'; '.join(ends)}; }}")
        if drawn.view is View.REASONS:
            lines += self._ladder()
        lines.append("}")
        return lines

    def _nodes(self) -> list[str]:
        lines = []
        grouped: dict[str, list[Node]] = {group.key: [] for group in self.picture.groups}
        for node in self.picture.nodes:
            if node.group is None:
                lines.append("  " + self._node(node))
            else:
                grouped[node.group].append(node)
        for number, group in enumerate(self.picture.groups):
            ink = self.inks[group.look]
            title = f"<b>{escape(group.title)}</b>"
            if group.note:
                title += f'  <font point-size="9">{escape(group.note)}</font>'
            lines += [
                f"  subgraph cluster_{number} {{",
                f'    label=<{title}>; labeljust=l; style="rounded"; class="look-{group.look}";',
                f'    color="{ink.line}"; fontcolor="{ink.text}"; penwidth=0.8; margin=12;',
            ]
            lines += ["    " + self._node(node) for node in grouped[group.key]]
            lines.append("  }")
        return lines

    def _node(self, node: Node) -> str:
        ink = self.inks[node.look]
        title = f"<b>{escape(node.title)}</b>"
        small = "".join(f'<br/><font point-size="9.5">{escape(note)}</font>' for note in node.notes)
        extra = ', peripheries=2, style="rounded,filled"' if node.terminal else ""
        if node.marked:
            extra += ", penwidth=3.2"
        if node.key in self.picture.path:
            extra += ', group="path"'
        faded = " faded" if self.picture.marked and not node.marked else ""
        return (
            f'{self.ids[node.key]} [label=<{title}{small}>, class="look-{node.look}{faded}",'
            f' color="{ink.line}", fillcolor="{ink.fill}", fontcolor="{ink.text}",'
            f" tooltip={quoted(node.title)}{extra}];"
        )

    def _edge(self, edge: Edge) -> str:
        look = Look.WRONG if edge.wrong else edge.look
        ink = self.inks[look]
        text = _label(edge, self.inks, 26 if self.small else 18)
        classes = f"look-{look}" + (" faded" if self.picture.marked and not edge.marks else "")
        start, extra = self._end_of(edge.start, "ltail")
        end, extra_end = self._end_of(edge.end, "lhead")
        extra += extra_end
        if edge.aside:
            extra += ", constraint=false"
        elif self._on_path(edge):
            extra += ", weight=30"
        elif self.picture.start in (edge.end, edge.start):
            extra += ", weight=4"
        if look is Look.LATE:
            extra += ", style=dotted"
        if edge.wrong:
            extra += ", style=dashed"
        if edge.marks:
            extra += ", penwidth=3.2"
        elif any(effect.endswith("_kv") for effect in edge.effects):
            extra += ", penwidth=2.4"
        return (
            f'  {start} -> {end} [label=<{text}>, class="{classes}",'
            f' color="{ink.line}", fontcolor="{ink.text}"{extra}];'
        )

    def _end_of(self, key: str, attribute: str) -> tuple[str, str]:
        """The node at one end of an edge; for a frame, one of its nodes, and the frame to stop at."""
        if key in self.ids:
            return self.ids[key], ""
        number = [group.key for group in self.picture.groups].index(key)
        members = [node for node in self.picture.nodes if node.group == key]
        return self.ids[members[len(members) // 2].key], f', {attribute}="cluster_{number}"'

    def _on_path(self, edge: Edge) -> bool:
        path = self.picture.path
        return (edge.start, edge.end) in itertools.pairwise(path)

    def _ladder(self) -> list[str]:
        """Tiers stand one above the other: the highest first."""
        events = [self.ids[n.key] for n in self.picture.nodes if n.group is None]
        return [f"  {{ rank=same; {' -> '.join(events)} [style=invis]; }}"]


def _label(edge: Edge, inks: dict[Look, Ink], width: int) -> str:
    lines = [escape(line) for line in wrapped(edge.labels, width)]
    lines += [f"<b>{escape(effect)}</b>" for effect in edge.effects]
    lines += [f"<i>{escape(mark)}</i>" for mark in edge.marks]
    wrong = inks[Look.WRONG].text
    lines += [f'<font color="{wrong}"><b>{escape(what)}</b></font>' for what in edge.wrong]
    return "<br/>".join(f" {line} " for line in lines) if lines else " "


def wrapped(labels: tuple[str, ...], width: int = 26) -> list[str]:
    """Labels joined with commas, broken into lines of about `width` characters."""
    lines: list[str] = []
    for number, label in enumerate(labels):
        text = label + ("," if number < len(labels) - 1 else "")
        if lines and len(lines[-1]) + 1 + len(text) <= width:
            lines[-1] += " " + text
        else:
            lines.append(text)
    return lines
