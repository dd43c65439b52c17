"""Write down TensorRT's Python API, version by version, without TensorRT.

    python -m benchmarks.tensorrt_api 10.13.0.35 11.4.0.106 --out tests/trt/api

TensorRT itself cannot be installed on a machine that reaches no server of NVIDIA's, but its Python bindings are a
package of their own. They link to three libraries and need nine functions of them; with empty functions in their place
(compiled here, kept in a temporary folder) the bindings import, and every method tells its signature. Nothing of
TensorRT runs. What is written is what tests hold our calls against: classes, signatures, properties, enumerations.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
FUNCTIONS = (
    "createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL", "createNvOnnxParser_INTERNAL", "getBuilderPluginRegistry",
    "getNvOnnxParserVersion", "getPluginRegistry", "initLibNvInferPlugins",
)  # fmt: skip
CLASSES = (
    "Builder", "EngineInspector", "IBuilderConfig", "ICudaEngine", "IExecutionContext", "IHostMemory", "ILayer",
    "ILogger", "INetworkDefinition", "IInt8EntropyCalibrator2", "IOptimizationProfile", "IRuntimeConfig",
    "ITensor", "ITimingCache", "OnnxParser", "ParserError", "Runtime",
    "BuilderFlag", "DataType", "DeviceType", "HardwareCompatibilityLevel", "LayerInformationFormat", "LayerType",
    "MemoryPoolType", "NetworkDefinitionCreationFlag", "ProfilingVerbosity", "TensorIOMode", "TensorLocation",
)  # fmt: skip
_DUMP = """
import inspect, json, re, sys
sys.path.insert(0, sys.argv[1])
import tensorrt_bindings as trt
found = {}
for name in sys.argv[2].split(","):
    kind = getattr(trt, name, None)
    if kind is None:
        continue
    if getattr(kind, "__members__", None):
        found[name] = {"members": sorted(kind.__members__)}
        continue
    entry = {"methods": {}, "properties": []}
    for key, value in inspect.getmembers(kind):
        if key.startswith("_") and key != "__init__":
            continue
        if isinstance(value, property):
            entry["properties"].append(key)
        elif callable(value) and (value.__doc__ or "").count("("):
            lines = [re.sub(r"^\\d+\\. ", "", x.strip()) for x in value.__doc__.splitlines()]
            forms = [x for x in lines if x.startswith(key + "(") and not x.endswith("*args, **kwargs)")]
            entry["methods"][key] = forms
    found[name] = entry
functions = {n: getattr(trt, n).__doc__.splitlines()[0] for n in ("init_libnvinfer_plugins",)}
print(json.dumps({"version": trt.__version__, "classes": found, "functions": functions}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for version in args.versions:
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps(api(version, Path(folder)), indent=1, sort_keys=True)
        place = args.out / f"tensorrt-{version}.json"
        place.write_text(re.sub(r"tensorrt_bindings\.tensorrt\.", "", text) + "\n")
        print(f"{place}: {place.stat().st_size:,} bytes")


def api(version: str, folder: Path) -> dict[str, object]:
    """The API of one version."""
    line = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
    ]
    subprocess.run([*line, f"tensorrt-cu12-bindings=={version}"], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    source = folder / "empty.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in FUNCTIONS))
    for name in LIBRARIES:
        library = f"lib{name}.so.{version.partition('.')[0]}"
        out = ["-o", str(folder / library)]
        subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{library}", str(source), *out], check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    line = [sys.executable, "-c", _DUMP, str(folder), ",".join(CLASSES)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
