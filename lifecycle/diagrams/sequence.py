"""A trace as a Mermaid sequence diagram: who told whom what, from the top down.

    print(sequence([{"event": "submit", "rid": "r1"}, {"event": "abort", "rid": "r1"}]))

Each life of a request is a column, between the parties outside: clients, the grammar, the forward passes, the
transfers, the pool. An event is an arrow to its request, an effect an arrow from it, and where the state or what
is outstanding changes a note says so. A late event has a dotted arrow, an illegal one a cross and the reason why;
what broke an invariant is framed in red. Columns that nothing concerns are left out.

The trace runs through the library (:mod:`lifecycle.replay`), so the diagram shows what the contract makes of it.
Names are only ever texts: a rid may be ``end``, hold quotes, semicolons or control characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from ..compile import Effect
from ..errors import TraceError
from ..prefill import PREFILL
from ..replay import Replay, Seen
from ..request import RequestLifecycle
from ..spec import Table
from ..trace import TraceEvent, TracePolicy, parse
from ..vocabulary import EffectKind, Event, Kind
from .mermaid import shown

Line = TraceEvent | TracePolicy | Mapping[str, Any] | str

CLIENT, GRAMMAR, MODEL, SENDER, POOL = "client", "grammar", "model runner", "transfer", "pool"

_FROM: dict[Event, str] = {
    Event.SUBMIT: CLIENT,
    Event.ABORT: CLIENT,
    Event.GRAMMAR_READY: GRAMMAR,
    Event.GRAMMAR_FAILED: GRAMMAR,
    Event.ADMIT: POOL,
    Event.FORWARD_LAUNCHED: MODEL,
    Event.FORWARD_FINISHED: MODEL,
    Event.PREFILL_FINISHED: MODEL,
    Event.COMPLETE: MODEL,
    Event.ERROR: MODEL,
    Event.TRANSFER_POSTED: SENDER,
    Event.TRANSFER_PENDING: SENDER,
    Event.TRANSFER_SUCCEEDED: SENDER,
    Event.TRANSFER_FAILED: SENDER,
    Event.TRANSFER_DRAINED: SENDER,
    Event.PEER_LOST: SENDER,
    Event.PREEMPT: POOL,
    Event.DRAIN_TIMEOUT: SENDER,
}
"""Where an event comes from."""

_OUTWARD = frozenset({Event.FORWARD_LAUNCHED, Event.TRANSFER_POSTED})
"""What the request's scheduler does, and is not told: the arrow leads away from the request."""

_TO: dict[EffectKind, str] = {
    EffectKind.CANCEL_TRANSFER: SENDER,
    EffectKind.RELEASE_KV: POOL,
    EffectKind.QUARANTINE_KV: POOL,
    EffectKind.REPORT: CLIENT,
}
_LEFT, _RIGHT = (CLIENT, GRAMMAR), (MODEL, SENDER, POOL)


@attrs.define
class _Drawing:
    """Lines so far, and the columns that they need."""

    lines: list[str] = attrs.field(factory=list)
    parties: set[str] = attrs.field(factory=set)
    lives: dict[tuple[str, int], str] = attrs.field(factory=dict)  # -> its column
    stood: dict[str, str] = attrs.field(factory=dict)  # column -> what the last note said

    def party(self, name: str) -> str:
        """The column of a party outside."""
        self.parties.add(name)
        return _ident(name)

    def life(self, rid: str, incarnation: int) -> str:
        """The column of a request."""
        return self.lives.setdefault((rid, incarnation), f"r{len(self.lives)}")


