"""Write sealed evidence, a model or a bundle in a form that others take.

Sealed evidence becomes a CycloneDX ML-BOM, in-toto, SARIF or a model card. A model, a run's folder or a bundle becomes
a model repository for Triton (--as triton); a bundle becomes a container that serves it (--as dockerfile).

Evidence is verified first, from its raw samples up; a file in which something differs is refused. Only SARIF, which
tells what is wrong, is written then too. With --key the signature has to be by that key; without, it is not checked,
and what is written says so. The same evidence and keys give the same bytes.

exit codes: 0 written, 4 the evidence or the bundle does not hold
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import registry
from ..errors import InputError, TrustError
from . import _serving
from .show import Show


def arguments(parser: argparse.ArgumentParser) -> None:
    """File, format and keys."""
    parser.add_argument("file", metavar="FILE", help="sealed evidence (edgeproof seal); or a model, a run, a bundle")
    names = ", ".join((*registry.names("standards"), *_serving.FORMATS))
    parser.add_argument("--as", dest="name_as", required=True, metavar="NAME", help=f"one of {names}")
    parser.add_argument("--key", action="append", default=[], metavar="PUB", help="public key that may seal or sign")
    parser.add_argument("--out", metavar="OUT", help="file or folder to write; default: by FILE's name")
    _serving.arguments(parser)


def run(args: argparse.Namespace, show: Show) -> int:
    """Verify, write, and say what was written."""
    if args.name_as in _serving.FORMATS:
        return _serving.run(args, show)
    from ..bundle.keys import load_public
    from ..digest import digest_bytes
    from ..files import write_bytes
    from ..standards import export, read_verified

    standard = registry.load("standards", args.name_as)
    keys = [load_public(Path(k)) for k in args.key]
    path = Path(args.file)
    out = Path(args.out) if args.out else path.with_suffix(standard.suffix)
    if out == path or (out.exists() and path.exists() and out.samefile(path)):
        raise InputError("usage.arguments", "--out", f"is {out}, the evidence itself", "give another file")
    evidence = read_verified(path, keys)
    data = export(evidence, args.name_as, keys)
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
            "as": args.name_as,
            "digest": digest_bytes(data),
            "state": found.state,
            "trusted": found.trusted,
            "differences": [d.to_json() for d in found.differences],
        }
    )
    holds = not found.differences and (found.trusted or not keys)
    return 0 if holds else TrustError.exit_code
