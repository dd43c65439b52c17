"""The command line: one command a file. Commands parse, call and show; they decide nothing.

A command module has ``SUMMARY`` (one line), ``arguments(parser)`` and ``run(args, show) -> exit code``. Its
file name is its name. Only the module of the command that was typed is imported.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import EdgeproofError, did_you_mean

COMMANDS: tuple[tuple[str, str], ...] = (
    ("demo", "the whole way on a small real model and exact labels, in minutes"),
    ("inspect", "interface, operators, parameters, MACs, memory and findings of a model"),
    ("optimize", "find the fastest variant that meets a policy, and prove it"),
    ("apply", "run one pass on a model"),
    ("bench", "measure models against each other in fresh, interleaved processes"),
    ("gate", "decide accept, reject or hold from kept measurements"),
    ("report", "write one self-contained HTML page about a run"),
    ("targets", "what runs here, what is missing, and the line that installs it"),
)
"""Name and summary of every command, in the order in which people meet them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``edgeproof``.

    Returns:
        0 success or accept, 1 reject, 2 bad input, 3 unsupported, 4 trust, 5 hold, 70 internal, 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if arguments[0] in ("-V", "--version"):
        from .. import __version__

        print(f"edgeproof {__version__}")
        return 0
    name = arguments[0]
    known = [c for c, _ in COMMANDS]
    if name not in known:
        print(f"edgeproof {name}: no such command; {did_you_mean(name, known)}", file=sys.stderr)
        return 2
    module = importlib.import_module(f".{name}", __name__)
    parser = argparse.ArgumentParser(prog=f"edgeproof {name}", description=module.__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document, and nothing else")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    try:
        args = parser.parse_args(arguments[1:])
    except SystemExit as e:
        return int(e.code or 0)
    from .show import Show

    show = Show(json=args.json)
    try:
        return int(module.run(args, show))
    except EdgeproofError as e:
        if args.debug:
            raise
        show.error(e)
        return e.exit_code
    except KeyboardInterrupt:
        show.note("interrupted; what was finished is kept, and the same command goes on from there")
        return 130
    except BrokenPipeError:
        return 0
    except OSError as e:
        if args.debug:
            raise
        from ..files import os_error

        error = os_error(Path(str(e.filename or "edgeproof")), e)
        show.error(error)
        return error.exit_code
    except Exception as e:
        if args.debug:
            raise
        from ..errors import InternalError

        internal = InternalError(
            "internal",
            f"edgeproof {name}",
            f"{type(e).__name__}: {e}",
            "run it again with --debug and report it",
        )
        show.error(internal)
        return internal.exit_code


def _overview() -> str:
    width = max(len(n) for n, _ in COMMANDS)
    lines = [f"  {n:<{width}}  {summary}" for n, summary in COMMANDS]
    return "\n".join(
        [
            "usage: edgeproof COMMAND [...]",
            "",
            "Make a trained model fit its device, and prove it.",
            "",
            *lines,
            "",
            "  edgeproof COMMAND --help    what a command takes",
            "  edgeproof --version",
            "",
            "exit codes: 0 done or accept, 1 reject, 2 bad input, 3 unsupported, 4 trust, 5 hold, 70 bug",
        ]
    )
