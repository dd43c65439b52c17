"""Write an ONNX graph node by node, with names that tell what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx

OPSET = 17
IR_VERSION = 8


class Graph:
    """A graph in the making: nodes in order, constants by name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, NDArray[Any]] = {}

    def constant(self, value: NDArray[Any] | np.generic, name: str = "") -> str:
        """Add an initializer; returns its name."""
        name = name or f"const_{len(self._constants)}"
        self._constants[name] = np.asarray(value)
        return name

    def op(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node with one output; returns the output's name."""
        return self.ops(kind, inputs, (output or f"{kind.lower()}_{len(self._nodes)}",), **attributes)[0]

    def ops(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> tuple[str, ...]:
        """Add a node with the named outputs."""
        from onnx import helper

        self._nodes.append(helper.make_node(kind, inputs, outputs, name=f"{kind}_{outputs[0]}", **attributes))
        return tuple(outputs)

    def model(
        self,
        inputs: Sequence[tuple[str, Any, Sequence[int | str]]],
        outputs: Sequence[tuple[str, Any, Sequence[int | str]]],
    ) -> onnx.ModelProto:
        """The checked model with the constants that are used.

        Args:
            inputs: Name, NumPy dtype and shape of each; a string is a dynamic dimension.
            outputs: The same.
        """
        import onnx
        from onnx import helper, numpy_helper

        def info(value: tuple[str, Any, Sequence[int | str]]) -> onnx.ValueInfoProto:
            name, dtype, shape = value
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

        used = {i for n in self._nodes for i in n.input}
        constants = [numpy_helper.from_array(v, k) for k, v in self._constants.items() if k in used]
        graph = helper.make_graph(self._nodes, self.name, [*map(info, inputs)], [*map(info, outputs)], constants)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edgeproof-zoo")
        onnx.checker.check_model(model, full_check=True)
        return model
