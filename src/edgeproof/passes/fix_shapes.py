"""Give open dimensions of inputs a fixed size, everywhere that the same symbol is used, outputs included.

Runtimes plan memory once and fuse more when shapes are fixed; accelerators often demand it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..change import Change
from ..errors import InputError, did_you_mean
from ..graph.dims import dims
from ..graph.rewrite import Editor, graphs
from ..graph.rules import until_stable
from ..model import Model, TensorSpec
from ..protocols import Context, Pass
from .fold_constants import rewrite as fold_constants
from .fold_shapes import rewrite as fold_shapes
from .freeze_weights import rewrite as freeze_weights
from .infer_shapes import infer_with_outputs

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True, slots=True)
class FixShapes:
    """Fix shapes.

    Attributes:
        shapes: ``name=1,3,224,224``; several separated by ``;``; an only input needs no name. An input that is not
            named keeps its open dimensions, except those whose symbol gets a size from another input.
    """

    shapes: str = ""

    def __call__(self, model: Model, context: Context) -> Change:
        """Transform; the given model is left as it is.

        Raises:
            InputError: fix_shapes.syntax, fix_shapes.unknown_input, fix_shapes.rank, fix_shapes.contradiction.
        """
        bare = self.shapes.strip()[:1].isdigit() and "=" not in self.shapes and len(model.inputs) == 1
        wanted = parse_shapes(f"{model.inputs[0].name}={self.shapes}" if bare else self.shapes)
        specs = {s.name: s for s in model.inputs}
        symbols: dict[str, int] = {}
        for name, shape in wanted.items():
            _check(name, shape, specs, symbols)
        editor = Editor(model.graph.clone())
        graph = editor.model.graph
        before = {v.name: str(v.shape) for v in [*graph.inputs, *graph.outputs]}
        for value in graph.inputs:
            if value.name in wanted:
                value.shape = _ir_shape(wanted[value.name])
            else:
                _substitute(value, symbols)
        for value in graph.outputs:
            _substitute(value, symbols)
        _forget(editor)
        _infer(editor)
        applied = tuple(
            f"{v.name}: {before[v.name]} became {v.shape}"
            for v in [*graph.inputs, *graph.outputs]
            if before[v.name] != str(v.shape)
        )
        if not applied:
            return Change.none(model, ("inputs", "there is nothing open that the given shapes fix"))
        declined = tuple(
            (v.name or "", f"its shape {v.shape} still depends on the data or on another input")
            for v in graph.outputs
            if v.shape is None or any(not isinstance(d, int) for d in dims(v) or (None,))
        )
        return Change(Model.of(editor.model, model.name), True, applied, declined)


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Read ``x=1,3,224,224;mask=1,128``.

    Raises:
        InputError: fix_shapes.syntax.

    >>> parse_shapes("x=1,3,224,224; mask=1x128; scale=")
    {'x': (1, 3, 224, 224), 'mask': (1, 128), 'scale': ()}
    """
    out: dict[str, tuple[int, ...]] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, equals, sizes = part.rpartition("=")
        try:
            shape = tuple(int(d) for d in sizes.replace("x", ",").split(",") if d.strip())
        except ValueError:
            shape = (-1,)
        if not equals or not name.strip() or any(d <= 0 for d in shape):
            raise InputError(
                "fix_shapes.syntax",
                part,
                "is no shape; expected an input's name, '=' and positive sizes, like x=1,3,224,224",
                "separate several inputs with ';'",
            )
        out[name.strip()] = shape
    if not out:
        raise InputError(
            "fix_shapes.syntax",
            "shapes",
            "is empty; expected at least one input, like x=1,3,224,224",
            "'edgeproof inspect MODEL' shows the inputs and their open dimensions",
        )
    return out


def _check(name: str, shape: tuple[int, ...], specs: dict[str, TensorSpec], symbols: dict[str, int]) -> None:
    """Compare a wanted shape with the declared one, and learn what each symbol is."""
    if name not in specs:
        raise InputError("fix_shapes.unknown_input", name, "is not an input of the model", did_you_mean(name, specs))
    spec = specs[name]
    if spec.shape is None:
        return
    if len(shape) != len(spec.shape):
        raise InputError(
            "fix_shapes.rank",
            name,
            f"was given {len(shape)} dimensions ({_text(shape)}); the model declares {len(spec.shape)} ({spec})",
            f"give {len(spec.shape)} sizes",
        )
    for i, (size, declared) in enumerate(zip(shape, spec.shape, strict=True)):
        if isinstance(declared, int):
            if declared != size:
                raise InputError(
                    "fix_shapes.contradiction",
                    name,
                    f"dimension {i} was given as {size}; the model fixes it to {declared} ({spec})",
                    f"give {declared} there",
                )
        elif declared != "?" and symbols.setdefault(declared, size) != size:
            raise InputError(
                "fix_shapes.contradiction",
                name,
                f"dimension {i} ({declared}) was given as {size}, and as {symbols[declared]} elsewhere",
                "dimensions of one name have one size",
            )


def _text(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


def _ir_shape(shape: tuple[int, ...]) -> ir.Shape:
    import onnx_ir as ir

    return ir.Shape(shape)


def _substitute(value: ir.Value, symbols: dict[str, int]) -> None:
    """Replace the symbols of one shape; anonymous dimensions stay open."""
    import onnx_ir as ir

    if value.shape is None:
        return
    known = dims(value) or ()
    value.shape = ir.Shape(
        [symbols.get(d, d) if isinstance(d, str) else old for d, old in zip(known, value.shape, strict=True)]
    )


def _forget(editor: Editor) -> None:
    """Remove the shapes of all intermediate values: they were written for open dimensions, or for other sizes."""
    for graph in graphs(editor.model.graph):
        for node in graph:
            for value in node.outputs:
                if not value.is_graph_output():
                    value.shape = None


def _infer(editor: Editor) -> None:
    """Infer all shapes, of open outputs too, with the shape arithmetic of the graph computed on a copy."""
    import onnx_ir as ir

    graph = editor.model.graph
    declared = [v.shape.copy() if v.shape is not None else None for v in graph.outputs]
    for value in graph.outputs:
        if any(not isinstance(d, int) for d in dims(value) or (None,)):
            value.shape = None
    scratch = Editor(editor.model.clone())
    until_stable(scratch, (freeze_weights, infer_with_outputs, fold_constants, fold_shapes))
    found = {v.name: v for g in scratch.graphs() for n in g for v in n.outputs}
    for inner in editor.graphs():
        for node in inner:
            for value in node.outputs:
                known = found.get(value.name)
                if known is not None and known.shape is not None:
                    value.shape = known.shape.copy()
                    value.type = value.type or known.type
    for value, shape in zip(graph.outputs, declared, strict=True):
        inferred = value.shape
        if inferred is None or (shape is not None and len(inferred) != len(shape)):
            value.shape = shape
        elif shape is not None:
            pairs = zip(shape, dims(value) or (), strict=True)
            value.shape = ir.Shape(
                [s if isinstance(s, int) and s >= 0 else f if isinstance(f, int) else s for s, f in pairs]
            )


IMPL: type[Pass] = FixShapes
