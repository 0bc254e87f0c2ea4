"""What an event does in a state, and why, told from the declared table (extra ``[cli]``).

Everything printed here is read off the rows and the automaton; nothing is told by heart.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from .compile import Automaton, Cell, Letter, Node, compile_table
from .policy import DEFAULT_POLICY, Policy
from .spec import ALWAYS, CLAIM_OF, DRAIN, FINISH, ILLEGAL, LATE, STAY, Does, Offers, Row, Table
from .vocabulary import Event, Kind

KIND_STYLES = {Kind.MOVE: "green", Kind.STAY: "cyan", Kind.LATE: "dim", Kind.ILLEGAL: "red"}


def sentence(table: Table, row: Row) -> str:
    """One row in words."""
    words: dict[str, str] = {
        STAY: "it stays as it is",
        FINISH: f"it becomes {table.terminal.name} once a reason is recorded and nothing is outstanding; "
        "until then it stays",
        DRAIN: f"it is decided: {table.terminal.name} if nothing is outstanding, "
        f"else {' or '.join(str(s.name) for s in table.states if s.draining)} until the last claim is dropped",
        LATE: "late: absorbed and counted, nothing changes",
        ILLEGAL: "illegal: refused, the request is left as it was",
    }
    parts = [words.get(row.to, f"it becomes {row.to}")]
    parts += [f"it {does.value}" for does in row.claims]
    if row.offers is Offers.ITS_OWN:
        parts.append("its reason is offered to the precedence")
    elif row.offers is not Offers.NOTHING:
        parts.append(f"the reason {row.offers.value} is offered to the precedence")
    if row.effects:
        parts.append("effects, in this order and when due: " + ", ".join(row.effects))
    return "; ".join(parts)


def explain(
    console: Console, state: str, event: str, table: Table, policy: Policy = DEFAULT_POLICY
) -> None:
    """Print what `event` does in `state` of `table`, under `policy`.

    Raises:
        KeyError: no such state.
        ValueError: no such event.
    """
    spec, word = table.state(state), Event(event)
    head = Text(f"{spec.name} x {word}", style="bold")
    head.append(f"   table {table.name}", style="dim")
    console.print(head)
    console.print(Text(f"{spec.name}: {spec.meaning}.", style="dim"))
    for row in table.rows_of(state, word):
        line = Text("\n")
        if row.when is not ALWAYS:
            line.append(f"When {row.when}: ", style="bold")
        line.append(sentence(table, row) + ".")
        line.append(f"\nWhy: {row.why}.", style="italic")
        console.print(line)
    if CLAIM_OF.get(word) in (Does.DROP_STEP, Does.DROP_OP):
        console.print(
            Text("\nIn every state: if what it completes is not outstanding, it is late.")
        )
    elif word in CLAIM_OF:
        console.print(
            Text("\nIn every state: if its step or op is outstanding already, it is illegal.")
        )
    console.print()
    console.print(_cells(compile_table(table, policy), state, word))


def _cells(automaton: Automaton, state: str, event: Event) -> Grid:
    """Every configuration of the state, and what the event is in it; like lines are drawn together."""
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("outstanding", "recorded", "the event", "kind", "becomes", "effects"):
        grid.add_column(name, overflow="fold")
    for (out, letters, kind, becomes, effects), reasons in _lines(automaton, state, event).items():
        grid.add_row(
            out,
            Text(", ".join(dict.fromkeys(reasons))),
            Text(letters),
            Text(kind, style=KIND_STYLES[Kind(kind)]),
            Text(becomes),
            Text(effects, style="bold"),
        )
    return grid


_Line = tuple[str, str, str, str, str]


def _lines(automaton: Automaton, state: str, event: Event) -> dict[_Line, list[str]]:
    """What the event is, by what is outstanding and its details; and for which reasons recorded before."""
    lines: dict[_Line, list[str]] = {}
    for node in automaton.nodes:
        if node.state == state:
            alike: dict[tuple[str, str, str], list[str]] = {}
            for letter, cell in node.letters(event):
                effects = ", ".join(map(str, cell.effects))
                alike.setdefault((str(cell.kind), _becomes(node, cell), effects), []).append(
                    _details(letter)
                )
            for (kind, becomes, effects), details in alike.items():
                letters = ", ".join(filter(None, details)) if len(alike) > 1 else "any"
                line = (_outstanding(node), letters, kind, becomes, effects)
                lines.setdefault(line, []).append(str(node.reason or "nothing"))
    return lines


def _details(letter: Letter) -> str:
    notes = [str(part) for part in (letter.offers, letter.after) if part]
    return " ".join(notes + (["at an earlier token"] if letter.earlier else []))


def _becomes(node: Node, cell: Cell) -> str:
    if cell.to is None or cell.to is node:
        return "unchanged"
    text = str(cell.to.state)
    if cell.to.reason is not node.reason:
        text += " with its reason" if cell.wins else f" ({cell.to.reason})"
    return text if cell.to.terminal else f"{text}, {_outstanding(cell.to)} outstanding"


def _outstanding(node: Node) -> str:
    at = node.configuration
    return (
        " and ".join(word for word, on in (("steps", at.steps), ("ops", at.ops)) if on) or "nothing"
    )
