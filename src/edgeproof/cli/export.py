"""Write sealed evidence in a format that others read: a CycloneDX ML-BOM, in-toto, SARIF or a model card.

The evidence is verified first, from its raw samples up; a file in which something differs is refused. Only SARIF, which
tells what is wrong, is written then too. With --key the signature has to be by that key; without, it is not checked,
and what is written says so. The same evidence and keys give the same bytes.

exit codes: 0 written, 4 the evidence does not hold
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import registry
from ..errors import InputError, TrustError
from .show import Show


def arguments(parser: argparse.ArgumentParser) -> None:
    """File, format and keys."""
    parser.add_argument("file", metavar="FILE", help="sealed evidence (edgeproof seal)")
    names = ", ".join(registry.names("standards"))
    parser.add_argument("--as", dest="name", required=True, metavar="NAME", help=f"one of {names}")
    parser.add_argument("--key", action="append", default=[], metavar="PUB", help="public key that may seal")
    parser.add_argument("--out", metavar="OUT", help="default: FILE with the format's ending")


def run(args: argparse.Namespace, show: Show) -> int:
    """Verify, write, and say what was written."""
    from ..bundle.keys import load_public
    from ..digest import digest_bytes
    from ..files import write_bytes
    from ..standards import export, read_verified

    standard = registry.load("standards", args.name)
    keys = [load_public(Path(k)) for k in args.key]
    path = Path(args.file)
    out = Path(args.out) if args.out else path.with_suffix(standard.suffix)
    if out == path or (out.exists() and path.exists() and out.samefile(path)):
        raise InputError("usage.arguments", "--out", f"is {out}, the evidence itself", "give another file")
    evidence = read_verified(path, keys)
    data = export(evidence, args.name, keys)
    write_bytes(out, data)
    found = evidence.verification
    show.text(f"  {out}  {found.state}")
    for difference in found.differences:
        show.text(f"  differs  {difference}")
    if not found.trusted:
        show.note(f"the signature: {found.untrusted[1]}")
    show.result(
        {
            "path": str(out),
            "as": args.name,
            "digest": digest_bytes(data),
            "state": found.state,
            "trusted": found.trusted,
            "differences": [d.to_json() for d in found.differences],
        }
    )
    holds = not found.differences and (found.trusted or not keys)
    return 0 if holds else TrustError.exit_code
