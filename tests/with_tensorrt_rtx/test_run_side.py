"""The run side against the real API and the real CUDA bindings, as far as a machine without a GPU goes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorrt_rtx as trt
from onnx import TensorProto, helper

from edgeproof.errors import UnsupportedError
from edgeproof.tensorrt.cuda import Cuda
from edgeproof.tensorrt.device import Device, find_device
from edgeproof.tensorrt.dialect import dialect_of
from edgeproof.tensorrt.header import check_header, read_header
from edgeproof.tensorrt.loading import allocator, loaded, profiler
from edgeproof.tensorrt.log import recorder
from edgeproof.tensorrt.session import _TYPES
from tensorrt_host import HostGpu

USED = {
    trt.Runtime: ("deserialize_cuda_engine", "num_DLA_cores", "DLA_core"),
    trt.ICudaEngine: (
        "num_io_tensors", "get_tensor_name", "get_tensor_mode", "get_tensor_dtype", "get_tensor_shape",
        "get_tensor_location", "get_tensor_profile_shape", "num_optimization_profiles", "create_execution_context",
        "create_engine_inspector", "create_runtime_config",
    ),
    trt.IExecutionContext: (
        "active_optimization_profile", "set_optimization_profile_async", "set_input_shape", "set_tensor_address",
        "set_output_allocator", "infer_shapes", "get_tensor_shape", "execute_async_v3", "profiler",
    ),
    trt.EngineInspector: ("get_engine_information", "execution_context"),
    trt.IRuntimeConfig: ("cuda_graph_strategy",),
    trt.CudaGraphStrategy: ("WHOLE_GRAPH_CAPTURE",),
    trt.TensorIOMode: ("INPUT",),
    trt.TensorLocation: ("HOST",),
    trt.LayerInformationFormat: ("JSON",),
}  # fmt: skip


def engine(*capabilities: str) -> bytes:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert trt.OnnxParser(network, logger).parse(model.SerializeToString())
    config = builder.create_builder_config()
    config.num_compute_capabilities = len(capabilities)
    for i, name in enumerate(capabilities):
        config.set_compute_capability(getattr(trt.ComputeCapability, name), i)
    return bytes(builder.build_serialized_network(network, config))


@pytest.mark.parametrize(("owner", "names"), USED.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_all_that_a_session_calls_is_in_the_real_api(owner: type, names: tuple[str, ...]) -> None:
    assert not [n for n in names if n not in dir(owner)]


def test_types_are_called_as_the_real_api_calls_them() -> None:
    assert set(_TYPES) <= set(dir(trt.DataType))
    for name, numpy in _TYPES.items():
        assert trt.nptype(getattr(trt.DataType, name)) is np.dtype(numpy).type


@pytest.mark.parametrize(
    ("asked", "told"), [(["SM86"], ("8.6",)), (["SM75"], ("7.5",)), (["SM89", "SM120"], ("8.9", "12.0"))]
)
def test_a_real_engine_tells_what_it_was_built_for(asked: list[str], told: tuple[str, ...]) -> None:
    data = engine(*asked)
    header = read_header(data)
    assert header is not None
    assert header.rtx
    assert header.text == trt.__version__
    assert header.capabilities == told
    turing = Device("T4", "7.5", 1, False, "12.6")
    if "7.5" in told:
        check_header(data, dialect_of(trt), turing, "e")
    else:
        with pytest.raises(UnsupportedError, match="is for compute capability"):
            check_header(data, dialect_of(trt), turing, "e")


def test_an_engine_that_does_not_load_says_what_the_real_runtime_said() -> None:
    logger, said = recorder(trt)
    with pytest.raises(UnsupportedError) as e:
        loaded(trt.Runtime(logger), b"vtrt" + bytes(200), said, "engine of net")
    assert e.value.code == "tensorrt.engine"
    assert said.errors
    assert said.errors[0][:40] in e.value.problem


def test_callbacks_are_the_real_api_s() -> None:
    watch = profiler(trt)
    assert isinstance(watch, trt.IProfiler)
    watch.report_layer_time("conv", 0.5)
    assert watch.times == {"conv": [500_000]}
    gpu = HostGpu()
    memory = allocator(trt, gpu)
    assert isinstance(memory, trt.IOutputAllocator)
    first = memory.reallocate_output_async("y", 0, 64, 256, gpu.stream)
    assert memory.reallocate_output_async("y", first, 32, 256, gpu.stream) == first  # large enough already
    memory.notify_shape("y", trt.Dims([2, 3]))
    assert memory.shape == (2, 3)
    memory.close()
    assert not gpu.memory


def cuda() -> Cuda:
    """Without its constructor, which needs a driver."""
    runtime: Any = importlib.import_module("cuda.bindings.runtime")
    made = Cuda.__new__(Cuda)
    made._cuda, made._graphs, made._stream = runtime, {3: runtime.cudaGraphExec_t()}, runtime.cudaStream_t()
    return made


def answer(call: Callable[[], object]) -> UnsupportedError | None:
    try:
        call()
    except UnsupportedError as e:
        return e
    return None


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.allocate(16),
        lambda c: c.free(0),
        lambda c: c.allocate_host(16),
        lambda c: c.free_host(0),
        lambda c: c.to_device(0, 0, 0),
        lambda c: c.to_host(0, 0, 0),
        lambda c: c.wait(),
        lambda c: c.capture(lambda: None),
        lambda c: c.replay(3),
        lambda c: c.free_graph(3),
        lambda c: c.close(),
        lambda _: Cuda(),
    ],
)
def test_every_call_is_one_that_the_real_bindings_take(call: Callable[[Cuda], object]) -> None:
    found = answer(lambda: call(cuda()))
    if found is not None:  # CUDA's own word; a wrong name or argument would be Python's
        assert found.code == "tensorrt.cuda"
        assert found.problem.startswith("failed: cudaError")


def test_handles_are_plain_numbers() -> None:
    made = cuda()
    assert made.stream == 0
    assert isinstance(made.stream, int)


def test_this_machine_s_device_is_told_or_absent() -> None:
    device = find_device()
    assert device is None or device.capability
