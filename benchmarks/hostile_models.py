"""What hostile model files cost: peak memory and processor time of the child process that reads them.

    python -m benchmarks.hostile_models

Each file is made in a temporary folder and read through `structure.read_structure`, as `compare` and `review` do.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

from edgeproof.errors import EdgeproofError
from edgeproof.structure import read_structure

FIXTURES = Path(__file__).parents[1] / "tests/structure/fixtures"


def billion_laughs(path: Path) -> Path:
    lines = ['<!ENTITY a0 "lol">'] + [f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 10)]
    path.write_text(f'<?xml version="1.0"?><!DOCTYPE net [{"".join(lines)}]><net>&a9;</net>')
    return path


def elements(path: Path, count: int) -> Path:
    path.write_text('<?xml version="1.0"?><net><layers>' + "<layer/>" * count + "</layers></net>")
    return path


def nested_json(path: Path) -> Path:
    header = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def many_keys(path: Path) -> Path:
    entries = {f"w{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(200_000)}
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def gguf_count(path: Path) -> Path:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62))
    return path


def shared_tables(path: Path) -> Path:
    """A flatbuffer whose vector of subgraphs names the same one a million times."""
    data = bytearray((FIXTURES / "fc_int8.tflite").read_bytes())
    root = struct.unpack_from("<I", data, 0)[0]
    vtable = root - struct.unpack_from("<i", data, root)[0]
    field = root + struct.unpack_from("<H", data, vtable + 4 + 2 * 2)[0]
    vector = field + struct.unpack_from("<I", data, field)[0]
    graph = vector + 4 + struct.unpack_from("<I", data, vector + 4)[0]
    at, count = len(data), 1_000_000
    copy = at + 4 + 4 * count + graph  # offsets only point forward: the file once more, behind the vector
    table = struct.pack("<I", count) + b"".join(struct.pack("<I", copy - (at + 4 + 4 * i)) for i in range(count))
    data += table + bytes(data)
    struct.pack_into("<I", data, field, at - field)
    path.write_bytes(bytes(data))
    return path


def deep_onnx(path: Path, depth: int = 20_000) -> Path:
    """A graph in an attribute of a node in a graph, and so on."""

    def field(number: int, body: bytes) -> bytes:
        size, out = len(body), b""
        while True:
            out += bytes([size & 0x7F | (0x80 if size > 0x7F else 0)])
            size >>= 7
            if not size:
                return bytes([number << 3 | 2]) + out + body

    graph = field(2, b"g")
    for _ in range(depth):
        graph = field(1, field(4, b"If") + field(5, field(1, b"b") + b"\xa0\x01\x05" + field(6, graph))) + field(
            2, b"g"
        )
    path.write_bytes(b"\x08\x08" + field(7, graph))
    return path


def huge_shape(path: Path) -> Path:
    """A ConstantOfShape of 10^12 elements: what it makes must not be made here."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("ConstantOfShape", ["s"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([10**6, 10**6], np.int64), "s")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


CASES: tuple[tuple[str, str, Callable[[Path], Path]], ...] = (
    ("a sound TFLite model, for comparison", "m.tflite", lambda p: _copy(p, "fc_int8.tflite")),
    ("a sound ONNX model, for comparison", "m.onnx", lambda p: _copy(p, "conv.onnx")),
    ("XML: nested entities (a billion laughs)", "m.xml", billion_laughs),
    ("XML: 1,000,000 elements", "m.xml", lambda p: elements(p, 1_000_000)),
    ("XML: 5,000,000 elements", "m.xml", lambda p: elements(p, 5_000_000)),
    ("safetensors: header nested 200,000 deep", "m.safetensors", nested_json),
    ("safetensors: 200,000 empty tensors", "m.safetensors", many_keys),
    ("GGUF: 2^62 tensors announced", "m.gguf", gguf_count),
    ("TFLite: one subgraph named 1,000,000 times", "m.tflite", shared_tables),
    ("ONNX: graphs nested 20,000 deep", "m.onnx", deep_onnx),
    ("ONNX: a constant of 10^12 elements", "m.onnx", huge_shape),
)


def _copy(path: Path, name: str) -> Path:
    path.write_bytes((FIXTURES / name).read_bytes())
    return path


def main() -> None:
    print(f"{'file':<46}{'bytes':>12}{'CPU s':>8}{'peak MB':>9}  ends as")
    for what, name, make in CASES:
        with tempfile.TemporaryDirectory() as folder:
            path = make(Path(folder) / name)
            size = path.stat().st_size
            pid = os.fork()
            if pid == 0:  # of a process of its own, so that its child's peak is not another's
                try:
                    read_structure(path)
                    ends = "read"
                except EdgeproofError as e:
                    ends = e.code
                used = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu = used.ru_utime + used.ru_stime
                print(f"{what:<46}{size:>12,}{cpu:>8.2f}{used.ru_maxrss / 1000:>9.0f}  {ends}", flush=True)
                os._exit(0)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
