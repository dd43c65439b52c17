"""The backend against ONNX Runtime, tuning with a handful of trials, and libraries for another processor."""

import json
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from edgeproof.backends.tvm import ARM, IMPL, LINKERS
from edgeproof.errors import InputError, UnsupportedError
from edgeproof.passes.int8 import Int8
from edgeproof.target import Target
from edgeproof.toolchain import CROSS_COMPILER
from small_nets import context, net, node, ran, samples, small_cnn, weight

CPU = Target("tvm:llvm", "tvm", "llvm", settings={"threads": 1})
CC = "aarch64-linux-gnu-gcc"
AARCH64 = 183
"""``e_machine`` of 64-bit ARM (ELF for the Arm 64-bit Architecture)."""


def silent(_what, _share):
    pass


def small():
    return net(
        [node("MatMul", ["x", "w"], ["h"], name="product"), node("Relu", ["h"], ["y"], name="last")],
        [weight("w", 16, 16)],
        (4, 16),
    )


def outputs(model, feeds, target=CPU):
    session = IMPL().compile(model, target)
    try:
        return session.run(feeds)
    finally:
        session.close()


def test_it_gives_what_onnxruntime_gives():
    model = small_cnn()
    for feeds in samples(model, 2):
        np.testing.assert_allclose(outputs(model, feeds)["y"], ran(model, feeds), atol=1e-4)


def test_plain_loops_are_warned_of_with_the_remedy():
    session = IMPL().compile(small(), CPU)
    ((kernels, why),) = session.placement().fallbacks
    session.close()
    assert "matmul" in kernels
    assert "45 times" in why
    assert "trials" in why


def test_a_quantised_graph_runs_in_float_and_says_so():
    model = small()
    model = Int8()(model, context(model)).model
    feeds = samples(model, 1)[0]
    session = IMPL().compile(model, CPU)
    want = ran(model, feeds)
    np.testing.assert_allclose(session.run(feeds)["y"], want, atol=0.02 * np.abs(want).max())
    assert "in float" in dict(session.placement().fallbacks)["Q/DQ"]
    session.close()


def test_every_kernel_is_placed_and_timed():
    model = small_cnn()
    session = IMPL().compile(model, CPU.with_settings({"profile": True}))
    for feeds in samples(model, 3):
        session.run(feeds)
    layers, nodes = session.layers(), session.placement().nodes
    session.close()
    assert [x.name for x in layers] == [name for name, *_ in nodes]
    assert sum("conv2d" in op for _, op, _, _ in nodes) == 3
    assert all(len(x.time_ns) == 3 and min(x.time_ns) > 0 for x in layers)


def test_tuned_kernels_are_kept_and_used_again(tmp_path):
    model, told = small(), []
    target = CPU.with_settings({"trials": 2})
    first = IMPL().build(model, target, tmp_path / "a.so", lambda what, share: told.append((what, share)))
    again = IMPL().build(model, target, tmp_path / "b.so", silent)
    assert first.facts["tuned"] == again.facts["tuned"] == first.facts["kernels"]
    assert (first.facts["tuned_before"], again.facts["tuned_before"]) == (0, first.facts["kernels"])
    assert first.fallbacks == ()
    assert any("tunes" in what for what, _ in told)
    feeds = samples(model, 1)[0]
    np.testing.assert_allclose(outputs(model, feeds, target)["y"], ran(model, feeds), atol=1e-5)


def test_a_built_library_runs_in_tvms_runtime(tmp_path):
    model = small()
    built = IMPL().build(model, CPU, tmp_path / "model", silent)
    assert built.path == tmp_path / "model.so"
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["model.so"]
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(built.path)), tvm.cpu())
    feeds = samples(model, 1)[0]
    found = machine["main"](tvm.runtime.tensor(feeds["x"], tvm.cpu())).numpy()
    np.testing.assert_allclose(found, ran(model, feeds), atol=1e-5)
    assert json.loads(built.facts["target"])["kind"] == "llvm"


def test_libraries_for_arm_are_made_for_arm_or_the_linker_is_named(tmp_path):
    planned = {t.device: t for t in IMPL().planned()}
    assert set(planned) == set(ARM)
    if not any(map(shutil.which, LINKERS)):
        with pytest.raises(UnsupportedError, match=re.escape(CROSS_COMPILER)):
            IMPL().build(small(), planned["cortex-a76"], tmp_path / "arm.so", silent)
        return
    built = IMPL().build(small(), planned["cortex-a76"], tmp_path / "arm.so", silent)
    head = built.path.read_bytes()[:20]
    assert head[:4] == b"\x7fELF"
    assert struct.unpack("<H", head[18:20])[0] == AARCH64
    assert "on the device" in built.fallbacks[0][1]


@pytest.mark.parametrize("emulator", [e for e in ["qemu-aarch64-static"] if shutil.which(e) and shutil.which(CC)])
def test_a_kernel_compiled_for_arm_gives_the_numbers_on_an_emulated_arm(emulator, tmp_path):
    model = small()
    target = {t.device: t for t in IMPL().planned()}["cortex-a72"]
    library = IMPL().build(model, target, tmp_path / "arm.so", silent).path
    program = tmp_path / "harness"
    source = Path(__file__).with_name("harness.c")
    subprocess.run([CC, "-O1", "-rdynamic", source, "-o", program, "-ldl"], check=True)
    feeds = samples(model, 1)[0]
    (w,) = [v.const_value.numpy() for v in model.graph.graph.initializers.values()]
    feeds["x"].tofile(tmp_path / "x")
    w.tofile(tmp_path / "w")
    tensors = [tmp_path / "x", "4", "16", tmp_path / "w", "16", "16", tmp_path / "y", "4", "16"]
    line = [emulator, "-L", "/usr/aarch64-linux-gnu", program, library, "__tvm_ffi_fused_matmul_relu", *tensors]
    subprocess.run(line, check=True)
    found = np.fromfile(tmp_path / "y", np.float32).reshape(4, 16)
    np.testing.assert_allclose(found, ran(model, feeds), atol=1e-5)


def test_another_processor_cannot_be_tuned_for_here(tmp_path):
    target = IMPL().planned()[0].with_settings({"trials": 8})
    with pytest.raises(UnsupportedError, match="not that device"):
        IMPL().build(small(), target, tmp_path / "arm.so", silent)


def test_a_target_to_build_for_does_not_run_here():
    with pytest.raises(UnsupportedError, match="edgeproof build"):
        IMPL().compile(small(), IMPL().planned()[0])


def test_the_operator_that_cannot_be_imported_is_named():
    model = net([node("Relu", ["x"], ["r"], name="fine"), node("Det", ["r"], ["y"], name="culprit")], shape=(3, 3))
    with pytest.raises(UnsupportedError, match=r"Det \(node culprit\)") as caught:
        IMPL().compile(model, CPU)
    assert caught.value.code == "backend.unknown_operator"


def test_arrays_of_another_shape_are_refused():
    session = IMPL().compile(small(), CPU)
    with pytest.raises(InputError, match="has the shape"):
        session.run({"x": np.zeros((1, 16), np.float32)})
    session.close()
