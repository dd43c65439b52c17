"""Every model that comes with onnx loads, is inspected without a crash, and keeps its digest through a file."""

import warnings
from functools import cache
from pathlib import Path

import onnx
import pytest

from edgeproof.graph.inspection import inspect_model
from edgeproof.model import load_model, save_model

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
CHUNKS = 16


@cache
def single_nodes() -> tuple[tuple[str, onnx.ModelProto], ...]:
    """The models of the node suite; they are made by code."""
    from onnx.backend.test.loader import load_node_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, while the suite computes expected outputs such as 1/0
        return tuple((case.name, case.model) for case in load_node_model_tests())


def stored(kind: str) -> list[Path]:
    """The models of a suite that lies in files."""
    return sorted(DATA.glob("light/*.onnx" if kind == "light" else f"{kind}/*/model.onnx"))


def check(path: Path, name: str, again: Path) -> list[str]:
    """Load, inspect, save, load.

    Returns:
        What went wrong; a defect in a model of ONNX's own counts.
    """
    model = load_model(path)
    result = inspect_model(model, path)
    result.to_json()
    wrong = [f"{name}: {f.check}: {f.subject}: {f.problem}" for f in result.findings if f.kind == "defect"]
    wrong += [f"{name}: {c.name} is unavailable: {c.reason}" for c in result.checks if "failed" in c.reason]
    if load_model(save_model(model, again)).digest != model.digest:
        wrong.append(f"{name}: the digest changes when it is saved")
    return wrong


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_single_node_models(chunk: int, tmp_path: Path) -> None:
    wrong = []
    for name, proto in single_nodes()[chunk::CHUNKS]:
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(proto.SerializeToString())
        wrong += check(path, name, tmp_path / "again.onnx")
    assert wrong == []


@pytest.mark.parametrize("kind", ["simple", "pytorch-converted", "pytorch-operator", "light"])
def test_models_in_files(kind: str, tmp_path: Path) -> None:
    assert [w for p in stored(kind) for w in check(p, str(p.relative_to(DATA)), tmp_path / "again.onnx")] == []


def test_the_suites_are_whole() -> None:
    assert len(single_nodes()) > 1000
    assert {k: len(stored(k)) > 5 for k in ("simple", "pytorch-converted", "pytorch-operator", "light")} == {
        "simple": True,
        "pytorch-converted": True,
        "pytorch-operator": True,
        "light": True,
    }
