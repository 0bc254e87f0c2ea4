"""A trace as a sequence diagram: mermaid.js draws every name in it, whatever the name."""

from __future__ import annotations

import contextlib
import sys
from xml.etree import ElementTree as ET

import pytest

from lifecycle import TraceError
from lifecycle.diagrams.sequence import sequence
from tests.diagrams.readers import needs_module

ODD = [
    "end",
    "end end; (end)",
    'say "hi" & <b>x</b>; #35; %% a',
    "a:b-->>c: d",
    "  ",
    "état 状態\n\t\x1b[31m",
    "participant x as y",
    "$x$ `t` _u_ **b** \\",
    "Note over r0: x",
    "x,y",
    "r#1",
]


def events(rid, op="kv"):
    return [
        {"event": "submit", "rid": rid},
        {"event": "admit", "rid": rid, "pages": 2},
        {"event": "transfer_posted", "rid": rid, "op": op},
        {"event": "abort", "rid": rid},
        {"event": "admit", "rid": rid, "pages": 1},
        {"event": "transfer_drained", "rid": rid, "op": op},
        {"event": "transfer_pending", "rid": rid},
    ]


def texts(source):
    import mermaidx

    root = ET.fromstring(mermaidx.render(source).svg())
    return ["".join(e.itertext()) for e in root.iter() if e.tag.endswith("}text")]


def escaped(text):
    said = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return said if said.strip() else repr(said)


def missing(rid):
    """The texts that ought to be drawn and are not."""
    drawn = texts(sequence(events(rid, rid), title=rid, broken=f"broke {rid}"))
    drawn = ["".join(text.split()) for text in drawn]
    plain = "".join(escaped(rid).split())
    inside = "".join("".join(c if c.isprintable() else repr(c)[1:-1] for c in rid).split())
    wanted = [plain, f"transfer_posted({inside})", f"transfer_drained({inside})"]
    return [text for text in wanted if text not in drawn]


@needs_module("mermaidx")
@pytest.mark.parametrize("rid", ODD)
def test_mermaid_js_draws_odd_names(rid):
    assert missing(rid) == []


@needs_module("mermaidx")
@pytest.mark.parametrize("rid", ["a;b", "x #35; y"])
def test_a_name_that_is_not_escaped_is_noticed(rid, monkeypatch):
    monkeypatch.setattr(sys.modules["lifecycle.diagrams.sequence"], "shown", lambda text: text)
    with contextlib.suppress(RuntimeError):  # mermaid.js refused it
        assert missing(rid)


def test_arrows_say_who_told_whom_and_what_became_of_it():
    text = sequence(events("r1"))
    lines = [line.strip() for line in text.splitlines()]
    assert lines[0] == "sequenceDiagram"
    assert "participant r0 as r1" in lines
    assert not any("grammar" in line for line in lines)  # nobody spoke of one
    at = lines.index("client->>r0: abort")
    assert lines[at + 1] == "r0->>transfer: cancel_transfer"
    assert lines[at + 2].startswith("Note over r0: aborted #40;client_abort#41;, op#58;kv")
    assert any(line.startswith("pool-xr0: admit #40;pages 1#41; is illegal") for line in lines)
    at = lines.index("transfer->>r0: transfer_drained #40;kv#41;")
    assert lines[at + 1 : at + 3] == [
        "r0->>pool: release_kv",
        "r0->>client: report#58; client_abort",
    ]
    assert lines[-1] == "transfer-->>r0: transfer_pending #40;late#41;"
    assert text == sequence(events("r1"))


def test_lives_attempts_unknown_requests_and_broken_invariants_are_told():
    trace = [
        {"policy": {"on_undrained": "release"}},
        *events("r1")[:4],
        {"event": "drain_timeout", "rid": "r1"},
        {"event": "submit", "rid": "r1"},
        {"event": "admit", "rid": "r1", "pages": 1},
        {"event": "forward_launched", "rid": "r1"},
        {"event": "preempt", "rid": "r1"},
        {"event": "forward_finished", "rid": "r1"},
        {"event": "abort", "rid": "nobody"},
    ]
    text = sequence(trace)
    assert "participant r0 as r1 #40;life 1#41;" in text
    assert "participant r1 as r1 #40;life 2#41;" in text
    assert "Note over r0: breaks no_free_in_flight" in text
    assert "Note over r1: queued, step#58;1 of attempt 0" in text
    assert "r1->>pool: release_kv of attempt 0" in text
    assert "client-->>r2: abort #40;unknown#41;" in text


def test_lines_may_be_texts_and_bad_ones_are_named():
    assert sequence(['{"event": "submit", "rid": "r"}']) == sequence([events("r")[0]])
    with pytest.raises(TraceError, match="2: unknown field 'x'"):
        sequence([events("r")[0], {"event": "abort", "rid": "r", "x": 1}])
