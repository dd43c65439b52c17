"""Private keys on the command line: which files, and where their passphrases come from."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner

_FILE, _TEXT = "EDGEPROOF_PASSPHRASE_FILE", "EDGEPROOF_PASSPHRASE"

_LONGEST_LINE = 2048


def key_flags(parser: argparse.ArgumentParser, what: str, *, required: bool = True) -> None:
    """``--key``, which may be given several times, and where passphrases come from."""
    parser.add_argument("--key", metavar="KEY", action="append", default=[], required=required, help=what)
    passphrase_flag(parser)


def passphrase_flag(parser: argparse.ArgumentParser) -> None:
    """``--passphrase-file``."""
    parser.add_argument(
        "--passphrase-file",
        metavar="FILE",
        help=f"file whose first line is the passphrase of the private keys (or set {_FILE}; typed otherwise)",
    )


def signers(args: argparse.Namespace) -> list[CryptoSigner]:
    """The private keys of ``--key``.

    Raises:
        InputError: keys.format, keys.passphrase, keys.no_terminal.
        TrustError: keys.readable.
    """
    from ..bundle.keys import load_signer

    return [load_signer(Path(path), lambda p: _given(args) or _typed(f"passphrase of {p}: ")) for path in args.key]


def new_passphrase(args: argparse.Namespace) -> bytes:
    """A passphrase for new keys; typed twice when it is typed.

    Raises:
        InputError: keys.passphrase, keys.no_terminal.
    """
    given = _given(args)
    if given is not None:
        return given
    first = _typed("passphrase for the new private keys: ")
    if first != _typed("the same again: "):
        raise InputError("keys.passphrase", "passphrase", "was not typed the same twice", "type it again")
    return first


def _given(args: argparse.Namespace) -> bytes | None:
    """The passphrase of a file or of the environment."""
    path = args.passphrase_file or os.environ.get(_FILE)
    if path:
        from ..files import os_error

        try:
            with Path(path).open("rb") as f:  # which may be a pipe
                first = f.readline(_LONGEST_LINE)
        except OSError as e:
            raise os_error(Path(path), e) from e
        if not first.strip(b"\r\n") or len(first) == _LONGEST_LINE:
            raise InputError("keys.passphrase", path, "has no passphrase in its first line", "write it there")
        return first.rstrip(b"\r\n")
    text = os.environ.get(_TEXT)
    return text.encode() if text else None


def _typed(prompt: str) -> bytes:
    if not sys.stdin.isatty():
        hint = f"set {_FILE} to a file that holds it, or {_TEXT}"
        raise InputError("keys.no_terminal", "passphrase", "cannot be asked for without a terminal", hint)
    return getpass.getpass(prompt).encode()
