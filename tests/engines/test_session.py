"""What a session does with memory, profiles and graphs, on a device in this process."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgeproof.errors import InputError, UnsupportedError
from edgeproof.model import Model, TensorSpec
from edgeproof.target import Target
from edgeproof.tensorrt.arrays import DeviceArray
from edgeproof.tensorrt.device import Device
from edgeproof.tensorrt.session import EngineSession, open_session
from small_nets import net, node
from tensorrt_host import HEADER, HostEngine, HostGpu, host_tensorrt

CARD = Device("RTX A2000", "8.6", 12 << 30, False, "12.6")
MODULE = Device("Orin", "8.7", 16 << 30, True, "12.6")
FIXED = HostEngine({"x": ("FLOAT", (2, 3))}, {"y": "FLOAT"}, lambda f: {"y": f["x"] * 2})
OPEN = HostEngine(
    {"x": ("FLOAT", (-1, 3))},
    {"y": "FLOAT"},
    lambda f: {"y": f["x"] * 2},
    profiles=(
        {"x": ((1, 3), (1, 3), (4, 3))},
        {"x": ((1, 3), (16, 3), (32, 3))},
    ),
)
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def model() -> Model:
    made = net([node("Relu", ["x"], ["y"])], shape=("n", 3))
    return replace(
        made, inputs=(TensorSpec("x", "float32", ("n", 3)),), outputs=(TensorSpec("y", "float32", ("n", 3)),)
    )


def opened(
    spec: HostEngine, device: Device = CARD, name: str = "tensorrt:gpu", cores: int = 0, **settings: Any
) -> tuple[EngineSession, HostGpu, Any]:
    gpu = HostGpu()
    trt = host_tensorrt(spec, gpu, cores=cores)
    target = Target(name, "tensorrt", name.partition(":")[2], settings=settings)
    return open_session(trt, HEADER, model(), target, gpu=gpu, device=device), gpu, trt


@pytest.mark.parametrize("device", [CARD, MODULE])
@pytest.mark.parametrize("graph", [True, False])
def test_every_run_computes_from_its_own_inputs(device: Device, graph: bool) -> None:
    session, _, _ = opened(FIXED, device, cuda_graph=graph)
    kept = [session.run({"x": X + i})["y"] for i in range(6)]
    for i, y in enumerate(kept):  # later runs leave earlier outputs alone
        np.testing.assert_array_equal(y, (X + i) * 2)


def test_a_card_copies_and_a_module_shares_its_memory() -> None:
    for device, memory, copies in (
        (CARD, "auto", True),
        (MODULE, "auto", False),
        (CARD, "mapped", False),
        (MODULE, "copied", True),
    ):
        session, gpu, _ = opened(FIXED, device, memory=memory, cuda_graph=False)
        session.run({"x": X})
        assert (gpu.counts["to_device"], gpu.counts["to_host"]) == ((1, 1) if copies else (0, 0))


def test_a_graph_is_recorded_once_shapes_have_stayed_and_replayed_from_then_on() -> None:
    session, gpu, _ = opened(OPEN)
    for _ in range(5):
        session.run({"x": X})
    assert (gpu.counts["capture"], gpu.counts["replay"]) == (1, 3)
    session.run({"x": X[:1]})  # another shape: plain again
    assert gpu.counts["replay"] == 3
    for _ in range(3):
        np.testing.assert_array_equal(session.run({"x": X[:1]})["y"], X[:1] * 2)
    assert gpu.counts["capture"] == 2


def test_without_the_setting_there_is_no_graph() -> None:
    session, gpu, _ = opened(FIXED, cuda_graph=False)
    for _ in range(5):
        session.run({"x": X})
    assert gpu.counts["capture"] == 0


def test_an_engine_that_cannot_be_recorded_runs_plainly_and_says_so() -> None:
    session, gpu, _ = opened(FIXED)
    gpu.capturable = False
    for _ in range(5):
        np.testing.assert_array_equal(session.run({"x": X})["y"], X * 2)
    assert gpu.counts["replay"] == 0
    assert session.notes == ["no CUDA graph: failed: cudaErrorStreamCaptureUnsupported"]


def test_the_profile_with_the_nearest_best_size_is_selected() -> None:
    session, _, trt = opened(OPEN)
    for batch in (1, 12, 2, 20):
        x = np.ones((batch, 3), np.float32)
        np.testing.assert_array_equal(session.run({"x": x})["y"], x * 2)
    assert trt.engines[0].selected == [1, 0, 1]


def test_a_shape_that_no_profile_takes_is_refused_with_those_that_there_are() -> None:
    session, _, _ = opened(OPEN)
    with pytest.raises(InputError, match=r"x \[1, 3\] to \[4, 3\] or x \[1, 3\] to \[32, 3\]") as e:
        session.run({"x": np.ones((33, 3), np.float32)})
    assert e.value.code == "session.feeds"
    np.testing.assert_array_equal(session.run({"x": X})["y"], X * 2)  # and the session still works


@pytest.mark.parametrize(
    ("feeds", "why"),
    [
        ({}, "x is missing"),
        ({"x": X, "z": X}, "z is no input"),
        ({"x": X.astype(np.float64)}, "x is float64; the engine takes float32"),
        ({"x": X[0]}, "the engine takes"),
        ({"x": X[:, :2]}, r"\[2, 2\]"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(feeds: dict[str, np.ndarray], why: str) -> None:
    session, _, _ = opened(FIXED)
    with pytest.raises(InputError, match=why):
        session.run(feeds)


def test_an_array_in_another_order_is_read_as_it_looks() -> None:
    session, _, _ = opened(FIXED)
    x = np.asfortranarray(X)
    np.testing.assert_array_equal(session.run({"x": x})["y"], X * 2)


def test_what_is_on_the_device_stays_there() -> None:
    session, gpu, _ = opened(FIXED)
    ours = gpu.allocate(X.nbytes)
    source, _ = gpu.allocate_host(X.nbytes)
    np.ctypeslib.as_array(gpu.memory[source]).view(np.float32)[:] = X.reshape(-1)
    gpu.to_device(ours, source, X.nbytes)
    gpu.wait()
    gpu.counts.update(to_device=0, to_host=0)
    for _ in range(5):
        y = session.run_on_device({"x": DeviceArray(ours, (2, 3), "float32")})["y"]
    assert (gpu.counts["to_device"], gpu.counts["to_host"]) == (0, 0)
    told = y.__cuda_array_interface__
    assert (told["shape"], told["typestr"], told["strides"]) == ((2, 3), "<f4", None)
    back, _ = gpu.allocate_host(y.size)
    gpu.to_host(back, told["data"][0], y.size)
    gpu.wait()
    got = np.ctypeslib.as_array(gpu.memory[back]).view(np.float32).reshape(2, 3)
    np.testing.assert_array_equal(got, X * 2)
    np.testing.assert_array_equal(session.run({"x": X + 1})["y"], (X + 1) * 2)  # and back to the host's arrays


def test_an_array_of_the_processor_is_not_taken_for_one_of_the_device() -> None:
    session, _, _ = opened(FIXED)
    with pytest.raises(InputError, match="device type 1 of DLPack"):
        session.run_on_device({"x": X})


def test_outputs_whose_size_is_known_late_are_fetched_with_their_size() -> None:
    spec = HostEngine(
        {"x": ("FLOAT", (2, 3))}, {"y": "INT64"}, lambda f: {"y": np.argwhere(f["x"] > 2)}, late=frozenset({"y"})
    )
    session, gpu, _ = opened(spec)
    for shift in (0, 2, -9, 0, 1):
        np.testing.assert_array_equal(session.run({"x": X + shift})["y"], np.argwhere(X + shift > 2))
    assert gpu.counts["capture"] == 0  # where results decide sizes nothing can be recorded


def test_inputs_that_the_processor_reads_decide_shapes() -> None:
    spec = HostEngine(
        {"x": ("FLOAT", (2, 3)), "size": ("INT64", (2,))},
        {"y": "FLOAT"},
        lambda f: {"y": np.resize(f["x"], (2, 3)) + f["size"].sum()},
        on_host=frozenset({"size"}),
    )
    session, gpu, _ = opened(spec)
    for size in ([2, 3], [3, 4], [3, 4]):
        y = session.run({"x": X, "size": np.array(size, np.int64)})["y"]
        np.testing.assert_array_equal(y, X + sum(size))
    assert gpu.counts["to_device"] == 3  # x only


LAYERS = [
    {
        "Name": "conv + relu",
        "LayerType": "CaskConvolution",
        "Inputs": [{"Name": "x", "Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format."}],
        "Outputs": [{"Name": "a", "Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format."}],
        "TacticName": "sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32",
        "Metadata": "[ONNX Layer: /conv/Conv]\x1e[ONNX Layer: /relu/Relu]",
    },
    {
        "Name": "{ForeignNode[/a/Conv.../b/Conv]}",
        "LayerType": "DLA",
        "Inputs": [{"Name": "a", "Format/Datatype": "Int8"}],
        "Outputs": [{"Name": "b", "Format/Datatype": "Half"}],
    },
    {
        "Name": "b to nvm",
        "LayerType": "Reformat",
        "Inputs": [{"Name": "b", "Format/Datatype": "Half"}],
        "Outputs": [{"Name": "y", "Format/Datatype": "Float"}],
    },
]
"""In the form of the example in TensorRT's developer guide, *Engine Inspector*."""


