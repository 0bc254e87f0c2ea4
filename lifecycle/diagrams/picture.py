"""What a picture is, before any format: nodes, edges, groups, and how each of them looks.

A :class:`Picture` is plain frozen data, built once per view from a declared table
(:mod:`lifecycle.diagrams.views`). Each format is a module that reads it and writes text; none of them looks at
the table again, so they cannot disagree. Everything is in a fixed order, so the same table gives the same text
from run to run.

A :class:`Look` says what something *means*, not its colour: one look an outcome. The colours stand in one place,
:data:`LIGHT` and :data:`DARK`.

In a notebook a picture shows itself: as SVG where Graphviz is installed, else as Mermaid, which JupyterLab draws.
"""

from __future__ import annotations

import unicodedata
from typing import Any

import attrs

from ..errors import LifecycleError
from ..vocabulary import Word


class PictureError(LifecycleError, ValueError):
    """A picture that cannot be drawn, or not rightly: no such format or view, a name that cannot be shown."""


class View(Word):
    """What of a table is drawn."""

    STATES = "states"  # the states and what moves between them; small enough for a README
    CLAIMS = "claims"  # who may touch the pages, and so who may free them
    REASONS = "reasons"  # which event offers which reason, and which wins
    FULL = "full"  # every configuration that can be reached


class Look(Word):
    """What a node or an edge means."""

    WELL = "well"  # on the way to a good end
    AGAIN = "again"  # a new attempt
    CUT_SHORT = "cut-short"  # an abort or a fault
    SET_APART = (
        "set-apart"  # decided for a reason that has a draining state of its own: a grammar error
    )
    PLAIN = "plain"  # takes or drops a claim; decides nothing
    LATE = "late"  # absorbed
    WRONG = "wrong"  # illegal, or an invariant broke; only a trace brings it
    END = "end"  # the terminal state


@attrs.frozen
class Node:
    """A box. `key` is unique in its picture, `title` a name of the table as it is, `notes` are small print."""

    key: str
    title: str
    look: Look
    notes: tuple[str, ...] = ()
    group: str | None = None
    lane: int = 0
    terminal: bool = False
    marked: bool = False


@attrs.frozen
class Edge:
    """An arrow.

    Attributes:
        start, end: keys of nodes.
        labels: events, or other words, in a fixed order.
        effects: what is carried out on the way, worth showing.
        marks: where a trace took it, as text ("line 4"); empty where it did not.
        wrong: what a trace did wrong here.
        aside: it does not take part in the layout from left to right.
    """

    start: str
    end: str
    labels: tuple[str, ...]
    look: Look
    effects: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    aside: bool = False


@attrs.frozen
class Group:
    """A frame around nodes."""

    key: str
    title: str
    note: str = ""
    look: Look = Look.PLAIN


@attrs.frozen
class Picture:
    """A table under one view.

    Attributes:
        table, view: what it is of.
        title: one line.
        start: the key of the node where ``submit`` leads; None where nothing is submitted (the reasons).
        path: keys along the way to a good end, in order; formats draw them in one line.
        nodes, edges, groups: in a fixed order.
        about: sentences that a reader needs beside the picture.
    """

    table: str
    view: View
    title: str
    start: str | None
    path: tuple[str, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    groups: tuple[Group, ...] = ()
    about: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        for text in self._texts():
            refuse_what_cannot_be_shown(text)

    def _texts(self) -> list[str]:
        texts = [self.title, *self.about, *(group.title for group in self.groups)]
        for node in self.nodes:
            texts += [node.title, *node.notes]
        for edge in self.edges:
            texts += [*edge.labels, *edge.effects, *edge.marks, *edge.wrong]
        return texts

    def node(self, key: str) -> Node:
        """The node of that key.

        Raises:
            KeyError: there is none.
        """
        for node in self.nodes:
            if node.key == key:
                return node
        raise KeyError(key)

    @property
    def ends(self) -> tuple[Node, ...]:
        """The terminal nodes."""
        return tuple(node for node in self.nodes if node.terminal)

    @property
    def marked(self) -> bool:
        """Whether a trace is drawn into it."""
        return any(node.marked for node in self.nodes)

    def ids(self) -> dict[str, str]:
        """A short id for each node, ``n0`` upwards: names may be keywords of a format, ids are not."""
        return {node.key: f"n{number}" for number, node in enumerate(self.nodes)}

    # Notebooks.

    def _repr_svg_(self) -> str | None:
        from .render import can_render, svg

        return svg(self) if can_render() else None

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        from .mermaid import mermaid

        text = mermaid(self)
        bundle: dict[str, Any] = {"text/plain": text, "text/vnd.mermaid": text}
        drawn = self._repr_svg_()
        if drawn is not None:
            bundle["image/svg+xml"] = drawn
        return bundle


def refuse_what_cannot_be_shown(text: str) -> None:
    """Refuse control characters and lone surrogates: no format shows them, and some break on them.

    Raises:
        PictureError: naming the text and the character.
    """
    for char in text:
        if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp", "Cn"):
            msg = f"{text!r} cannot be drawn: it holds the character U+{ord(char):04X}"
            raise PictureError(msg)


@attrs.frozen
class Ink:
    """The colours of one look: of a line, of a box, and of text in the box."""

    line: str
    fill: str
    text: str


LIGHT: dict[Look, Ink] = {
    Look.WELL: Ink("#1a7f4b", "#e3f5ea", "#0f5132"),
    Look.AGAIN: Ink("#2563c9", "#e5eefc", "#173f80"),
    Look.CUT_SHORT: Ink("#c2323a", "#fde8e8", "#8c1d24"),
    Look.SET_APART: Ink("#b26a00", "#fdf0d9", "#744500"),
    Look.PLAIN: Ink("#57606a", "#f3f5f7", "#24292f"),
    Look.LATE: Ink("#8c959f", "#ffffff", "#6e7781"),
    Look.WRONG: Ink("#e5006e", "#ffe3f1", "#99004a"),
    Look.END: Ink("#24292f", "#e7eaed", "#24292f"),
}
"""On a light ground. Text stands at 4.5 to 1 or better on its fill and on white."""

DARK: dict[Look, Ink] = {
    Look.WELL: Ink("#4cc38a", "#12301f", "#9be8bf"),
    Look.AGAIN: Ink("#6ea8fe", "#14264a", "#b6d3ff"),
    Look.CUT_SHORT: Ink("#ff7b80", "#401a1d", "#ffc1c4"),
    Look.SET_APART: Ink("#f0a93a", "#3b2808", "#ffd694"),
    Look.PLAIN: Ink("#9aa4af", "#22272e", "#d5dbe1"),
    Look.LATE: Ink("#768390", "#0d1117", "#9aa4af"),
    Look.WRONG: Ink("#ff5fab", "#4a0f2c", "#ffc2df"),
    Look.END: Ink("#d5dbe1", "#30363d", "#f0f3f6"),
}
"""The same on a dark ground."""

MEANINGS: dict[Look, str] = {
    Look.WELL: "on the way to a good end",
    Look.AGAIN: "a new attempt",
    Look.CUT_SHORT: "an abort or a fault",
    Look.SET_APART: "a grammar error",
    Look.PLAIN: "takes or drops a claim",
    Look.LATE: "late: absorbed",
    Look.WRONG: "illegal, or an invariant broke",
    Look.END: "the end",
}
