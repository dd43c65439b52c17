"""Decide accept, reject or hold from kept measurements.

Takes the bench.json of 'edgeproof bench', the result.json of 'edgeproof optimize', or the folder of either, and decides
again from the raw samples in it. Of several candidates all must be accepted.

built-in policies: default (quality, p95, throughput), default-power (power and temperature besides), speed (p50 and p95
no slower than the baseline; the one for a bench, which never measures quality)

exit codes: 0 accept, 1 reject, 5 hold
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import VERDICT_EXIT, State
from .show import Show

if TYPE_CHECKING:
    from ..policy import Policy, Verdict


def arguments(parser: argparse.ArgumentParser) -> None:
    """Policy and files."""
    parser.add_argument("results", metavar="RESULT", nargs="+", help="result.json, bench.json, or their folder")
    parser.add_argument(
        "--policy", default="default", metavar="P", help="policy file (YAML), or default, default-power or speed"
    )


def run(args: argparse.Namespace, show: Show) -> int:
    """Decide on every candidate in every file."""
    from ..benchfile import cases
    from ..evaluate import metric_units
    from ..gate import decide
    from ..policy import load_policy

    policy = load_policy(args.policy, metric_units())
    verdicts: list[tuple[str, Verdict]] = []
    for path in args.results:
        spent = _spent(Path(path), policy)
        for case in cases(Path(path), policy):
            verdict = decide(
                policy,
                case.baseline,
                case.candidate,
                quality_metric=case.quality_metric,
                control=case.control,
                absent=case.absent,
                metrics=case.metrics,
                spent=spent,
            )
            verdicts.append((case.name, verdict))
    state = overall([v.state for _, v in verdicts])
    for name, verdict in verdicts:
        rows = [[c.state, str(c.rule), c.reason] for c in verdict.checks]
        show.table(["", "rule", "why"], rows, title=f"{name}: {verdict.state}")
    show.text(f"  {state}: {_summary(state, verdicts)}")
    verdicts_json = [{"name": name, **verdict.to_json()} for name, verdict in verdicts]
    show.result({"state": state, "policy": policy.to_json(), "verdicts": verdicts_json})
    return VERDICT_EXIT[state]


def _spent(path: Path, policy: Policy) -> int:
    """Confirmations that the ledger of a run shows under this very policy; 0 where there is no ledger."""
    from ..workspace import Workspace, confirmations

    folder = path if path.is_dir() else path.parent
    if not (folder / "request.json").is_file():
        return 0
    return confirmations([v for v in Workspace.open(folder).ledger() if v.get("policy") == policy.digest])


def overall(states: list[State]) -> State:
    """Reject if any is rejected, accept if all are accepted, else hold."""
    if "reject" in states:
        return "reject"
    return "accept" if states and all(s == "accept" for s in states) else "hold"


def _summary(state: State, verdicts: list[tuple[str, Verdict]]) -> str:
    if not verdicts:
        return "there is no measured candidate"
    return next(verdict.why for _, verdict in verdicts if verdict.state == state)
