"""``lifecycle explain``: one cell of the table, in words."""

from __future__ import annotations

import difflib

import click

from ..explain import explain as tell
from ..spec import Table
from ..vocabulary import Event
from .common import BadInput, console, table_option


@click.command()
@click.argument("state")
@click.argument("event")
@table_option
def explain(state: str, event: str, table: Table) -> None:
    """What EVENT does to a request in STATE, and why, from the declared table."""
    states = [str(spec.name) for spec in table.states]
    _known("state", state, states)
    _known("event", event, [str(word) for word in Event])
    tell(console(), state, event, table)


def _known(what: str, word: str, words: list[str]) -> None:
    if word not in words:
        near = difflib.get_close_matches(word, words, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        msg = f"no {what} {word!r}{hint} The {what}s are {', '.join(words)}"
        raise BadInput(msg)
