"""Layers that records tell of: joined by name, as a placement, and as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from ..measurement import LayerTime, Placement

SLOWEST = 3
"""Layers that are named as the slowest."""
MOVING = ("Reformat", "NoOp", "Shuffle", "Cast")
"""Layers that only change type or layout: one beside a DLA is no fallback."""


def joined_layers(records: Iterable[Sequence[LayerTime]]) -> tuple[LayerTime, ...]:
    """One list of layers from several about the same engine: times from the one, types from the other.

    Args:
        records: Lists of layers, by the tool's names.

    Returns:
        The layers of the first list that has times, where one has; else all, without times.
    """
    lists = sorted((r for r in records if r), key=lambda r: not any(x.time_ns for x in r))
    timed = bool(lists) and any(x.time_ns for x in lists[0])
    found: dict[str, LayerTime] = {}
    for i, layers in enumerate(lists):
        for x in layers:
            one = found.get(x.name)
            if one is not None:
                found[x.name] = LayerTime(
                    one.name,
                    one.op or x.op,
                    "DLA" if "DLA" in (one.device, x.device) else one.device or x.device,
                    one.precision or x.precision,
                    one.time_ns or x.time_ns,
                    one.kernel or x.kernel,
                )
            elif i == 0 or not timed:
                found[x.name] = x
    return tuple(found.values())


def placement_of(layers: Sequence[LayerTime], source: str) -> Placement | None:
    """Where layers ran; None when nothing is known but their times.

    Args:
        layers: From a record.
        source: Its format.
    """
    if not any(x.op or x.precision for x in layers):
        return None
    nodes = tuple((x.name, x.op, x.device, x.precision) for x in layers)
    mixed = any(x.device == "DLA" for x in layers)
    left = [x for x in layers if x.device == "GPU" and x.op not in MOVING and "Reformat" not in x.name] if mixed else []
    why = "ran on the GPU, beside layers on the DLA"
    return Placement(nodes, tuple((x.name, why) for x in left), f"{source} layer information")


def layer_notes(layers: Sequence[LayerTime]) -> Iterator[str]:
    """What a reader should know of layers: how many in which precision, what left the DLA, and the slowest."""
    if not layers:
        return
    kinds = Counter(x.precision for x in layers if x.precision)
    if kinds:
        yield f"{len(layers)} layers: {', '.join(f'{n} {p}' for p, n in kinds.most_common())}"
    placement = placement_of(layers, "")
    if placement is not None and placement.fallbacks:
        on = sum(x.device == "DLA" for x in layers)
        yield f"on the DLA: {on} of {len(layers)} layers; beside them on the GPU: {len(placement.fallbacks)}"
    times = {x.name: fmean(x.time_ns) / 1e6 for x in layers if x.time_ns}
    total = sum(times.values())
    if total:
        slow = sorted(times, key=lambda n: -times[n])[:SLOWEST]
        told = ", ".join(f"{name} {times[name]:.3f} ms ({times[name] / total:.0%})" for name in slow)
        yield f"{total:.3f} ms in {len(times)} layers; the slowest: {told}"
