"""A picture as JSON: for tools of your own that draw it their way.

``{"table", "view", "title", "about", "start", "path", "groups": [{"key", "title", "note", "look"}], "nodes":
[{"key", "title", "look", "notes", "group", "terminal", "marked"}], "edges": [{"from", "to", "labels", "look",
"effects", "marks", "wrong"}]}``. Edges lead from and to the keys of nodes or groups.
"""

from __future__ import annotations

import json
from typing import Any

from ..prefill import PREFILL
from ..spec import Table
from .picture import Picture, View
from .views import picture


def to_json(source: Picture | Table = PREFILL, view: str = View.STATES) -> str:
    """JSON of a picture, or of a table under `view`; stable from run to run.

    Raises:
        PictureError: there is no such view, or a name cannot be drawn.
    """
    drawn = source if isinstance(source, Picture) else picture(source, view)
    return json.dumps(as_data(drawn), indent=2, ensure_ascii=False) + "\n"


def as_data(drawn: Picture) -> dict[str, Any]:
    """The picture as plain objects."""
    return {
        "table": drawn.table,
        "view": str(drawn.view),
        "title": drawn.title,
        "about": list(drawn.about),
        "start": drawn.start,
        "path": list(drawn.path),
        "groups": [
            {"key": g.key, "title": g.title, "note": g.note, "look": str(g.look)}
            for g in drawn.groups
        ],
        "nodes": [
            {
                "key": node.key,
                "title": node.title,
                "look": str(node.look),
                "notes": list(node.notes),
                "group": node.group,
                "terminal": node.terminal,
                "marked": node.marked,
            }
            for node in drawn.nodes
        ],
        "edges": [
            {
                "from": edge.start,
                "to": edge.end,
                "labels": list(edge.labels),
                "look": str(edge.look),
                "effects": list(edge.effects),
                "marks": list(edge.marks),
                "wrong": list(edge.wrong),
            }
            for edge in drawn.edges
        ],
    }