def sequence(
    trace: Iterable[Line], *, table: Table = PREFILL, title: str = "", broken: str = ""
) -> str:
    """Mermaid text of a trace; stable from run to run.

    Args:
        trace: lines as :func:`lifecycle.trace.read` gives them, plain objects, or JSON texts.
        table: the declared table under which it is replayed.
        title: stands above the diagram.
        broken: what broke at the end of the trace, if something outside of it did (a scheduler that freed early).

    Raises:
        TraceError: a line is not well formed.
    """
    drawing = _Drawing()
    run = Replay(table=table, watch=lambda seen: _draw(drawing, seen))
    for number, line in enumerate(trace, 1):
        before = len(run.violations)
        run.feed(_checked(line, number))
        for each in list(run.violations)[before:]:
            _wrong(drawing, f"breaks {each['invariant']}: {each['what']}")
    if broken:
        _wrong(drawing, broken)
    several = {rid for rid, life in drawing.lives if life > 1}
    head = ["sequenceDiagram"]
    if title:
        head.append(f"    title {_text(title)}")
    head += _columns(drawing, _LEFT)
    head += [
        f"    participant {ident} as {_text(f'{rid} (life {life})' if rid in several else rid)}"
        for (rid, life), ident in drawing.lives.items()
    ]
    head += _columns(drawing, _RIGHT)
    return "\n".join([*head, *drawing.lines]) + "\n"


def _columns(drawing: _Drawing, parties: tuple[str, ...]) -> list[str]:
    return [
        f"    participant {_ident(name)} as {name}" for name in parties if name in drawing.parties
    ]


def _checked(line: Line, number: int) -> TraceEvent | TracePolicy:
    if isinstance(line, (TraceEvent, TracePolicy)):
        return line
    try:
        return parse(line if isinstance(line, str) else json.dumps(line), number)
    except TraceError as error:
        raise TraceError(error.message, line=number) from None


def _draw(drawing: _Drawing, seen: Seen) -> None:
    event, request = seen.event.event, seen.request
    life = request.incarnation if request is not None else (seen.event.incarnation or 1)
    here, there = drawing.life(seen.event.rid, life), drawing.party(_FROM[event])
    label = _label(seen)
    if seen.outcome == Kind.ILLEGAL:
        drawing.lines.append(f"    {there}-x{here}: {_text(f'{label} is illegal: {seen.why}')}")
        return
    if seen.outcome in (Kind.LATE, "unknown"):
        drawing.lines.append(f"    {there}-->>{here}: {_text(f'{label} ({seen.outcome})')}")
        return
    start, end = (here, there) if event in _OUTWARD else (there, here)
    drawing.lines.append(f"    {start}->>{end}: {_text(label)}")
    assert request is not None
    for effect in seen.effects:
        to = drawing.party(_TO[effect.kind])
        drawing.lines.append(f"    {here}->>{to}: {_text(_effect(effect, request))}")
    stands = _stands(request)
    if drawing.stood.get(here) != stands:
        drawing.stood[here] = stands
        drawing.lines.append(f"    Note over {here}: {_text(stands)}")


def _wrong(drawing: _Drawing, what: str) -> None:
    columns = list(drawing.lives.values()) or [drawing.party(CLIENT)]
    over = columns[0] if len(columns) == 1 else f"{columns[0]},{columns[-1]}"
    drawing.lines += [
        "    rect rgba(208, 60, 50, 0.25)",
        f"        Note over {over}: {_text(what)}",
        "    end",
    ]


def _label(seen: Seen) -> str:
    values = [
        str(value)
        if name in ("op", "source", "cause", "reason")
        else f"{name} {_short(json.dumps(value, ensure_ascii=False))}"
        for name, value in seen.event.details.items()
    ]
    return str(seen.event.event) + (f" ({', '.join(values)})" if values else "")


def _effect(effect: Effect, request: RequestLifecycle) -> str:
    text = str(effect.kind)
    if effect.kind is EffectKind.REPORT:
        return f"{text}: {request.reason}"
    return text if effect.attempt == request.attempt else f"{text} of attempt {effect.attempt}"


def _stands(request: RequestLifecycle) -> str:
    """The state, with the reason and who may still touch the pages."""
    text = str(request.state)
    if request.reason is not None:
        text += f" ({request.reason})"
    held = [claim for claim in request.claims if claim != "request"]
    held += [
        f"{claim} of attempt {old.attempt}" for old in request.draining for claim in old.claims
    ]
    return f"{text}, {', '.join(held)}" if held else text


def _ident(name: str) -> str:
    return name.replace(" ", "_")


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _text(text: str) -> str:
    """`text` as Mermaid takes it: control characters as escapes, Mermaid's own characters as numbers."""
    plain = "".join(
        char if char.isprintable() and not 0xD800 <= ord(char) < 0xE000 else repr(char)[1:-1]
        for char in text
    )
    return shown(plain if plain.strip() else repr(plain))
