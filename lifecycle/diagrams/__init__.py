"""Pictures and machines drawn from a declared table, one module a format; they all read the same rows.

    from lifecycle.diagrams import diagram, picture
    print(diagram(PREFILL, "mermaid"))
    picture(PREFILL, "claims")             # in a notebook: draws itself

:func:`picture` makes the model of a picture once per view, and each format writes it down: ``mermaid``,
``dot``, ``plantuml``, ``markdown``, ``json``, and through Graphviz ``svg`` and ``png``. ``scxml``, ``xstate``
and ``transitions`` are the whole automaton, for programs that execute it. :func:`machine` builds a real
``transitions.Machine`` (extra ``[diagrams]``), and :func:`follow` draws the way of a trace into a picture. None
of them needs a package, but :func:`machine`.
"""

from .formats import Format, diagram
from .machine import machine
from .mermaid import mermaid
from .picture import Look, Picture, PictureError, View
from .trail import follow
from .views import picture

__all__ = [
    "Format",
    "Look",
    "Picture",
    "PictureError",
    "View",
    "diagram",
    "follow",
    "machine",
    "mermaid",
    "picture",
]
