"""The lines of trtexec are made of documented options with values of the documented form."""

import re
import shlex
from pathlib import Path

import pytest

from edgeproof.model import TensorSpec
from edgeproof.tensorrt.commands import command
from edgeproof.tensorrt.dialect import Dialect
from edgeproof.tensorrt.settings import Plan
from edgeproof.tensorrt.shapes import profiles

SHAPES = r"[^:]+(:[^:]+)?:(\d+(x\d+)*|scalar)(,[^:]+(:[^:]+)?:(\d+(x\d+)*|scalar))*"
BOTH = {
    "onnx": r".+",
    "saveEngine": r".+",
    "skipInference": None,
    "minShapes": SHAPES,
    "optShapes": SHAPES,
    "maxShapes": SHAPES,
    "profile": r"\d+",
    "noTF32": None,
    "sparsity": r"disable|enable|force",
    "memPoolSize": r"workspace:\d+(\.\d+)?[BKMG]",
    "builderOptimizationLevel": r"[0-5]",
    "hardwareCompatibilityLevel": r"none|ampere\+|sameComputeCapability",
    "versionCompatible": None,
    "useDLACore": r"\d+",
    "allowGPUFallback": None,
    "timingCacheFile": r".+",
    "profilingVerbosity": r"layer_names_only|detailed|none",
}
"""Options of trtexec 10 and 11, with the grammar of their values (sampleOptions.cpp, help texts)."""
DOCUMENTED = {
    "10": {**BOTH, "stronglyTyped": None, "fp16": None, "bf16": None, "int8": None, "fp8": None, "calib": r".+"},
    "11": BOTH,
    "rtx": {**BOTH, "computeCapabilities": r"\d+(,\d+)*", "useGpu": None},
}
DIALECTS = {"10": Dialect(False, (10, 13, 0)), "11": Dialect(False, (11, 4, 0)), "rtx": Dialect(True, (1, 7, 1))}
OPEN = profiles(
    "a:0=1x3x8x8:2x3x8x8:4x3x8x8;b=1|a:0=8x3x8x8;b=2",
    (TensorSpec("a:0", "float32", ("n", 3, 8, 8)), TensorSpec("b", "int64", ("m",))),
)
PLANS = [
    Plan("t"),
    Plan("t", tf32=True, sparse=True, workspace_bytes=512 << 20, optimization_level=5, layer_info=False),
    Plan("t", compatible="ampere+", version_compatible=True),
    Plan("t", compatible="same_capability"),
]
ONLY_10 = [
    *(Plan("t", p) for p in ("fp16", "bf16", "fp8", "best")),
    Plan("t", "int8", Path("net.cache")),
    Plan("t", "fp16", dla_core=1),
    Plan("t", "fp16", dla_core=0, gpu_fallback=False),
]
ONLY_RTX = [Plan("t", capabilities=("8.6", "12.0")), Plan("t", capabilities=("current",))]
CASES = [
    *((d, p) for d in DIALECTS for p in PLANS),
    *(("10", p) for p in ONLY_10),
    *(("rtx", p) for p in ONLY_RTX),
    ("11", Plan("t", dla_core=0)),
]


@pytest.mark.parametrize(("dialect", "plan"), CASES)
@pytest.mark.parametrize("found", [(), OPEN], ids=["fixed", "open"])
def test_every_word_is_a_documented_option_with_a_documented_value(dialect, plan, found):
    line = command(DIALECTS[dialect], plan, found, "a model.onnx", "net.engine", Path("t.cache"))
    tool, *words = shlex.split(line)
    assert tool == ("tensorrt_rtx" if dialect == "rtx" else "trtexec")
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        grammar = DOCUMENTED[dialect][name]
        assert bool(equals) == (grammar is not None), word
        assert grammar is None or re.fullmatch(grammar, value), word


def test_a_dynamic_int8_recipe_reads_as_a_person_would_write_it():
    one = profiles("", (TensorSpec("images", "float32", ("n", 3, 320, 320)),))
    plan = Plan("tensorrt:gpu", "int8", Path("net.cache"), tf32=True, workspace_bytes=2 << 30, layer_info=False)
    assert command(DIALECTS["10"], plan, one, "net.onnx", "net.engine") == (
        "trtexec --onnx=net.onnx --saveEngine=net.engine --skipInference --minShapes=images:1x3x320x320 "
        "--optShapes=images:1x3x320x320 --maxShapes=images:8x3x320x320 --int8 --fp16 --calib=net.cache "
        "--memPoolSize=workspace:2048M"
    )


def test_profiles_are_numbered_and_names_with_colons_quoted():
    words = shlex.split(command(DIALECTS["11"], Plan("t"), OPEN, "m.onnx", "m.engine"))
    assert "--profile=0" in words
    assert "--maxShapes='a:0':4x3x8x8,b:1" in words
    assert words.index("--profile=1") < words.index("--minShapes='a:0':8x3x8x8,b:2")


def test_types_of_the_graph_are_kept_by_a_flag_in_10_and_always_in_11():
    assert "--stronglyTyped" in command(DIALECTS["10"], Plan("t"), (), "m.onnx", "m.engine")
    assert "--stronglyTyped" not in command(DIALECTS["11"], Plan("t"), (), "m.onnx", "m.engine")
