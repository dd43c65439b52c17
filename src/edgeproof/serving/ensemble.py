"""Several models behind one name: what comes before a model, the model, and what comes after, in one request.

The ensemble has the name; its parts are called NAME-pre, NAME-net and NAME-post. A tensor flows to the next part's
input of the same name, or, where one output meets one input, whatever they are called. What no part makes is asked of
the client; what the last part makes is answered.

Source: Triton Inference Server, *Ensemble Models*: scheduling by steps, each with a map of its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import InputError
from ..files import write_text
from ..model import Model, TensorSpec
from . import new_folder, written
from .pbtxt import Value, pbtxt
from .triton import Served, Triton, batch_of, check_served_name, tensor, write_model


@dataclass(slots=True)
class _Wiring:
    """What is known while walking along the parts.

    Attributes:
        made: Tensor of a part before → (name in the ensemble, what it is).
        previous: Those of the part just before.
        asked: Inputs of the ensemble.
        steps: Its steps.
    """

    made: dict[str, tuple[str, TensorSpec]] = field(default_factory=dict)
    previous: list[tuple[str, TensorSpec]] = field(default_factory=list)
    asked: list[TensorSpec] = field(default_factory=list)
    steps: list[Value] = field(default_factory=list)


def write_ensemble(parts: Sequence[tuple[str, Served]], name: str, repository: Path, settings: Triton) -> list[Path]:
    """Add an ensemble and its parts to a repository.

    Args:
        parts: (``pre``, ``net`` or ``post``, model) in the order in which they run.
        name: Of the ensemble.
        repository: The repository.
        settings: For the part ``net``; the others run in ONNX Runtime on the CPU, one inference at a time.

    Returns:
        The files written.

    Raises:
        InputError: serving.ensemble, and as `write_model`.
        UnsupportedError: As `write_model`.
    """
    batches = {part: batch_of(served.model, settings.max_batch) for part, served in parts}
    batch = min(batches.values())
    if batch == 0 and any(batches.values()):
        fixed = ", ".join(f"{name}-{part}" for part, n in batches.items() if not n)
        problem = f"has parts that take batches and parts that do not ({fixed})"
        raise InputError("serving.ensemble", name, problem, "open the first dimension of all parts, or of none")
    text = ensemble_config(parts, name, batch)
    files: list[Path] = []
    beside = Triton(version=settings.version, max_batch=batch, policy=settings.policy)
    for part, served in parts:
        chosen = replace(settings, max_batch=batch) if part == "net" else beside
        files += write_model(replace(served, name=f"{name}-{part}"), repository, chosen)
    out = repository / name
    with new_folder(out) as folder:
        write_text(folder / "config.pbtxt", text)
        (folder / str(settings.version)).mkdir()
        # An ensemble's version has no file; one keeps the folder through tools that drop empty ones.
        write_text(folder / str(settings.version) / ".keep", "")
    return [*files, *written(out)]


def ensemble_config(parts: Sequence[tuple[str, Served]], name: str, batch: int) -> str:
    """The text of the ensemble's ``config.pbtxt``.

    Raises:
        InputError: serving.name, serving.ensemble.
        UnsupportedError: serving.dtype, serving.rank.
    """
    check_served_name(name)
    wiring = _Wiring()
    for i, (part, served) in enumerate(parts):
        last = i + 1 == len(parts)
        _step(wiring, f"{name}-{part}", served.model, last=last, batch=batch)
    message: dict[str, Value] = {
        "name": name,
        "platform": "ensemble",
        "max_batch_size": batch,
        "input": [tensor(s, batch) for s in wiring.asked],
        "output": [tensor(s, batch) for s in parts[-1][1].model.outputs],
        "ensemble_scheduling": {"step": wiring.steps},
    }
    return pbtxt(message)


def _step(wiring: _Wiring, called: str, model: Model, *, last: bool, batch: int) -> None:
    feeds: list[Value] = []
    alone = len(wiring.previous) == 1 and len(model.inputs) == 1
    for spec in model.inputs:
        found = wiring.made.get(spec.name) or (wiring.previous[0] if alone else None)
        if found is None:
            if any(a.name == spec.name for a in wiring.asked):
                problem = f"asks for {spec.name!r}, which an earlier part asks for too"
                raise InputError("serving.ensemble", called, problem, "give the inputs different names")
            wiring.asked.append(spec)
            source = spec.name
        else:
            source, made = found
            _fit(called, spec, made, batch)
        feeds.append({"key": spec.name, "value": source})
    inside = {spec.name: spec.name if last else f"{called}.{spec.name}" for spec in model.outputs}
    gives: list[Value] = [{"key": name, "value": outside} for name, outside in inside.items()]
    wiring.previous = [(inside[spec.name], spec) for spec in model.outputs]
    wiring.made |= {spec.name: made for spec, made in zip(model.outputs, wiring.previous, strict=True)}
    wiring.steps.append({"model_name": called, "model_version": -1, "input_map": feeds, "output_map": gives})


def _fit(called: str, wants: TensorSpec, made: TensorSpec, batch: int) -> None:
    """What a part makes must be what the next one takes.

    Raises:
        InputError: serving.ensemble.
    """
    first = 1 if batch else 0
    mine, theirs = (None if s.shape is None else s.shape[first:] for s in (wants, made))
    same = mine is None or theirs is None or len(mine) == len(theirs)
    if same and mine is not None and theirs is not None:
        pairs = zip(mine, theirs, strict=True)
        same = all(a == b or isinstance(a, str) or isinstance(b, str) for a, b in pairs)
    if wants.dtype != made.dtype or not same:
        problem = f"takes {wants}, and the part before makes {made}"
        raise InputError("serving.ensemble", called, problem, "make the two agree in type and shape")
