"""Show a quantised model layer by layer, and the values of one tensor: the ``--quant`` and ``--tensor`` of inspect."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, did_you_mean
from ..files import read_json, write_text
from .show import Show

if TYPE_CHECKING:
    from ..dataset import Feeds
    from ..model import Model
    from ..protocols import Session
    from ..quant.explain import LayerRow
    from ..quant.histogram import Histogram
    from ..target import Target

NAMES = 8
"""Nodes named per reason; --layers and --json give all."""


def show_quantised(args: argparse.Namespace, show: Show) -> int:
    """Show layers, or one tensor."""
    from ..model import load_model
    from ..runtimes import find_target

    model = load_model(args.model)
    target = find_target((args.target or "onnxruntime:cpu"), {}, run=False)
    folder = _candidate(args.model)
    path = args.against or _float_model(folder)
    reference = load_model(path) if path is not None else None
    if args.tensor is not None:
        return _tensor(args, show, model, reference, target)
    return _layers(args, show, model, reference, target, folder)


def _candidate(path: Path) -> Path | None:
    """The candidate's folder when a model lies in a run, or is a run's best."""
    if (path.parent / "change.json").is_file():
        return path.parent
    if path.name == "best.onnx" and (path.parent / "best.json").is_file():
        folder = path.parent / "candidates" / str(read_json(path.parent / "best.json").get("name"))
        return folder if (folder / "change.json").is_file() else None
    return None


def _float_model(folder: Path | None) -> Path | None:
    """The clean float graph of the same run, when the quantised model was made from it."""
    from ..quant.explain import quantising_step

    path = None if folder is None else folder.parent / "float" / "model.onnx"
    if folder is None or path is None or not path.is_file():
        return None
    change, clean = read_json(folder / "change.json"), read_json(path.with_name("change.json"))
    steps = [c.get("recipe", {}).get("steps", []) for c in (change, clean)]
    return path if steps[0][: quantising_step(change)] == steps[1] else None


def _compile(target: Target) -> Callable[[Model], Session]:
    from ..runtimes import compile_for, observer

    place = observer(target)
    return lambda model: compile_for(place, model)


def _feeds(args: argparse.Namespace, model: Model) -> Iterator[Feeds] | None:
    if args.data is None:
        return None
    from ..dataset import load_spec
    from ..evaluate import open_dataset

    if args.samples < 1:
        raise InputError("inspect.samples", f"--samples {args.samples}", "expected 1 or more", "leave it out")
    dataset = open_dataset(load_spec(args.data), model)
    return islice((dataset[i].feeds for i in range(len(dataset))), args.samples)


def _layers(
    args: argparse.Namespace,
    show: Show,
    model: Model,
    reference: Model | None,
    target: Target,
    folder: Path | None,
) -> int:
    from ..graph.quantised import is_quantised
    from ..quant.explain import explain, measure, pass_facts

    if not is_quantised(model.graph.graph):
        raise InputError(
            "inspect.not_quantised",
            str(args.model),
            "holds no quantised tensor (no QuantizeLinear, DequantizeLinear or integer operator)",
            "edgeproof apply int8 MODEL --data D --out FILE makes one",
        )
    facts, reasons = pass_facts(read_json(folder / "change.json")) if folder is not None else ({}, {})
    feeds = _feeds(args, model)
    seen = measure(model, _compile(target), feeds, reference) if feeds is not None else {}
    rows = explain(model, target.scheme, reference=reference, kept=facts, seen=seen, reasons=reasons)
    timed = _timed(rows, folder)
    if args.trt_cache is not None:
        _write_trt_cache(args.trt_cache, model, show)
    if show.json:
        result = {
            "model": str(args.model),
            "digest": model.digest,
            "target": target.name,
            "against": reference.name if reference is not None else None,
            "samples": args.samples if seen else 0,
            "layers": [{**row.to_json(), **timed.get(row.name, {})} for row in rows],
            "tensors": {name: asdict(s) for name, s in seen.items()},
        }
        show.result(result)
        return 0
    integer = [row for row in rows if row.precision != "float"]
    show.text(f"{model.name}: {len(integer)} of {len(rows)} operators are quantised, for {target.name}")
    show.text(_sources(rows, reference, args, bool(seen)))
    _table(integer, timed, show)
    _in_float(rows, show, everything=args.layers)
    return 0


def _write_trt_cache(path: Path, model: Model, show: Show) -> None:
    """The activations' ranges as a calibration cache; TensorRT takes the larger side of each."""
    from ..graph.quantised import coded
    from ..quant.trt_cache import from_ranges, write_cache

    held = {c.name: c.range for c in coded(model.graph.graph).values() if c.kind == "activation"}
    write_cache(path, from_ranges(held))
    show.text(f"wrote {path} ({len(held)} tensors)")


