"""The command line: one command a file. Commands parse, call and show; they decide nothing.

A command module has ``SUMMARY`` (one line), ``arguments(parser)`` and ``run(args, show) -> exit code``. Its
file name is its name. Only the module of the command that was typed is imported.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import NoReturn

from ..errors import EdgeproofError, InputError, UnsupportedError, did_you_mean, nearest

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


INTERRUPTED = 130
BROKEN_PIPE = 141
"""What shells report for a process that SIGINT or SIGPIPE ended; never the code of an accept."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``edgeproof``.

    Returns:
        0 success or accept, 1 reject, 2 bad input, 3 unsupported, 4 trust, 5 hold, 70 internal, 130 interrupted,
        141 when whoever reads the output is gone.
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
    from .show import Show

    # Asked before parsing, so that a mistake in the other arguments is told as JSON too.
    show = Show(json="--json" in arguments)
    if name not in known:
        hint = did_you_mean(name, known)
        show.error(InputError("usage.command", f"edgeproof {name}", "no such command", hint))
        return InputError.exit_code
    module = importlib.import_module(f".{name}", __name__)
    parser = _Parser(prog=f"edgeproof {name}", description=module.__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document, and nothing else")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    try:
        parser.refuse_unknown(arguments[1:])
        args = parser.parse_args(arguments[1:])
    except InputError as e:
        if not show.json:
            parser.print_usage(sys.stderr)
        show.error(e)
        return e.exit_code
    except SystemExit as e:  # --help
        return int(e.code or 0)
    try:
        with redirect_stdout(sys.stderr):  # what code of the user's own prints; results go through `show`
            return int(module.run(args, show))
    except EdgeproofError as e:
        if args.debug:
            raise
        show.error(e)
        return e.exit_code
    except KeyboardInterrupt:
        show.interrupted("what was finished is kept, and the same command goes on from there")
        return INTERRUPTED
    except BrokenPipeError:
        show.silence()
        return BROKEN_PIPE
    except OSError as e:
        if args.debug:
            raise
        from ..files import os_error

        error = os_error(Path(str(e.filename or "edgeproof")), e)
        show.error(error)
        return error.exit_code
    except MemoryError:
        if args.debug:
            raise
        memory = UnsupportedError(
            "memory", f"edgeproof {name}", "needs more memory than there is", "use smaller inputs, or a larger machine"
        )
        show.error(memory)
        return memory.exit_code
    except ModuleNotFoundError as e:
        if args.debug or (e.name or "").startswith("edgeproof"):
            raise
        missing = UnsupportedError(
            "package.missing",
            f"edgeproof {name}",
            f"needs the package {e.name}, which is not installed here",
            "pip install 'edgeproof[optimize]'",
        )
        show.error(missing)
        return missing.exit_code
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


def whole_number(text: str) -> int:
    """Type of flags that take a whole number from 0, such as seeds."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are errors like all others."""

    def refuse_unknown(self, arguments: Sequence[str]) -> None:
        """Name the flag that was probably meant, before argparse complains of what its absence leads to.

        Raises:
            InputError: usage.flag.
        """
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for argument in arguments:
            if argument == "--":
                return
            flag = argument.partition("=")[0]
            # argparse takes words with a space as values.
            if flag.startswith("--") and flag not in known and " " not in argument:
                meant = nearest(flag, known)
                hint = f"did you mean {meant!r}? " if meant else ""
                raise InputError("usage.flag", self.prog, f"has no flag {flag!r}", f"{hint}run '{self.prog} --help'")

    def error(self, message: str) -> NoReturn:
        raise InputError("usage.arguments", self.prog, message, f"run '{self.prog} --help'")


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
            "exit codes: 0 done or accept, 1 reject, 2 bad input, 3 unsupported, 4 trust, 5 hold, 70 bug,",
            "            130 interrupted",
        ]
    )
