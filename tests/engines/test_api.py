"""What a session calls is what the Python APIs of TensorRT 10.0, 10.13 and 11.4 declare (``tests/trt/api``)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

API = sorted((Path(__file__).parents[1] / "trt/api").glob("*.json"))
CALLS = {
    "Runtime": {"deserialize_cuda_engine": 1},
    "ICudaEngine": {
        "get_tensor_name": 1,
        "get_tensor_mode": 1,
        "get_tensor_dtype": 1,
        "get_tensor_shape": 1,
        "get_tensor_location": 1,
        "get_tensor_profile_shape": 2,
        "create_execution_context": 0,
        "create_engine_inspector": 0,
    },
    "IExecutionContext": {
        "set_optimization_profile_async": 2,
        "set_input_shape": 2,
        "set_tensor_address": 2,
        "set_output_allocator": 2,
        "infer_shapes": 0,
        "get_tensor_shape": 1,
        "execute_async_v3": 1,
    },
    "EngineInspector": {"get_engine_information": 1},
}
"""Class → method → how many arguments a session gives."""
PROPERTIES = {
    "Runtime": {"num_DLA_cores", "DLA_core", "engine_host_code_allowed"},
    "ICudaEngine": {"num_io_tensors", "num_optimization_profiles"},
    "IExecutionContext": {"active_optimization_profile", "profiler"},
    "EngineInspector": {"execution_context"},
}
MEMBERS = {"TensorIOMode": {"INPUT"}, "TensorLocation": {"HOST"}, "LayerInformationFormat": {"JSON"}}


def takes(form: str, count: int) -> bool:
    """Whether a declared form takes so many arguments beside ``self``."""
    inside = form[form.index("(") + 1 : form.rindex(")")]
    arguments = [a for a in re.split(r", (?=\w+:)", inside) if a and not a.startswith("self")]
    return sum("=" not in a for a in arguments) <= count <= len(arguments)


@pytest.mark.parametrize("path", API, ids=lambda p: p.stem)
def test_every_call_of_a_session_is_declared_with_its_arguments(path: Path) -> None:
    classes: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["classes"]
    for owner, methods in CALLS.items():
        for name, count in methods.items():
            forms = classes[owner]["methods"].get(name, [])
            assert any(takes(f, count) for f in forms), f"{owner}.{name} with {count} arguments: {forms}"
    for owner, names in PROPERTIES.items():
        assert names <= set(classes[owner]["properties"]), owner
    for owner, names in MEMBERS.items():
        assert names <= set(classes[owner]["members"]), owner


def test_there_are_versions_to_hold_the_calls_against() -> None:
    assert {p.stem.removeprefix("tensorrt-").partition(".")[0] for p in API} == {"10", "11"}


def test_shapes_are_given_in_a_form_that_every_version_takes() -> None:
    for path in API:
        forms = json.loads(path.read_text(encoding="utf-8"))["classes"]["IExecutionContext"]["methods"][
            "set_input_shape"
        ]
        assert any("shape: tuple" in f for f in forms)