def _timed(rows: list[LayerRow], folder: Path | None) -> dict[str, dict[str, Any]]:
    """Node → times before and after, as the run measured them."""
    path = folder / "layers.json" if folder is not None else None
    if path is None or not path.is_file():
        return {}
    known = {row.name for row in rows}
    kept = [r for r in read_json(path).get("quantised", ()) if isinstance(r, dict) and r.get("name") in known]
    return {r["name"]: {k: r.get(k) for k in ("before_ms", "after_ms")} for r in kept}


def _sources(rows: list[LayerRow], reference: Model | None, args: argparse.Namespace, measured: bool) -> str:
    parts = [f"activations measured on {args.samples} samples at most" if measured else "no --data: nothing measured"]
    if any(row.clipped_from == "calibration" for row in rows):
        parts.append("clipped shares as calibration saw them")
    if any(row.weight_from == "estimated" for row in rows):
        parts.append("SQNR of weights marked ~ is estimated from the step (no float model; give --against)")
    if reference is not None:
        parts.append(f"errors against {reference.name}")
    return "; ".join(parts)


def _table(rows: list[LayerRow], timed: dict[str, dict[str, Any]], show: Show) -> None:
    columns = [
        "layer",
        "operator",
        "precision",
        "range",
        "step",
        "zero",
        "clipped",
        "SQNR in",
        "arrived",
        "weight SQNR",
    ]
    right = "lllrrrrrrr"
    if timed:
        columns, right = [*columns, "ms before", "after"], right + "rr"
    body = []
    for row in rows:
        cells = [
            row.name,
            row.op,
            row.precision,
            "" if row.low is None or row.high is None else f"{row.low:.4g} … {row.high:.4g}",
            "" if row.scale is None else f"{row.scale:.4g}",
            "" if row.zero_point is None else str(row.zero_point),
            "" if row.clipped_share is None else f"{row.clipped_share:.3%}",
            _db(row.input_db),
            _db(row.arrived_db),
            ("~" if row.weight_from == "estimated" else "") + _db(row.weight_db),
        ]
        if timed:
            cells += [_ms(timed.get(row.name, {}).get(k)) for k in ("before_ms", "after_ms")]
        body.append(cells)
    show.table(columns, body, right=right)


def _in_float(rows: list[LayerRow], show: Show, *, everything: bool) -> None:
    groups: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.reason:
            groups[row.reason].append(f"{row.name} ({row.op})")
    show.text(f"Left in float: {sum(map(len, groups.values())) or 'none'}")
    for reason, names in sorted(groups.items(), key=lambda kv: -len(kv[1])):
        shown = names if everything else names[:NAMES]
        more = f" and {len(names) - len(shown)} more; --layers names all" if len(names) > len(shown) else ""
        show.text(f"  {reason} ({len(names)})")
        show.text(f"    {', '.join(shown)}{more}")


def _db(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} dB"


