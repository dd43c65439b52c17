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
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from ..errors import EdgeproofError, InputError, UnsupportedError, did_you_mean, nearest

if TYPE_CHECKING:
    from .show import Show

COMMANDS: tuple[tuple[str, str], ...] = (
    ("demo", "the whole way on a small real model and exact labels, in minutes"),
    ("inspect", "interface, operators, parameters, MACs, memory and findings of a model"),
    ("optimize", "find the fastest variant that meets a policy, and prove it"),
    ("apply", "run one pass on a model"),
    ("train", "train, prune, retrain, quantise and export by one file"),
    ("build", "write what a runtime loads on the device: an engine, an IR, a flatbuffer"),
    ("bench", "measure models against each other in fresh, interleaved processes"),
    ("gate", "decide accept, reject or hold from kept measurements"),
    ("compare", "show what differs between two models, of the same format or not"),
    ("review", "freeze a change of a model with measurements from anywhere, decide it and seal the evidence"),
    ("report", "write one self-contained HTML page about a run"),
    ("pack", "make a signed bundle of a model that was accepted"),
    ("seal", "seal a run into a signed file from whose raw samples anyone can decide again"),
    ("verify", "check an evidence file or a bundle offline, deciding again from its raw samples"),
    ("export", "write evidence as an ML-BOM, SARIF or other standard; a model for Triton, a bundle as a container"),
    ("keys", "make signing keys, and show which key a file holds"),
    ("repo", "publish bundles in a signed repository: create, add, refresh, rotate and revoke keys"),
    ("provision", "make a folder a device's, once, at the factory"),
    ("install", "put a bundle on trial in the free slot of this device"),
    ("status", "what runs on this device, its slots, floor and quarantine"),
    ("serve", "serve the model of the current slot, watch it, keep it or go back"),
    ("mark-good", "keep the bundle on trial; raise the security floor"),
    ("rollback", "go back to the other slot"),
    ("floor", "write a signed instruction that raises devices' security floor"),
    ("log-mlflow", "log deployment evaluations to MLflow, once, with their evidence"),
    ("audit-mlflow", "compare a run in MLflow with the sealed evidence, and name what was changed"),
    ("import-mlflow", "make receipts of a run in MLflow, or of its exported JSON"),
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
    debug = "--debug" in arguments
    try:
        return _run(name, arguments[1:], show)
    except KeyboardInterrupt:
        show.interrupted("what was finished is kept, and the same command goes on from there")
        return INTERRUPTED
    except BrokenPipeError:
        show.silence()
        return BROKEN_PIPE
    except Exception as e:
        if debug:
            raise
        error = _as_error(e, name)
        show.error(error)
        return error.exit_code


def _run(name: str, arguments: Sequence[str], show: Show) -> int:
    """Parse a command's arguments and run it."""
    module = module_of(name)
    parser = _Parser(prog=f"edgeproof {name}", description=module.__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document, and nothing else")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    try:
        parser.refuse_unknown(arguments)
        args = parser.parse_args(arguments)
    except InputError:
        if not show.json:
            parser.print_usage(sys.stderr)
        raise
    except SystemExit as e:  # --help
        return int(e.code or 0)
    with redirect_stdout(sys.stderr):  # what code of the user's own prints; results go through `show`
        return int(module.run(args, show))


def _as_error(error: Exception, name: str) -> EdgeproofError:
    """What a user is told of an exception."""
    if isinstance(error, EdgeproofError):
        return error
    if isinstance(error, OSError):
        from ..files import os_error

        return os_error(Path(str(error.filename or "edgeproof")), error)
    subject = f"edgeproof {name}"
    if isinstance(error, MemoryError):
        hint = "use smaller inputs, or a larger machine"
        return UnsupportedError("memory", subject, "needs more memory than there is", hint)
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("edgeproof"):
        problem = f"needs the package {error.name}, which is not installed here"
        return UnsupportedError("package.missing", subject, problem, "pip install 'edgeproof[optimize]'")
    from ..errors import InternalError

    problem = f"{type(error).__name__}: {error}"
    return InternalError("internal", subject, problem, "run it again with --debug and report it")


def module_of(name: str) -> ModuleType:
    """The module of a command; a hyphen cannot stand in a file's name."""
    return importlib.import_module(f".{name.replace('-', '_')}", __name__)


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
