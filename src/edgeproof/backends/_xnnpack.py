"""Write a torch.fx graph so that XNNPACK's partitioner sees its integer layers, without changing what it computes.

The partitioner takes a layer in integers only as int8 → dequantise → layer (→ ReLU or hardtanh) → quantise, with the
weight dequantised right ahead of it. A layer that misses a part of that would dequantise its weight at every inference,
in a scalar kernel: here such weights become floats at build time, and the layer is named.

1. Unsigned codes are moved down by 128, zero point and all; activations with a scale per channel are spelled out.
2. What depends on constants only is computed.
3. Products with a constant matrix become linear layers, and additions of a constant behind a layer its bias.
4. A Clip becomes a hardtanh; a split becomes slices.
5. Where codes are read with another scale than they were written with, the layer that made them is scaled, or a
   multiplication does it: XNNPACK keeps one scale per tensor.
6. Weights of layers that do not fit become floats.
7. Every reader of quantised values dequantises them for itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

QMIN, QMAX = -128, 127
LINEAR = ("linear",)
CONVOLUTIONS = ("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d")
LAYERS = (*LINEAR, *CONVOLUTIONS)
FUSED = ("relu", "hardtanh")
QUANTIZE, DEQUANTIZE = "quantize_per_tensor", "dequantize_per_tensor"
QUANTIZE_CHANNELS, DEQUANTIZE_CHANNELS = "quantize_per_channel", "dequantize_per_channel"


def prepare(module: Any) -> list[tuple[str, str]]:
    """Rewrite a graph module in place.

    Args:
        module: A ``torch.fx.GraphModule`` with ``quantized_decomposed`` operators, or without.

    Returns:
        (node of the model, why) for layers whose weights are integers and which run in float all the same.
    """
    import torch

    graph = Rewriting(module, torch)
    for step in (graph.signed, graph.channels, graph.fold, graph.linear, graph.biases, graph.spell, graph.rescaled):
        step()
        module.graph.eliminate_dead_code()
    floats = graph.floats()
    graph.one_each()
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.graph.lint()
    module.recompile()
    return floats


def kind(node: Any) -> str:
    """What a node calls: the plain name of a torch function, method or operator; empty for anything else."""
    if getattr(node, "op", "") == "call_method":
        return str(node.target)
    if getattr(node, "op", "") != "call_function":
        return ""
    name = getattr(node.target, "__name__", "") or str(node.target)
    return str(name).rpartition("::")[2].partition(".")[0]


class Rewriting:
    """The steps, on one graph."""

    def __init__(self, module: Any, torch: Any) -> None:
        self.module, self.torch, self.graph = module, torch, module.graph
        self._made = 0

    def signed(self) -> None:
        """Move unsigned codes down by 128."""
        torch = self.torch
        for q in self._all(QUANTIZE):
            if q.args[-1] != torch.uint8 or any(kind(u) != DEQUANTIZE for u in q.users):
                continue
            for node in (q, *q.users):
                x, scale, zero, low, high, _ = node.args[:6]
                node.args = (x, scale, zero - 128, low - 128, high - 128, torch.int8)

    def channels(self) -> None:
        """Spell out activations with a scale per channel, which XNNPACK does not have, in arithmetic on floats."""
        torch = self.torch
        for node in [n for n in self._all(DEQUANTIZE_CHANNELS) if kind(n.args[0]) == QUANTIZE_CHANNELS]:
            x, step, zero, axis, low, high, _ = node.args[0].args[:7]
            scales, zeros = self._value(step), self._value(zero)
            with self.graph.inserting_before(node):
                call = self.graph.call_function
                turned = call(torch.movedim, (x, axis, -1))
                held, moved = self._stored(scales, node), self._stored(zeros.to(torch.float32), node)
                codes = call(torch.add, (call(torch.round, (call(torch.div, (turned, held)),)), moved))
                codes = call(torch.clamp, (codes, float(low), float(high)))
                made = call(torch.mul, (call(torch.sub, (codes, moved)), held))
                made = call(torch.movedim, (made, -1, axis))
            for one in self.graph.nodes:
                one.meta.setdefault("onnx_node", node.meta.get("onnx_node", ""))
            node.replace_all_uses_with(made)
            self.graph.erase_node(node)

    def fold(self) -> None:
        """Compute what depends on constants only, but for the weights of layers."""
        for node in list(self.graph.nodes):
            if node.op not in ("call_function", "call_method") or not self._constant_inputs(node):
                continue
            codes = kind(node) in (DEQUANTIZE, DEQUANTIZE_CHANNELS) and node.args[0].op == "get_attr"
            if codes and all(self._weight_of(u, node) for u in node.users):
                continue
            value = self._computed(node)
            if isinstance(value, self.torch.Tensor):
                self._replace(node, value)

    def linear(self) -> None:
        """Write products with a constant matrix as linear layers."""
        torch = self.torch
        for node in [n for n in self.graph.nodes if kind(n) in ("matmul", "mm", "addmm")]:
            bias = node.args[0] if kind(node) == "addmm" else None
            x, weight = node.args[-2:]
            if len(node.args) > 3 or any(v != 1 for v in node.kwargs.values()):
                continue
            turned = self._turned(weight)
            if turned is None or (bias is not None and self._rank(bias) != 1):
                continue
            self._swap(node, torch.nn.functional.linear, (x, turned, bias))

    def biases(self) -> None:
        """Make an addition of a constant behind a layer that layer's bias."""
        torch = self.torch
        for node in [n for n in self.graph.nodes if kind(n) == "add" and len(n.args) == 2 and not n.kwargs]:
            for layer, other in (node.args, node.args[::-1]):
                value = self._value(other) if getattr(other, "op", "") == "get_attr" else None
                if kind(layer) not in LAYERS or len(layer.users) != 1 or value is None:
                    continue
                channels, vector = self._channels(layer), None
                last = 1 if kind(layer) in LINEAR else self._tail(layer)
                most = 1 if kind(layer) in LINEAR else last + 1  # what broadcasts no further than the layer's output
                per_channel = value.numel() == channels and last <= value.dim() <= most
                if per_channel and value.shape[value.dim() - last] == channels:
                    vector = value.reshape(-1)
                elif value.numel() == 1 and value.dim() <= most:
                    vector = value.reshape(-1).expand(channels).clone()
                old = self._argument(layer, 2)
                if vector is None or (old is not None and old.op != "get_attr"):
                    continue
                if old is not None:
                    vector = vector + self._value(old)
                with self.graph.inserting_before(layer):
                    held = self._stored(vector.detach().to(torch.float32), layer)
                self._set_argument(layer, 2, held)
                node.replace_all_uses_with(layer)
                self.graph.erase_node(node)
                break

    def spell(self) -> None:
        """Write Clip as hardtanh, which fuses, and split as slices, which XNNPACK has."""
        torch = self.torch
        for node in list(self.graph.nodes):
            if kind(node) in ("clamp", "clip"):
                low, high = self._argument(node, 1, "min"), self._argument(node, 2, "max")
                if all(isinstance(v, int | float) for v in (low, high)):
                    self._swap(node, torch.nn.functional.hardtanh, (node.args[0], float(low), float(high)))
            elif kind(node) == "hardsigmoid":
                self._hard(node)
            elif kind(node) == "split" and isinstance(node.args[1], list | tuple):
                axis, begin = self._argument(node, 2, "dim") or 0, 0
                items = {u.args[1]: u for u in node.users if kind(u) == "getitem"}
                if len(items) != len(node.users):
                    continue
                for i, size in enumerate(node.args[1]):
                    if i in items:
                        self._swap(items[i], torch.narrow, (node.args[0], axis, begin, size))
                    begin += size

    def _hard(self, node: Any) -> None:
        """Write hard-sigmoid, alone or as a gate: torch's own comes apart into changes of dtype."""
        functional, x = self.torch.nn.functional, node.args[0]
        gates = [u for u in node.users if kind(u) == "mul" and len(u.args) == 2 and x in u.args]
        for gate in gates:
            self._swap(gate, functional.hardswish, (x,))
        if node.users:
            with self.graph.inserting_before(node):
                scaled = self.graph.call_function(self.torch.mul, (x, 1 / 6))
                moved = self.graph.call_function(self.torch.add, (scaled, 0.5))
            scaled.meta, moved.meta = dict(node.meta), dict(node.meta)
            self._swap(node, functional.hardtanh, (moved, 0.0, 1.0))

    def rescaled(self) -> None:
        """Read codes with the scale that they were written with."""
        torch = self.torch
        for q in list(self._all(QUANTIZE)):
            wrong = [u for u in q.users if kind(u) == DEQUANTIZE and u.args[1:3] != q.args[1:3]]
            if not wrong:
                continue
            scale, zero = wrong[0].args[1:3]
            one = len(wrong) == len(q.users) and all(u.args[1:3] == (scale, zero) for u in wrong) and zero == q.args[2]
            if one and self._scaled(q.args[0], scale / q.args[1]):
                q.args = (q.args[0], scale, *q.args[2:])
                continue
            for dq in wrong:
                with self.graph.inserting_before(dq):
                    whole = self.graph.call_function(dq.target, (q, *q.args[1:]))
                    made = self.graph.call_function(torch.mul, (whole, dq.args[1] / q.args[1]))
                    again = self.graph.call_function(q.target, (made, *dq.args[1:]))
                for node in (whole, made, again):
                    node.meta = dict(dq.meta)
                dq.args = (again, *dq.args[1:])

    def _scaled(self, node: Any, factor: float) -> bool:
        """Scale what a layer makes, through an activation that fuses; False where that cannot be."""
        layer = node
        if kind(node) in FUSED and len(node.args[0].users) == 1:
            layer = node.args[0]
        if kind(layer) not in LAYERS or len(layer.users) != 1 or len(node.users) != 1:
            return False
        weight, bias = self._argument(layer, 1), self._argument(layer, 2)
        if kind(weight) not in (DEQUANTIZE, DEQUANTIZE_CHANNELS) or (bias is not None and bias.op != "get_attr"):
            return False
        with self.graph.inserting_before(weight):
            step = weight.args[1]
            step = step * factor if isinstance(step, float) else self._stored(self._value(step) * factor, weight)
            turned = self.graph.call_function(weight.target, (weight.args[0], step, *weight.args[2:]))
            turned.meta = dict(weight.meta)
        self._set_argument(layer, 1, turned)
        if bias is not None:
            with self.graph.inserting_before(layer):
                self._set_argument(layer, 2, self._stored(self._value(bias) * factor, layer))
        if kind(node) == "hardtanh":
            node.args = (node.args[0], *(float(v) * factor for v in node.args[1:3]))
        return True

    def floats(self) -> list[tuple[str, str]]:
        """Make floats of the integer weights of layers that do not run in integers."""
        told = []
        for node in [n for n in self.graph.nodes if kind(n) in LAYERS]:
            weight = self._argument(node, 1)
            if kind(weight) not in (DEQUANTIZE, DEQUANTIZE_CHANNELS):
                continue
            why = self._misfit(node, weight)
            if why:
                told.append((node.meta.get("onnx_node") or node.name, f"runs in float: {why}"))
                with self.graph.inserting_before(node):
                    held = self._stored(self._computed(weight), node)
                self._set_argument(node, 1, held)
        self.graph.eliminate_dead_code()
        return told

    def one_each(self) -> None:
        """Give every reader a dequantise of its own: the partitioner marks it as part of its reader's pattern."""
        for node in [n for n in self.graph.nodes if kind(n) == DEQUANTIZE]:
            for user in list(node.users)[1:]:
                with self.graph.inserting_before(user):
                    copy = self.graph.node_copy(node)
                copy.meta = dict(node.meta)
                user.replace_input_with(node, copy)

    def _misfit(self, node: Any, weight: Any) -> str:
        """Why a layer does not fit XNNPACK's pattern; empty when it does."""
        torch = self.torch
        if kind(node.args[0]) != DEQUANTIZE:
            return "its input is not quantised"
        if node.args[0].args[-1] != torch.int8:
            return f"its input has {str(node.args[0].args[-1]).removeprefix('torch.')} codes; XNNPACK takes int8"
        if weight.args[-1] != torch.int8:
            return f"its weight has {str(weight.args[-1]).removeprefix('torch.')} codes; XNNPACK takes int8"
        zero = weight.args[2]
        zero = self._value(zero) if getattr(zero, "op", "") == "get_attr" else self.torch.tensor(zero)
        if bool((zero != 0).any()):
            return "its weight has zero points other than 0"
        bias = self._argument(node, 2)
        if bias is not None and bias.op != "get_attr":
            return "its bias is computed at run time"
        if (
            "transpose" in kind(node)
            and kind(weight) == DEQUANTIZE_CHANNELS
            and (self._argument(node, 6, "groups") or 1) > 1
        ):
            return "XNNPACK quantises grouped transposed convolutions per tensor only"
        users = list(node.users)
        if len(users) == 1 and kind(users[0]) in FUSED:
            users = list(users[0].users)
        if len(users) != 1 or kind(users[0]) != QUANTIZE:
            return "its output is not quantised, or is read in float as well"
        return ""

    def _all(self, name: str) -> Iterator[Any]:
        return iter([n for n in self.graph.nodes if kind(n) == name])

    def _weight_of(self, user: Any, node: Any) -> bool:
        if kind(user) in LAYERS:
            return self._argument(user, 1) is node
        return kind(user) in ("matmul", "mm", "addmm") and user.args[-1] is node

    def _constant_inputs(self, node: Any) -> bool:
        return bool(node.all_input_nodes) and all(i.op == "get_attr" for i in node.all_input_nodes)

    def _value(self, node: Any) -> Any:
        """The tensor of a constant node."""
        return reduce(getattr, str(node.target).split("."), self.module).detach()

    def _computed(self, node: Any) -> Any:
        """What a node of constants computes."""
        from torch.fx.node import map_arg

        args, kwargs = (map_arg(a, self._value) for a in (node.args, node.kwargs))
        with self.torch.no_grad():
            if node.op == "call_method":
                return getattr(args[0], node.target)(*args[1:], **kwargs)
            return node.target(*args, **kwargs)

    def _stored(self, tensor: Any, near: Any) -> Any:
        """A constant node of a tensor."""
        name = f"edgeproof_constant_{self._made}"
        self._made += 1
        self.module.register_buffer(name, tensor.contiguous())
        made = self.graph.get_attr(name)
        made.meta = dict(near.meta)
        return made

    def _replace(self, node: Any, value: Any) -> None:
        with self.graph.inserting_before(node):
            held = self._stored(value, node)
        node.replace_all_uses_with(held)
        self.graph.erase_node(node)

    def _swap(self, node: Any, function: Any, args: tuple[Any, ...]) -> None:
        with self.graph.inserting_before(node):
            made = self.graph.call_function(function, args)
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        self.graph.erase_node(node)

    def _turned(self, weight: Any) -> Any:
        """A constant matrix, quantised or not, transposed; None for anything else."""
        if getattr(weight, "op", "") == "get_attr":
            value = self._value(weight)
            if value.dim() != 2 or not value.is_floating_point():
                return None
            with self.graph.inserting_before(weight.next):
                return self._stored(value.t(), weight)
        if kind(weight) not in (DEQUANTIZE, DEQUANTIZE_CHANNELS) or weight.args[0].op != "get_attr":
            return None
        codes = self._value(weight.args[0])
        if codes.dim() != 2:
            return None
        with self.graph.inserting_before(weight.next):
            held = self._stored(codes.t(), weight)
            args = [held, *weight.args[1:]]
            if kind(weight) == DEQUANTIZE_CHANNELS:
                args[3] = 1 - args[3] % 2
            made = self.graph.call_function(weight.target, tuple(args), dict(weight.kwargs))
        made.meta = dict(weight.meta)
        return made

    def _rank(self, node: Any) -> int:
        return int(self._value(node).dim()) if getattr(node, "op", "") == "get_attr" else -1

    def _channels(self, layer: Any) -> int:
        weight = self._argument(layer, 1)
        source = weight if weight.op == "get_attr" else weight.args[0]
        if source.op != "get_attr":
            return -1
        shape = self._value(source).shape
        if "transpose" in kind(layer):
            return int(shape[1]) * int(self._argument(layer, 6, "groups") or 1)
        return int(shape[0])

    def _tail(self, layer: Any) -> int:
        """Position of the channels, counted from the end."""
        return 2 if "1d" in kind(layer) else 3

    def _argument(self, node: Any, index: int, name: str = "") -> Any:
        names = {1: "weight", 2: "bias"}
        if len(node.args) > index:
            return node.args[index]
        return node.kwargs.get(name or names.get(index, ""))

    def _set_argument(self, node: Any, index: int, value: Any) -> None:
        name = {1: "weight", 2: "bias"}[index]
        if len(node.args) > index or (name not in node.kwargs and len(node.args) == index):
            node.args = (*node.args[:index], value, *node.args[index + 1 :])
        else:
            node.kwargs = {**node.kwargs, name: value}