def test_placement_tells_gpu_from_dla_and_what_fell_back() -> None:
    session, _, trt = opened(replace(FIXED, layers=LAYERS), MODULE, "tensorrt:dla1", cores=2)
    del trt
    placement = session.placement()
    assert placement.nodes == (
        ("/conv/Conv + /relu/Relu", "CaskConvolution", "GPU", "int8"),
        ("{ForeignNode[/a/Conv.../b/Conv]}", "DLA", "DLA", "float16"),
        ("b to nvm", "Reformat", "GPU", "float"),
    )
    assert [f[0] for f in placement.fallbacks] == ["/conv/Conv + /relu/Relu"]  # changing the layout is no fallback
    assert opened(replace(FIXED, layers=LAYERS))[0].placement().fallbacks == ()


def test_times_are_kept_per_layer_and_inference_with_its_kernel() -> None:
    spec = replace(FIXED, layers=LAYERS, times={"conv + relu": 0.25, "unheard of": 0.5})
    session, gpu, _ = opened(spec, profile=True)
    for _ in range(4):
        session.run({"x": X})
    first, second = session.layers()
    assert (first.name, first.op, first.device, first.precision) == (
        "/conv/Conv + /relu/Relu", "CaskConvolution", "GPU", "int8",
    )  # fmt: skip
    assert first.time_ns == (250_000,) * 4
    assert first.kernel.startswith("sm80_xmma")
    assert (second.name, second.time_ns) == ("unheard of", (500_000,) * 4)
    assert gpu.counts["capture"] == 0  # a profile sees layers, a graph does not
    assert opened(FIXED)[0].layers() == ()


