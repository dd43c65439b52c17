"""Make a signed bundle of a model that was accepted.

Refuses unless the evidence verifies as an accept, is sealed by a key given with --evidence-key, and is about exactly
these bytes. Weights that lie beside the model go along. What the bundle promises on the device (its SLA) follows from
the absolute limits of the policy in the evidence; --sla FILE gives another:

  {"objectives": [{"metric": "latency", "statistic": "p95", "op": "<=", "limit": "80", "window": 100, "k": 3, "n": 5}],
   "hard": [{"metric": "temperature", "op": "<=", "limit": "95"}, {"metric": "crashes", "op": "<=", "limit": "0"}]}

Devices are compared exactly with --device; without one, nobody may install the bundle. --manifest takes a manifest of
the form {name, format, hash, size, device_allow, min_driver, rollback} for what is not given as a flag.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from . import whole_number
from ._signing import key_flags, signers
from .show import Show, quantity

if TYPE_CHECKING:
    from ..bundle.pack import Order
    from ..manifest import Manifest, Runtime, Sla


def arguments(parser: argparse.ArgumentParser) -> None:
    """Evidence, model, and what the bundle is to be."""
    parser.add_argument("evidence", metavar="EVIDENCE", help="sealed evidence (edgeproof seal)")
    parser.add_argument("model", metavar="MODEL", help="the model that it accepts")
    key_flags(parser, "private key of the product line; may be given several times")
    parser.add_argument(
        "--evidence-key", metavar="PUB", action="append", default=[], required=True, help="key that sealed the evidence"
    )
    parser.add_argument("--name", help="name of the bundle, e.g. plate-reader")
    parser.add_argument("--line", help="product line (default: the name)")
    parser.add_argument("--bundle-version", type=whole_number, help="counts up with every bundle of this name")
    parser.add_argument("--security-version", type=whole_number, default=0, help="counts up when older ones must go")
    parser.add_argument("--device", metavar="NAME", action="append", default=[], help="device that may install it")
    parser.add_argument("--min-driver", metavar="V", default="", help="earliest driver version")
    parser.add_argument("--max-driver", metavar="V", default="", help="latest driver version")
    parser.add_argument(
        "--runtime", metavar="NAME[:MIN[:MAX]]", action="append", default=[], help="e.g. onnxruntime:1.20:1.32"
    )
    parser.add_argument("--sla", metavar="FILE", help="what it promises on the device (JSON)")
    parser.add_argument("--trial-seconds", type=whole_number, default=3600, help="longest trial (default: 3600)")
    parser.add_argument("--boots", type=whole_number, default=3, help="starts on trial before it failed (default: 3)")
    parser.add_argument("--samples", type=whole_number, default=500, help="samples behind a commit (default: 500)")
    parser.add_argument("--card", metavar="FILE", help="a file for people that goes along (Markdown)")
    parser.add_argument("--manifest", metavar="JSON", help="name, devices and driver from a manifest of the short form")
    parser.add_argument("--out", metavar="FILE", help="default: NAME-VERSION.bundle")


def run(args: argparse.Namespace, show: Show) -> int:
    """Verify, pack, sign."""
    from ..bundle.keys import load_public
    from ..bundle.pack import pack
    from ..bundle.promise import describe

    order = _order(args)
    out = Path(args.out or f"{order.name}-{order.bundle_version}.bundle")
    for given in (args.evidence, args.model, args.card, args.sla, args.manifest, *args.key, *args.evidence_key):
        if given and out.exists() and Path(given).exists() and out.samefile(given):
            raise InputError("usage.arguments", "--out", f"is {out}, which goes into the bundle", "give another file")
    packed = pack(
        Path(args.evidence),
        Path(args.model),
        order,
        trusted=[load_public(Path(path)) for path in args.evidence_key],
        signers=signers(args),
        out=out,
        now=datetime.now(UTC),
    )
    manifest = packed.manifest
    show.text(f"  {packed.path}: {manifest.label} for {', '.join(manifest.device_allow) or 'no device'}")
    for line in describe(manifest.sla, manifest.rollback):
        show.text(f"    {line}")
    rows = [
        [file.path, quantity(file.size, "bytes"), file.sha256.removeprefix("sha256:")[:12]] for file in manifest.files
    ]
    show.table(["file", "size", "sha256"], rows, right="lr")
    if not manifest.device_allow:
        show.note("no --device was given: no device may install it")
    show.result({"path": str(out), "digest": packed.digest, "manifest": manifest.to_json()})
    return 0


def _order(args: argparse.Namespace) -> Order:
    from ..bundle.pack import Order
    from ..manifest import Rollback

    seed = _seed(args.manifest)
    name = args.name or (seed.name if seed else "")
    if not name or not args.bundle_version:
        missing = "--name" if not name else "--bundle-version, from 1"
        raise InputError("usage.arguments", "edgeproof pack", f"needs {missing}", "run 'edgeproof pack --help'")
    return Order(
        name=name,
        product_line=args.line or name,
        bundle_version=args.bundle_version,
        security_version=args.security_version,
        device_allow=tuple(dict.fromkeys(args.device)) or (seed.device_allow if seed else ()),
        min_driver=args.min_driver or (seed.min_driver if seed else ""),
        max_driver=args.max_driver,
        runtime=tuple(_runtime(text) for text in args.runtime),
        sla=_sla(args.sla),
        rollback=Rollback(args.trial_seconds, args.boots, args.samples),
        card=Path(args.card) if args.card else None,
        expected=seed.model_sha256 if seed else "",
    )


def _seed(path: str | None) -> Manifest | None:
    from ..bundle.reading import from_seed

    return None if path is None else from_seed(_json(path), path)


def _sla(path: str | None) -> Sla | None:
    from ..bundle.reading import sla_from

    return None if path is None else sla_from(_json(path), path)


def _json(path: str) -> object:
    from ..files import os_error, plain
    from ..manifest import LIMIT_BYTES
    from ..strictjson import loads

    try:
        data = plain(Path(path)).read_bytes()
    except OSError as e:
        raise os_error(Path(path), e) from e
    return loads(data, path, limit_bytes=LIMIT_BYTES)


def _runtime(text: str) -> Runtime:
    from ..manifest import Runtime

    parts = text.split(":")
    if len(parts) > 3:
        raise InputError("usage.arguments", "--runtime", f"is {text!r}; expected NAME[:MIN[:MAX]]", "onnxruntime:1.20")
    return Runtime(*parts)
