"""Small networks, and ONNX Runtime's word on what they give."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import torch

from edgeproof.fx import Imported
from edgeproof.model import Model


def by_runtime(model: Model, *inputs: np.ndarray) -> list[np.ndarray]:
    """Outputs of ONNX Runtime with nothing optimised, which computes node by node as the file says."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(model.to_bytes(), options, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, {s.name: x for s, x in zip(model.inputs, inputs, strict=True)})
    return found


def by_torch(module: Any, *inputs: np.ndarray) -> list[np.ndarray]:
    """Outputs of a module."""
    with torch.no_grad():
        return [y.numpy() for y in module(*(torch.from_numpy(x) for x in inputs))]


def drawn(imported: Imported, seed: int = 0, **sizes: int) -> list[np.ndarray]:
    """Inputs at random, with these sizes for open dimensions."""
    rng = np.random.default_rng(seed)
    shapes = [[d if isinstance(d, int) else sizes[d] for d in s.shape or ()] for s in imported.inputs]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