def _ms(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else ""


def _tensor(args: argparse.Namespace, show: Show, model: Model, reference: Model | None, target: Target) -> int:
    """One tensor's values, its range, and a picture of both."""
    from ..graph.quantised import coded
    from ..quant.ranges import METHODS, clipped_share, find_range

    histogram, source = _values(args, model, reference, target)
    pair = next((c for c in coded(model.graph.graph).values() if args.tensor in _names(c.name)), None)
    chosen: dict[str, tuple[float, float]] = {m: find_range(histogram, m) for m in METHODS}
    if pair is not None:
        chosen = {"chosen": pair.range}
    low, high = histogram.bounds()
    result = {
        "tensor": args.tensor,
        "values": histogram.seen,
        "from": source,
        "min": low,
        "max": high,
        "dtype": pair.dtype if pair is not None else None,
        "scales": int(pair.scale.size) if pair is not None else 0,
        "ranges": {
            name: {"low": r[0], "high": r[1], "clipped_share": clipped_share(histogram, r)}
            for name, r in chosen.items()
        },
        "picture": str(args.picture) if args.picture is not None else None,
    }
    if args.picture is not None:
        from ..report.distribution import picture

        step = float(pair.scale.reshape(-1)[0]) if pair is not None and pair.scale.size == 1 else None
        write_text(args.picture, picture(args.tensor, source, histogram, chosen, step))
    show.result(result)
    show.text(f"{args.tensor}: {histogram.seen:,} values of {source}, from {low:.5g} to {high:.5g}")
    if pair is not None:
        show.text(f"held as {pair.dtype} with {pair.scale.size} scale{'s' if pair.scale.size != 1 else ''}")
    else:
        show.text("not quantised here; the ranges that the methods would choose:")
    for name, r in chosen.items():
        show.text(f"  {name:<11}{r[0]:.5g} … {r[1]:.5g}, clips {clipped_share(histogram, r):.3%}")
    if args.picture is not None:
        show.text(f"wrote {args.picture}")
    return 0


def _values(args: argparse.Namespace, model: Model, reference: Model | None, target: Target) -> tuple[Histogram, str]:
    """A histogram of the tensor, and what it is of: a stored tensor, or an activation over samples.

    Raises:
        InputError: inspect.tensor, inspect.data.
    """
    from ..graph.quantised import coded
    from ..graph.rewrite import array
    from ..quant.calibration import calibrate
    from ..quant.histogram import Histogram

    name: str = args.tensor
    stored = {n: v for m in (model, reference) if m is not None for n, v in m.graph.graph.initializers.items()}
    constants = {v.name: v for n in model.graph.graph if n.op_type == "Constant" for v in n.outputs}
    held = next((c for c in coded(model.graph.graph).values() if name in _names(c.name)), None)
    weight = array(stored.get(name) or constants.get(name))
    histogram = Histogram(thin=False)
    if weight is not None and weight.dtype.kind == "f":
        histogram.update(weight)
        return histogram, "the float weight"
    if held is not None and held.kind != "activation":
        real = held.real()
        assert real is not None
        histogram.update(real)
        return histogram, f"the {held.kind}, as its {held.dtype} codes are read back"
    known = {v.name or "" for n in model.graph.graph for v in n.outputs} | {s.name for s in model.inputs}
    if name not in known:
        near = did_you_mean(name, {*known, *stored} - {""})
        hint = near if near.startswith("did") or len(near) < 300 else "--quant and --layers show what there is"
        raise InputError("inspect.tensor", name, f"is no tensor of {model.name}", hint)
    feeds = _feeds(args, model)
    if feeds is None:
        raise InputError(
            "inspect.data", name, "is an activation: its values depend on the input", "give samples with --data"
        )
    found = calibrate(model, [name], _compile(target), feeds)[name]
    if not found.seen:
        raise InputError("inspect.tensor", name, "holds no floating-point value", "choose another tensor")
    return found, f"the activation, over {args.samples} samples at most"


def _names(name: str) -> tuple[str, ...]:
    """What a quantised tensor may be called: as it is, or as the weight that its codes were made from."""
    return (name, *(name.removesuffix(s) for s in (".int8", ".uint8", ".int4", ".uint4", ".int32") if name.endswith(s)))
