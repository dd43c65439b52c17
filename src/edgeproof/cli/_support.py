"""`edgeproof inspect --target`: nodes that would not run there as asked, with why and what to do about it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from .show import Show

if TYPE_CHECKING:
    from ..support import State
    from ..support.nodes import NodeSupport, Support

TITLES: tuple[tuple[State, str], ...] = (("fails", "fail"), ("falls back", "fall back"), ("unknown", "are not known"))
NAMED = 3
SHOWN = 12


def show_support(found: Support, show: Show, *, everything: bool) -> None:
    """A section of the inspection.

    Args:
        found: What becomes of the nodes.
        show: Where it goes.
        everything: Show all of them.
    """
    counts = found.counts
    parts = [f"{counts['runs']} of {len(found.nodes)} nodes run as asked"]
    parts += [f"{counts[state]} {verb}" for state, verb in TITLES if counts[state]]
    show.text()
    show.text(f"On {found.target}: {', '.join(parts)}")
    show.wrapped(f"{found.kind}: {found.source}", indent=2)
    for note in found.notes:
        show.wrapped(note, indent=2)
    for state, verb in TITLES:
        _groups([n for n in found.nodes if n.state == state], verb, show, everything=everything)
    limits = {n.operator: n.why for n in found.nodes if n.state == "runs" and n.why}
    if limits:
        show.wrapped("within limits: " + "; ".join(f"{op} ({why})" for op, why in sorted(limits.items())), indent=2)


def _groups(nodes: list[NodeSupport], verb: str, show: Show, *, everything: bool) -> None:
    """Nodes that share operator, reason and remedy, in one entry."""
    groups: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for n in nodes:
        groups[(n.operator, n.precision, n.why, n.hint)].append(n.node)
    ordered = sorted(groups.items(), key=lambda kv: -len(kv[1]))
    for (operator, precision, why, hint), names in ordered if everything else ordered[:SHOWN]:
        named = names if everything else names[:NAMED]
        more = f" and {len(names) - len(named)} more" if len(names) > len(named) else ""
        show.text(f"  {operator} in {precision.upper()} ({len(names)}): {', '.join(named)}{more}")
        show.wrapped(f"{verb}: {why}", indent=4)
        if hint:
            show.wrapped(f"hint: {hint}", indent=4)
    if not everything and len(ordered) > SHOWN:
        show.text(f"  and {len(ordered) - SHOWN} kinds more that {verb}; --layers shows all")