def test_a_dla_core_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="asks for DLA core 0; TensorRT finds 0"):
        opened(FIXED, MODULE, "tensorrt:dla0")


def test_an_engine_that_does_not_load_says_what_the_runtime_said() -> None:
    gpu = HostGpu()
    with pytest.raises(UnsupportedError, match="Serialization assertion") as e:
        open_session(host_tensorrt(None, gpu), HEADER, model(), Target("t:gpu", "t", "gpu"), gpu=gpu, device=CARD)
    assert e.value.code == "tensorrt.engine"


def test_a_type_that_numpy_lacks_is_refused_at_the_edge() -> None:
    spec = HostEngine({"x": ("BF16", (2, 3))}, {"y": "FLOAT"}, lambda f: {"y": f["x"]})
    with pytest.raises(UnsupportedError, match="put a Cast to float32 or float16"):
        opened(spec)


@pytest.mark.parametrize("device", [CARD, MODULE])
def test_closing_gives_all_memory_back(device: Device) -> None:
    session, gpu, _ = opened(OPEN, device)
    for batch in (1, 9, 2, 2, 2, 2):
        session.run({"x": np.ones((batch, 3), np.float32)})
    session.close()
    gc.collect()
    assert gpu.memory == {}
    assert gpu.closed


def test_without_a_gpu_the_session_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeproof.tensorrt.session.find_device", lambda: None)
    with pytest.raises(UnsupportedError, match="no NVIDIA GPU") as e:
        open_session(host_tensorrt(FIXED, HostGpu()), HEADER, model(), Target("t:gpu", "t", "gpu"))
    assert e.value.code == "target.not_here"
