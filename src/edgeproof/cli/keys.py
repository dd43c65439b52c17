"""Make signing keys, and show which key a file holds.

  edgeproof keys new root-1 root-2 root-3 --out KEYS     each NAME gives KEYS/NAME.key and KEYS/NAME.pub
  edgeproof keys show KEYS/*.pub                         ids, as 'edgeproof repo show' lists them

Keep the keys of root and targets off the machine that publishes, and apart from each other. A private key is asked
for a passphrase when it is made; --no-passphrase is for keys that a machine uses alone (snapshot and timestamp).
Passphrases are typed, or come from a file (--passphrase-file, or EDGEPROOF_PASSPHRASE_FILE) or the variable
EDGEPROOF_PASSPHRASE; never from the command line, where others could read them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import InputError
from ._signing import new_passphrase, passphrase_flag
from .show import Show


def arguments(parser: argparse.ArgumentParser) -> None:
    """What to do, and with which keys."""
    parser.add_argument("action", choices=["new", "show"], help="make keys, or show which keys files hold")
    parser.add_argument("names", metavar="NAME", nargs="+", help="names of new keys, or .pub files")
    parser.add_argument("--out", metavar="FOLDER", default="keys", help="folder for new keys (default: keys)")
    parser.add_argument("--no-passphrase", action="store_true", help="leave new private keys unencrypted")
    passphrase_flag(parser)


def run(args: argparse.Namespace, show: Show) -> int:
    """Make or show."""
    from ..bundle.keys import load_public, new_key, public_path
    from ..manifest import check_name

    rows: list[list[str]] = []
    if args.action == "new":
        for name in args.names:
            check_name(name, "key")
        if len(set(args.names)) < len(args.names):
            raise InputError("keys.exists", "edgeproof keys new", "is given one name twice", "give each key a name")
        secret = None if args.no_passphrase else new_passphrase(args)
        for name in args.names:
            private = Path(args.out) / f"{name}.key"
            key = new_key(private, secret)
            rows.append([name, key.keyid, str(private), str(public_path(private))])
        show.table(["key", "id", "private (keep it)", "public (give it)"], [[r[0], r[1][:12], *r[2:]] for r in rows])
        show.result({"keys": [dict(zip(("name", "id", "private", "public"), r, strict=True)) for r in rows]})
        return 0
    rows = [[str(path), load_public(Path(path)).keyid] for path in args.names]
    show.table(["file", "id"], rows)
    show.result({"keys": [{"public": path, "id": keyid} for path, keyid in rows]})
    return 0
