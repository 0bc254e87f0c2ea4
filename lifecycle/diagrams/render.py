"""Pictures drawn by Graphviz, as SVG or PNG.

Graphviz is the system's ``dot``, or the one that the package pygraphviz carries along. The SVG has no ground of
its own and follows the reader's page: in ``auto`` it holds the colours of a light and of a dark page and lets
``prefers-color-scheme`` choose; ``light`` and ``dark`` fix them. Texts have a rim in the colour of the page, so
that an arrow behind a text does not cross it out. Layout is Graphviz's, so two versions of it may place things
differently; the first comment of the file holds a digest of the DOT text, by which a file is known to be up to
date.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from importlib.util import find_spec

from ..prefill import PREFILL
from ..spec import Table
from .dot import dot
from .picture import DARK, LIGHT, Ink, Look, Picture, PictureError, View

MISSING = (
    "SVG and PNG are drawn by Graphviz, which is not installed; install it with: apt-get install graphviz "
    "(macOS: brew install graphviz; anywhere: pip install pygraphviz)"
)
THEMES = ("auto", "light", "dark")
_PAGE = {"light": "#ffffff", "dark": "#0d1117"}
_TIMEOUT = 120.0


def can_render() -> bool:
    """Whether Graphviz is here."""
    return shutil.which("dot") is not None or find_spec("pygraphviz") is not None


def digest(drawn: Picture) -> str:
    """What the first comment of an SVG file holds: a digest of what was drawn."""
    return hashlib.sha256(dot(drawn).encode()).hexdigest()[:16]


def svg(source: Picture | Table = PREFILL, view: str = View.STATES, *, theme: str = "auto") -> str:
    """The picture, or a table under `view`, as SVG text. `theme` is auto, light or dark.

    Raises:
        PictureError: Graphviz is missing or fails, or there is no such view or theme.
    """
    from .views import picture

    if theme not in THEMES:
        msg = f"no theme {theme!r}; the themes are {', '.join(THEMES)}"
        raise PictureError(msg)
    drawn = source if isinstance(source, Picture) else picture(source, view)
    made = _graphviz(dot(drawn, dark=theme == "dark"), "svg").decode("utf-8")
    body = made[made.index("<svg") :]
    body = re.sub(r"<!--.*?-->\n?", "", body, flags=re.DOTALL)
    body = re.sub(r"(<svg[^>]*>)", lambda m: m[1] + _style(theme), body, count=1)
    head = f"<!-- {drawn.title.replace('--', '- -')}; drawn from {digest(drawn)} -->\n"
    return head + _accessible(body, drawn)


def png(
    source: Picture | Table = PREFILL,
    view: str = View.STATES,
    *,
    theme: str = "light",
    dpi: int = 144,
) -> bytes:
    """The picture, or a table under `view`, as the bytes of a PNG. `theme` is light or dark (auto means light).

    Raises:
        PictureError: Graphviz is missing or fails, or there is no such view or theme.
    """
    from .views import picture

    if theme not in THEMES:
        msg = f"no theme {theme!r}; the themes are {', '.join(THEMES)}"
        raise PictureError(msg)
    drawn = source if isinstance(source, Picture) else picture(source, view)
    dark = theme == "dark"
    text = dot(drawn, dark=dark)
    page = _PAGE["dark" if dark else "light"]
    text = text.replace("bgcolor=transparent", f'bgcolor="{page}", dpi={dpi}, pad=0.2', 1)
    return _graphviz(text, "png")


def _graphviz(text: str, format: str) -> bytes:  # noqa: A002  # the word that Graphviz has for it
    program = shutil.which("dot")
    if program is None:
        return _bundled(text, format)
    try:
        ran = subprocess.run(  # noqa: S603  # a program found on PATH, and no shell
            [program, f"-T{format}"],
            input=text.encode("utf-8"),
            capture_output=True,
            check=False,
            timeout=_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        msg = f"Graphviz ({program}) could not draw the picture: {error}"
        raise PictureError(msg) from None
    if ran.returncode != 0:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        msg = f"Graphviz ({program}) failed: {said[-1] if said else ran.returncode}"
        raise PictureError(msg)
    return ran.stdout


def _bundled(text: str, format: str) -> bytes:  # noqa: A002  # the word that Graphviz has for it
    try:
        import pygraphviz  # type: ignore[import-not-found,unused-ignore]  # optional, and untyped
    except ImportError:
        raise PictureError(MISSING) from None
    drawn: bytes = pygraphviz.AGraph(string=text).draw(format=format, prog="dot")
    return drawn


def _accessible(body: str, drawn: Picture) -> str:
    """A title that a screen reader says, instead of Graphviz's name of the graph."""
    title = drawn.title.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"<title>lifecycle</title>", lambda _: f"<title>{title}</title>", body, count=1)


def _style(theme: str) -> str:
    """Colours by look. What stands here wins over the attributes that Graphviz wrote."""
    if theme == "auto":
        rules = [*_rules(LIGHT, "light")]
        rules += ["@media (prefers-color-scheme:dark){", *_rules(DARK, "dark"), "}"]
    else:
        rules = _rules(DARK if theme == "dark" else LIGHT, theme)
    return (
        "<style>text{paint-order:stroke;stroke-width:3px;stroke-linejoin:round}"
        ".node text{stroke:none!important}.faded{opacity:.35}" + "".join(rules) + "</style>"
    )


def _rules(inks: dict[Look, Ink], page: str) -> list[str]:
    rules = [f"text{{stroke:{_PAGE[page]}}}"]
    for look, ink in inks.items():
        name = f".look-{look}"
        rules += [
            (
                f".node{name} path,.node{name} polygon,.node{name} ellipse"
                f"{{fill:{ink.fill};stroke:{ink.line}}}"
            ),
            f".node{name} text{{fill:{ink.text}}}",
            f".edge{name} path{{stroke:{ink.line}}}.edge{name} polygon{{fill:{ink.line};stroke:{ink.line}}}",
            f".edge{name} text{{fill:{ink.text}}}",
            f".cluster{name} path{{stroke:{ink.line};fill:none}}.cluster{name} text{{fill:{ink.text}}}",
        ]
    end = inks[Look.END].line
    rules.append(f".node.dot ellipse{{fill:{end};stroke:{end}}}")
    return rules
