"""Publish bundles: a TUF repository in a folder that any static web server, or a USB stick, can serve.

  edgeproof repo create REPO --root A.pub --root B.pub --root C.pub --targets T.pub --snapshot S.pub --timestamp S.pub
                             --key A.key --key B.key --key T.key --key S.key
  edgeproof repo line REPO cameras --public L.pub --key T.key --key L.key --key S.key     a product line of its own
  edgeproof repo add REPO FILE.bundle … --key L.key --key S.key                           publish bundles
  edgeproof repo remove REPO cameras/reader-3.bundle --key L.key --key S.key              withdraw one
  edgeproof repo refresh REPO --key S.key                   every day: a new timestamp and snapshot
  edgeproof repo refresh REPO --role targets --key T.key …  any role, before it expires
  edgeproof repo keys REPO ROLE --public NEW.pub --revoke ID --key …   rotate or revoke keys, those of the root too
  edgeproof repo show REPO                                  roles, keys, expiries and bundles

Devices get REPO/metadata/1.root.json at the factory. Changing the root needs two of its three keys by default. Where
they lie on different machines, 'line', 'keys' and 'refresh' take --stage FILE, and only that file travels:

  edgeproof repo keys REPO root --public NEW.pub --revoke ID --stage root.json
  edgeproof repo sign root.json --key A.key                 shows it, then signs it; again with B.key elsewhere
  edgeproof repo adopt REPO root.json --key S.key           publish it
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from . import whole_number
from ._signing import key_flags, signers
from .show import Show, quantity

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

    from ..bundle.repository import RootKeys
    from ..bundle.roles import Expiry

ACTIONS = ("create", "line", "add", "remove", "refresh", "keys", "sign", "adopt", "show")
DAY = timedelta(days=1)
_DAYS = {"root": 365, "targets": 90, "snapshot": 7, "timestamp": 1}


def arguments(parser: argparse.ArgumentParser) -> None:
    """What to do, in which repository, with which keys."""
    parser.add_argument("action", choices=ACTIONS, help="see above")
    parser.add_argument("repo", metavar="REPO", help="folder of the repository; sign: the staged file")
    parser.add_argument("what", metavar="WHAT", nargs="*", help="product line, bundle files, targets or role")
    key_flags(parser, "private key to sign with; give one for every role that is signed", required=False)
    for role in ("root", "targets", "snapshot", "timestamp"):
        parser.add_argument(f"--{role}", metavar="PUB", action="append", default=[], help=f"create: a key of {role}")
    parser.add_argument("--public", metavar="PUB", action="append", default=[], help="line, keys: a key to add")
    parser.add_argument("--revoke", metavar="ID", action="append", default=[], help="keys: id of a key to revoke")
    parser.add_argument("--threshold", type=whole_number, help="signatures that the role needs (root: 2, others: 1)")
    parser.add_argument("--stage", metavar="FILE", help="line, keys, refresh: write what is to be signed elsewhere")
    parser.add_argument("--role", action="append", default=[], help="refresh: sign this role too")
    for role, days in _DAYS.items():
        parser.add_argument(
            f"--{role}-days", type=whole_number, default=days, metavar="N", help=f"lifetime of {role} (default: {days})"
        )


def run(args: argparse.Namespace, show: Show) -> int:
    """Do it, and show the repository."""
    from ..bundle import repository

    folder, now, told = Path(args.repo), datetime.now(UTC), args.what
    _check_what(args)
    if args.action == "show":
        return _show(folder, show)
    options: dict[str, Any] = {"now": now, "expiry": _expiry(args)}
    if args.stage:
        return _stage(args, options, show)
    keys = signers(args)
    if args.action == "sign":
        return _sign(folder, keys, show)
    if args.action == "create":
        repository.create(folder, _root_keys(args), keys, **options)
    elif args.action == "line":
        threshold = 1 if args.threshold is None else args.threshold
        repository.add_line(folder, told[0], _public(args.public), keys, threshold=threshold, **options)
    elif args.action == "add":
        from ..bundle.release import add_bundle

        for file in told:
            add_bundle(folder, Path(file), keys, **options)
    elif args.action == "remove":
        for path in told:
            repository.remove_target(folder, path, keys, **options)
    elif args.action == "refresh":
        repository.refresh(folder, keys, roles=("snapshot", *args.role), **options)
    elif args.action == "adopt":
        from ..bundle.ceremony import adopt

        adopt(folder, _staged(Path(told[0])), keys, **options)
    else:
        public = _public(args.public)
        repository.change_keys(
            folder, told[0], keys, add=public, remove=args.revoke, threshold=args.threshold, **options
        )
    return _show(folder, show)


def _stage(args: argparse.Namespace, options: dict[str, Any], show: Show) -> int:
    """Write the next root or targets, for others to sign."""
    from ..bundle.ceremony import propose
    from ..bundle.delegation import delegator_of, with_keys, with_line
    from ..bundle.roles import read
    from ..files import write_bytes

    old = read(Path(args.repo))
    if args.action == "line":
        threshold = 1 if args.threshold is None else args.threshold
        new, role = with_line(old, args.what[0], _public(args.public), threshold), "targets"
    elif args.action == "keys":
        name = args.what[0]
        new, role = with_keys(old, name, _public(args.public), args.revoke, args.threshold), delegator_of(name)
    elif args.action == "refresh" and len(args.role) == 1:
        new, role = old, args.role[0]
    else:
        hint = "stage a line, keys, or a refresh of one --role"
        raise InputError("usage.arguments", f"edgeproof repo {args.action}", "cannot be staged", hint)
    data = propose(old, new, role, **options)
    write_bytes(Path(args.stage), data)
    return _show_staged(data, show)


def _sign(file: Path, keys: list[CryptoSigner], show: Show) -> int:
    from ..bundle.ceremony import countersign
    from ..files import write_bytes

    data = countersign(_staged(file), keys, str(file))
    write_bytes(file, data)
    return _show_staged(data, show)


def _staged(file: Path) -> bytes:
    from ..files import os_error, plain

    try:
        return plain(file).read_bytes()
    except OSError as e:
        raise os_error(file, e) from e


def _show_staged(data: bytes, show: Show) -> int:
    from ..bundle.ceremony import summary

    described = summary(data)
    rows = [
        [r["role"], f"{r['threshold']} of {len(r['keys'])}", ", ".join(k[:12] for k in r["keys"])]
        for r in described["roles"]
    ]
    title = f"{described['role']} {described['version']}, until {described['expires']}"
    show.table(["names keys of", "signatures", "keys"], rows, title=title)
    show.text(f"  signed by: {', '.join(k[:12] for k in described['signed_by']) or 'nobody yet'}")
    show.result(described)
    return 0


def _check_what(args: argparse.Namespace) -> None:
    """How many things each action takes besides the repository."""
    takes = {"line": "a name", "add": "bundle files", "remove": "targets", "keys": "a role", "adopt": "a staged file"}
    wanted, one = takes.get(args.action, ""), args.action in ("line", "keys", "adopt")
    if bool(args.what) != bool(wanted) or (one and len(args.what) != 1):
        problem = f"takes {wanted or 'nothing'} after REPO; got {' '.join(args.what) or 'nothing'}"
        raise InputError("usage.arguments", f"edgeproof repo {args.action}", problem, "run 'edgeproof repo --help'")
    if args.action == "keys" and not (args.public or args.revoke or args.threshold):
        hint = "give --public for a key to add, --revoke for one to remove, or --threshold"
        raise InputError("usage.arguments", "edgeproof repo keys", "was given nothing to change", hint)


def _expiry(args: argparse.Namespace) -> Expiry:
    from ..bundle.roles import Expiry

    days = {role: getattr(args, f"{role}_days") for role in _DAYS}
    for role, count in days.items():
        if not 1 <= count <= 3650:
            raise InputError("usage.arguments", f"--{role}-days", f"is {count}; expected 1 to 3650", "leave it out")
    return Expiry(**{role: timedelta(days=count) for role, count in days.items()})


def _root_keys(args: argparse.Namespace) -> RootKeys:
    from ..bundle.repository import RootKeys

    threshold = 2 if args.threshold is None else args.threshold
    root, targets, snapshot, timestamp = (_public(getattr(args, role)) for role in _DAYS)
    return RootKeys(root, targets, snapshot, timestamp, root_threshold=threshold)


def _public(paths: list[str]) -> list[SSlibKey]:
    from ..bundle.keys import load_public

    return [load_public(Path(path)) for path in paths]


def _show(folder: Path, show: Show) -> int:
    from ..bundle.repository import describe

    described, now = describe(folder), datetime.now(UTC)
    rows = []
    for role in described["roles"]:
        left = datetime.fromisoformat(role["expires"]) - now
        days = f"in {left / DAY:.0f} days" if left > 2 * DAY else f"in {left / DAY * 24:.0f} h"
        keys = ", ".join(keyid[:12] for keyid in role["keys"])
        when = days if left > timedelta(0) else "expired"
        rows.append([role["role"], str(role["version"]), when, f"{role['threshold']} of {len(role['keys'])}", keys])
    show.table(["role", "version", "expires", "signatures", "keys"], rows, right="lr")
    rows = [
        [
            t["path"],
            str(t["bundle_version"]),
            str(t["security_version"]),
            quantity(t["size"], "bytes"),
            t["sha256"][7:19],
        ]
        for t in described["targets"]
    ]
    if rows:
        show.table(["bundle", "version", "security", "size", "sha256"], rows, right="lrrr")
    show.result(described)
    return 0
