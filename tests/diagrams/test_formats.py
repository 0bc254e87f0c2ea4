"""Each format is read by a program that reads it for a living, and says what the picture says."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from html import unescape

import attrs
import pytest

from lifecycle import PREFILL
from lifecycle.decode import DECODE
from lifecycle.diagrams import Format, PictureError, View, diagram, picture
from lifecycle.diagrams import render as rendering
from lifecycle.diagrams.dot import dot
from lifecycle.diagrams.formats import MACHINES
from lifecycle.diagrams.markdown import markdown
from lifecycle.diagrams.mermaid import mermaid
from lifecycle.diagrams.plantuml import plantuml
from lifecycle.diagrams.render import png, svg
from tests.diagrams.odd import ODD, ODD_TABLE, renamed
from tests.diagrams.readers import graphviz, needs, needs_module

TABLES = pytest.mark.parametrize(
    "table", [PREFILL, DECODE, ODD_TABLE], ids=["prefill", "decode", "odd"]
)
SMALL = pytest.mark.parametrize("view", ["states", "claims", "reasons"])
VIEWS = pytest.mark.parametrize("view", [str(view) for view in View])
TEXTS = [f for f in Format if f not in ("svg", "png")]


@pytest.mark.parametrize("format_", TEXTS)
def test_text_is_the_same_every_time(format_):
    made = diagram(ODD_TABLE, format_)
    assert isinstance(made, str)
    assert made.endswith("\n")
    assert made == diagram(ODD_TABLE, format_)


def test_unknown_words_are_refused_with_those_that_are_known():
    with pytest.raises(PictureError, match="no format 'bmp'; the formats are mermaid, dot, svg"):
        diagram(PREFILL, "bmp")
    with pytest.raises(PictureError, match="no theme 'pink'; the themes are auto, light, dark"):
        svg(PREFILL, theme="pink")


# Mermaid, by mermaid.js.


def squeezed(text):
    return re.sub(r"\s+", "", text)


def texts_of_mermaid(source):
    """Every text that mermaid.js drew: of nodes, frames, and arrows."""
    import mermaidx

    root = ET.fromstring(mermaidx.render(source).svg())
    found = []
    for element in root.iter():
        tag = element.tag.rpartition("}")[2]
        classes = element.get("class", "").split()
        if tag == "g" and {"node", "edgeLabel", "cluster"}.intersection(classes):
            found.append(squeezed("".join(element.itertext())))
    return found, root


def expected_texts(drawn):
    nodes = ["".join([node.title, *node.notes]) for node in drawn.nodes]
    edges = ["".join([", ".join(e.labels), *e.effects]) for e in drawn.edges]
    frames = [group.title for group in drawn.groups]
    return [squeezed(text) for text in [*nodes, *edges, *frames] if text]


@needs_module("mermaidx")
@pytest.mark.parametrize(
    ("table", "view"),
    [
        (ODD_TABLE, "states"),
        (DECODE, "reasons"),
        pytest.param(ODD_TABLE, "claims", marks=pytest.mark.slow),
        pytest.param(PREFILL, "claims", marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", value)[:7],
)
def test_mermaid_js_draws_every_name_and_label(table, view):
    drawn = picture(table, view)
    found, root = texts_of_mermaid(mermaid(drawn))
    missing = Counter(expected_texts(drawn)) - Counter(found)
    assert not missing, (missing, found)
    paths = [e for e in root.iter() if "flowchart-link" in e.get("class", "")]
    assert len(paths) == len(drawn.edges) + (drawn.start is not None)


@needs_module("mermaidx")
def test_a_name_that_is_not_escaped_is_noticed(monkeypatch):
    import sys

    from lifecycle.diagrams import mermaid as module  # the function; its module is found below

    monkeypatch.setattr(sys.modules[module.__module__], "shown", lambda text: text)
    drawn = picture(renamed(PREFILL, {"queued": "a<b>c#35;"}))
    try:
        found, _ = texts_of_mermaid(mermaid(drawn))
    except RuntimeError:
        return
    assert Counter(expected_texts(drawn)) - Counter(found)


def test_mermaid_marks_the_final_state_and_colours_every_arrow():
    text = mermaid(PREFILL)
    assert 'n5[["<b>done</b>' in text  # double frame
    links = len(re.findall(r"-->|-\.->", text))
    coloured = [int(n) for of in re.findall(r"linkStyle ([\d,]+) ", text) for n in of.split(",")]
    assert sorted(coloured) == list(
        range(1, links)
    )  # all but the one from the beginning, each once


# DOT, by Graphviz.


@needs("dot")
@TABLES
@VIEWS
def test_graphviz_reads_nodes_arrows_and_frames(table, view):
    drawn = picture(table, view)
    read = json.loads(graphviz(dot(drawn), "-Tdot_json"))
    ids = {number: thing["name"] for number, thing in enumerate(read["objects"])}
    keys = {ident: key for key, ident in drawn.ids().items()}
    named = {thing["name"]: thing for thing in read["objects"]}
    for node in drawn.nodes:
        there = named[drawn.ids()[node.key]]
        assert text_of_html(there["label"]) == squeezed("".join([node.title, *node.notes]))
        assert there.get("peripheries") == ("2" if node.terminal else None)
        assert f"look-{node.look}" in there["class"]
    arrows = Counter(
        (keys[ids[e["tail"]]], keys[ids[e["head"]]], text_of_html(e["label"]))
        for e in read["edges"]
        if ids[e["tail"]] in keys and e.get("style") != "invis"
    )
    group = {node.key: node.group for node in drawn.nodes}
    for edge in drawn.edges:
        said = squeezed("".join([", ".join(edge.labels), *edge.effects]))
        match = [
            at
            for at in arrows
            if at[2] == said
            and edge.start in (at[0], group[at[0]])
            and edge.end in (at[1], group[at[1]])
        ]
        assert match, edge
    assert sum(arrows.values()) == len(drawn.edges)
    frames = [text_of_html(g["label"]) for g in read["objects"] if g["name"].startswith("cluster")]
    assert len(frames) == len(drawn.groups)
    assert all(
        frame.startswith(squeezed(group.title))
        for frame, group in zip(frames, drawn.groups, strict=True)
    )


def text_of_html(label):
    return squeezed(unescape(re.sub(r"<[^>]*>", "", label)))


def test_dot_says_what_it_says_without_graphviz():
    text = dot(PREFILL)
    assert text.count(" -> ") == len(picture(PREFILL).edges) + 1
    assert text.count("peripheries=2") == 1
    assert text.count("{") == text.count("}")


# SVG and PNG.


@needs("dot")
@SMALL
def test_svg_holds_every_name_and_both_pages_colours(view):
    drawn = picture(ODD_TABLE, view)
    made = svg(drawn)
    root = ET.fromstring(made[made.index("<svg") :])
    said = [squeezed("".join(e.itertext())) for e in root.iter() if e.tag.endswith("text")]
    for node in drawn.nodes:
        assert squeezed(node.title) in said
    assert "prefers-color-scheme:dark" in made
    assert rendering.digest(drawn) in made.splitlines()[0]
    assert next(e for e in root.iter() if e.tag.endswith("title")).text == drawn.title
    assert "prefers-color-scheme" not in svg(drawn, theme="dark")


@needs("dot")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_png_is_a_png_of_a_page_in_that_colour(theme, tmp_path):
    from PIL import Image

    (tmp_path / "p.png").write_bytes(png(PREFILL, theme=theme))
    with Image.open(tmp_path / "p.png") as image:
        assert image.width > 1000
        assert image.convert("RGB").getpixel((2, 2)) == (
            (255,) * 3 if theme == "light" else (13, 17, 23)
        )


def test_without_graphviz_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(rendering.shutil, "which", lambda _: None)
    monkeypatch.setattr(rendering, "find_spec", lambda _: None)
    monkeypatch.setitem(__import__("sys").modules, "pygraphviz", None)
    with pytest.raises(PictureError, match="install it with: apt-get install graphviz"):
        svg(PREFILL)
    drawn = picture(PREFILL)
    assert drawn._repr_svg_() is None
    bundle = drawn._repr_mimebundle_()
    assert bundle["text/vnd.mermaid"] == mermaid(drawn)
    assert "image/svg+xml" not in bundle


def test_a_graphviz_that_fails_is_told_in_one_line(monkeypatch, tmp_path):
    broken = tmp_path / "dot"
    broken.write_text("#!/bin/sh\necho 'no fonts' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(rendering.shutil, "which", lambda _: str(broken))
    with pytest.raises(PictureError, match="failed: no fonts"):
        svg(PREFILL)


@needs("dot")
def test_a_notebook_is_given_svg():
    bundle = picture(PREFILL)._repr_mimebundle_()
    assert bundle["image/svg+xml"] == picture(PREFILL)._repr_svg_()


@needs_module("pygraphviz")
def test_the_graphviz_of_pygraphviz_draws_too(monkeypatch):
    monkeypatch.setattr(rendering.shutil, "which", lambda _: None)
    assert "<svg" in svg(PREFILL)


# PlantUML.


@TABLES
@VIEWS
def test_plantuml_has_the_structure_of_the_picture(table, view):
    drawn = picture(table, view)
    text = plantuml(drawn)
    assert text.startswith("@startuml\n")
    assert text.endswith("@enduml\n")
    arrows = re.findall(r"^(\S+) -\[.*?\]-> (\S+)", text, re.MULTILINE)
    ids = {**drawn.ids(), **{group.key: f"g{n}" for n, group in enumerate(drawn.groups)}}
    assert arrows == [(ids[edge.start], ids[edge.end]) for edge in drawn.edges]
    assert text.count("--> [*]") == len(drawn.ends)
    assert ("[*] --> " in text) == (drawn.start is not None)
    assert text.count("@enduml") == 1


@needs("plantuml")
@pytest.mark.slow
@TABLES
@SMALL
def test_plantuml_draws_every_name(table, view):
    drawn = picture(table, view)
    ran = subprocess.run(
        ["plantuml", "-tsvg", "-pipe", "-charset", "UTF-8"],
        input=plantuml(drawn).encode(),
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    root = ET.fromstring(ran.stdout)
    said = squeezed("".join("".join(e.itertext()) for e in root.iter() if e.tag.endswith("text")))
    for node in drawn.nodes:
        assert squeezed(node.title) in said, node.title


# Markdown and JSON.


@TABLES
@VIEWS
def test_markdown_is_one_table_with_a_row_an_arrow(table, view):
    from markdown_it import MarkdownIt

    drawn = picture(table, view)
    tokens = MarkdownIt().enable("table").parse(markdown(drawn))
    cells = [t.children for t in tokens if t.type == "inline"]
    texts = ["".join(c.content for c in children) for children in cells]
    assert sum(t.type == "table_open" for t in tokens) == 1
    rows = sum(t.type == "tr_open" for t in tokens) - 1
    assert rows == len(drawn.edges) + (drawn.start is not None) + len(drawn.ends)
    for node in drawn.nodes:
        assert any(node.title in text for text in texts), node.title


@TABLES
@VIEWS
def test_json_is_the_picture(table, view):
    drawn = picture(table, view)
    read = json.loads(diagram(table, "json", view))
    assert [node["title"] for node in read["nodes"]] == [node.title for node in drawn.nodes]
    assert [(e["from"], e["to"], tuple(e["labels"])) for e in read["edges"]] == [
        (e.start, e.end, e.labels) for e in drawn.edges
    ]


def test_machines_are_of_the_whole_product_whatever_the_view():
    for format_ in MACHINES:
        assert diagram(PREFILL, format_, "states") == diagram(PREFILL, format_, "full")


def test_marks_of_a_trace_are_in_every_text_format():
    drawn = picture(PREFILL)
    edges = list(drawn.edges)
    edges[0] = attrs.evolve(edges[0], marks=("line 2",), wrong=("illegal: admit",))
    marked = attrs.evolve(
        drawn,
        edges=tuple(edges),
        nodes=tuple(attrs.evolve(node, marked=node.key == "queued") for node in drawn.nodes),
    )
    for format_ in ("mermaid", "dot", "plantuml", "markdown", "json"):
        made = diagram(PREFILL, format_, drawn=marked)
        assert "line 2" in made, format_
        assert re.search(r"illegal(:|#58;|&#58;) admit", made), format_


def test_odd_names_are_odd():
    assert {name for name in ODD.values() if name != "graph"} - {
        s.name for s in ODD_TABLE.states
    } == set()
