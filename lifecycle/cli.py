"""The command line: ``lifecycle replay``, ``explain``, ``demo``, and what else ``lifecycle --help`` lists.

Exit codes: 0 where all is well, 1 where something was illegal or an invariant broke, 2 on bad input. Bad input
is told in one message on standard error, never by a traceback, and nothing of it is applied.

Each command is a module of :mod:`lifecycle.commands`, imported when it is asked for: one that proves or plots
brings packages along that ``lifecycle replay`` does not wait for.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

try:
    import click
    import rich as _rich  # noqa: F401  # every command prints with it
except ImportError as error:  # pragma: no cover  # a test runs this in a process of its own
    sys.stderr.write(
        f"lifecycle: the command line needs {error.name}; "
        'install it with: pip install "request-lifecycle[cli]"\n'
    )
    sys.exit(2)

from . import __version__

COMMANDS = ("check", "demo", "diagram", "explain", "fuzz", "prove", "replay", "verify")
"""Every command, sorted: the command `x` is the function `x` of :mod:`lifecycle.commands.x`."""


def _version() -> str:
    """The version, and whether this is the compiled build."""
    hot_path = importlib.util.find_spec(".request", __package__)
    compiled = hot_path is not None and not str(hot_path.origin).endswith(".py")
    return f"{__version__} (compiled)" if compiled else __version__


class Commands(click.Group):
    """The commands of :data:`COMMANDS`, each imported when it is asked for."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """The command called `name`; None where there is none."""
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f".commands.{name}", __package__)
        command: click.Command = getattr(module, name)
        return command


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="lifecycle")
def main() -> None:
    """The life of a request in an LLM-serving scheduler: replay it, explain it, see it."""
