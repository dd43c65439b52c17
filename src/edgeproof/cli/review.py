"""Review a change of a model with measurements from anywhere: freeze, decide, seal.

  edgeproof review prepare FOLDER --baseline A.onnx --candidate B.onnx --policy P --change TEXT --receipt runs/bench
  edgeproof review run FOLDER --key K --out evidence.zip

'prepare' freezes both models (ONNX, TFLite, OpenVINO IR, engines; of different formats where the policy maps the
interface), the policy, every receipt and the change in words. --receipt takes a bench, a finished run, a receipt or the
documented JSON; records of MLflow, Olive, trtexec and benchmark_app go to --baseline-receipt, --control-receipt and
--candidate-receipt. Records of one tool, one for each process, are joined by commas; #NAME picks a model of several.

'run' refuses what was changed since, compares the structures, decides, and writes evidence for 'edgeproof verify'.

exit codes of 'run': 0 accept, 1 reject, 5 hold
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import VERDICT_EXIT, InputError
from . import whole_number
from ._signing import key_flags, signers
from .show import Show

if TYPE_CHECKING:
    from ..review import Prepared, Reviewed
    from ..review.gather import Given, Unused

SIDES = ("", "baseline", "control", "candidate")


def arguments(parser: argparse.ArgumentParser) -> None:
    """What to do, and with what."""
    parser.add_argument("action", choices=("prepare", "run"), help="see above")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the review; prepare: a new folder")
    parser.add_argument("--baseline", type=Path, metavar="A", help="prepare: the model as it was")
    parser.add_argument("--candidate", type=Path, metavar="B", help="prepare: the changed model")
    parser.add_argument("--policy", metavar="P", help="prepare: policy file (YAML) or built-in name (default: default)")
    parser.add_argument("--change", metavar="TEXT", help="prepare: what was changed, and why, in words")
    for side in SIDES:
        flag, of = (f"--{side}-receipt", f"of the {side}") if side else ("--receipt", "whose digests tell the model")
        parser.add_argument(
            flag, action="append", default=[], metavar="PATH[#NAME]", help=f"prepare: measurements {of}"
        )
    parser.add_argument("--metric", metavar="M", help="prepare: what 'quality' stands for; default: what was scored")
    key_flags(parser, "run: private key to sign with; without one, nobody has a reason to trust it", required=False)
    parser.add_argument("--out", metavar="FILE", help="run: default: evidence.zip in FOLDER")
    parser.add_argument("--frozen", metavar="DIGEST", help="run: refuse a review that 'prepare' did not freeze so")
    parser.add_argument("--timestamp", metavar="T", help="run: default: SOURCE_DATE_EPOCH, else now")
    parser.add_argument(
        "--valid", type=whole_number, default=365, metavar="DAYS", help="run: how long an accept holds (default: 365)"
    )


def run(args: argparse.Namespace, show: Show) -> int:
    """Prepare a review, or decide one."""
    return _prepare(args, show) if args.action == "prepare" else _run(args, show)


def _prepare(args: argparse.Namespace, show: Show) -> int:
    from ..evaluate import metric_units
    from ..policy import load_policy
    from ..review import prepare

    for flag in ("baseline", "candidate", "change"):
        if getattr(args, flag) is None:
            raise InputError("usage.arguments", "edgeproof review prepare", f"needs --{flag}", "see --help")
    done = prepare(
        args.folder,
        baseline=args.baseline,
        candidate=args.candidate,
        policy=load_policy(args.policy or "default", metric_units()),
        change=args.change,
        given=_given(args),
        metric=args.metric or "",
    )
    _show_prepared(done, show)
    return 0


def _given(args: argparse.Namespace) -> list[Given]:
    from ..review.gather import Given

    found = []
    for side in SIDES:
        for text in getattr(args, f"{side}_receipt" if side else "receipt"):
            names, _, label = text.partition("#")
            found.append(Given(tuple(Path(n) for n in names.split(",")), side, label))  # type: ignore[arg-type]
    return found


def _show_prepared(done: Prepared, show: Show) -> None:
    from .compare import show_comparison

    show_comparison(*done.structures, done.comparison, show)
    rows = [
        [role, r.kind, r.source, str(len(r.runs)), ", ".join(f"{n} ({len(s.samples)})" for n, s in r.scores.items())]
        for role, r in done.receipts
    ]
    show.table(["side", "receipt", "from", "processes", "scores (samples)"], rows, right="lllr")
    _show_aside(done.unused, done.notes, show)
    show.text(f"frozen  {done.frozen}")
    if not done.receipts:
        show.text("note  there is no receipt: every rule will hold; give --receipt, into a new folder")
    show.text(f"decide with  edgeproof review run {done.folder} --frozen {done.frozen} --key KEY --out FILE")
    show.result(
        {
            "folder": str(done.folder),
            "frozen": done.frozen,
            "comparison": done.comparison.to_json(),
            "receipts": [
                {"role": role, "digest": r.digest, "kind": r.kind, "source": r.source, "original": r.original}
                for role, r in done.receipts
            ],
            "unused": [{"what": u.what, "why": u.why} for u in done.unused],
            "claims": [
                {"role": role, "name": c.name, "value": c.value, "unit": c.unit, "metric": c.metric}
                for role, c in done.claims
            ],
            "notes": list(done.notes),
        }
    )


def _show_aside(unused: Sequence[Unused], notes: Sequence[str], show: Show) -> None:
    for u in unused:
        show.text(f"set aside  {u.what}: {u.why}")
    for note in notes:
        show.text(f"note  {note}")


def _run(args: argparse.Namespace, show: Show) -> int:
    from ..review import run as decide
    from .seal import after, now

    keys = signers(args)
    if len(keys) > 1:
        raise InputError("usage.arguments", "--key", "was given more than once; evidence has one signer", "give one")
    timestamp = args.timestamp or now()
    done = decide(
        args.folder,
        Path(args.out) if args.out else args.folder / "evidence.zip",
        signers=keys,
        timestamp=timestamp,
        expires=after(timestamp, args.valid),
        frozen=args.frozen or "",
    )
    _show_verdict(done, show)
    return VERDICT_EXIT[done.sealed.verdict.state]


def _show_verdict(done: Reviewed, show: Show) -> None:
    sealed = done.sealed
    show.table(["", "rule", "why"], [[c.state, str(c.rule), c.reason] for c in sealed.verdict.checks])
    _show_aside(done.unused, done.notes, show)
    for difference in sealed.differences:
        show.text(f"differs  {difference}")
    show.text(f"{sealed.verdict.state}: {sealed.verdict.why}")
    show.text(f"{sealed.path}  {sealed.digest}")
    if not sealed.signed:
        show.note("not signed: 'edgeproof keys new' makes a key, --key signs with it")
    show.result(
        {
            "path": str(sealed.path),
            "digest": sealed.digest,
            "signed": sealed.signed,
            "candidate": sealed.candidate,
            "verdict": sealed.verdict.to_json(),
            "unused": [{"what": u.what, "why": u.why} for u in done.unused],
            "notes": list(done.notes),
            "differences": [d.to_json() for d in sealed.differences],
        }
    )
