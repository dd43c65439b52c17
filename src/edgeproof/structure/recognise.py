"""Say of what format a model file is, by its first bytes, and refuse what must not be opened.

Formats that can run code when they are opened (Python pickles and what holds them) are refused whatever they are
called. A file whose name promises another format than its bytes hold is refused too: whoever gave it that name, or
whatever reads it next by its name, is mistaken.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, Protocol

from ..errors import InputError
from ..files import os_error
from ..tensorrt.header import MAGIC
from . import Structure

HEAD_BYTES = 4096
EXTENSIONS: dict[str, tuple[str, ...]] = {
    "onnx": (".onnx",),
    "tflite": (".tflite", ".lite"),
    "openvino": (".xml",),
    "engine": (".engine", ".plan", ".trt"),
    "gguf": (".gguf",),
    "safetensors": (".safetensors",),
}
"""Format → what its files are called."""
PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
_PICKLE_0 = re.compile(rb"(\(|\]|\})*(c[A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n|[dl]p\d+\n|\(?[ld]p\d+\n|[Ii]\d+\n\.)")
_OTHERS: tuple[tuple[bytes, int, str, str], ...] = (
    (b"\x89HDF", 0, "an HDF5 file (Keras)", "convert it to TFLite or ONNX where it was trained"),
    (b"ORTM", 4, "an ORT-format model", "give the .onnx file that it was made from"),
    (b"\x1f\x8b", 0, "a gzip archive", "unpack it first"),
    (b"version https://git-lfs", 0, "a Git LFS pointer, not the model", "run git lfs pull"),
)


class Reader(Protocol):
    """What a format's module has."""

    @staticmethod
    def read(path: Path) -> Structure:
        """The file's structure."""

    @staticmethod
    def values(path: Path, names: list[str]) -> dict[str, Any]:
        """Real values of stored tensors, float32 arrays of their shape; those that cannot be read are left out."""


def reader(format: str) -> Reader:  # noqa: A002
    """The module that reads a format."""
    module: Any = importlib.import_module(f".{format}", __package__)
    return module  # type: ignore[no-any-return]


def recognise(path: Path) -> str:
    """Name of the file's format.

    Raises:
        InputError: structure.missing, structure.empty, structure.pickle, structure.archive, structure.other_format,
            structure.extension.
    """
    try:
        with path.open("rb") as f:
            head = f.read(HEAD_BYTES)
            size = path.stat().st_size
    except FileNotFoundError as e:
        raise InputError("structure.missing", str(path), "no such file", "check the path") from e
    except OSError as e:
        raise os_error(path, e) from e
    if not head:
        raise InputError("structure.empty", str(path), "is empty (0 bytes)", "export or download it again")
    _refuse(path, head)
    found = _by_content(head, size)
    promised = next((f for f, names in EXTENSIONS.items() if path.suffix.lower() in names), "")
    if not found:
        # Neither ONNX nor every engine has a mark at its beginning.
        found = "engine" if promised == "engine" else "onnx"
        if promised not in ("", found):
            raise _extension(path, f"holds no {promised} model")
    if promised and promised != found:
        raise _extension(path, f"holds a model of format {found}")
    if path.suffix.lower() in PICKLED:
        raise _extension(path, f"holds a model of format {found}")
    return found


def _by_content(head: bytes, size: int) -> str:
    if head[4:8] == b"TFL3":
        return "tflite"
    if head[:4] == b"GGUF":
        return "gguf"
    if head[:4] in MAGIC:
        return "engine"
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:5] in (b"<?xml", b"<net "):
        return "openvino"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8:
        return "safetensors"
    return ""


def _refuse(path: Path, head: bytes) -> None:
    if (head[0] == 0x80 and len(head) > 1 and head[1] in (2, 3, 4, 5)) or _PICKLE_0.match(head):
        raise _pickle(path, "is a Python pickle, which can run code when it is opened")
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06") or head[257:262] == b"ustar":
        if path.suffix.lower() in PICKLED or b"data.pkl" in head:
            raise _pickle(path, "is a PyTorch checkpoint: an archive with a Python pickle, which can run code")
        raise InputError("structure.archive", str(path), "is an archive, not a model", "give the model file in it")
    for magic, offset, what, hint in _OTHERS:
        if head[offset : offset + len(magic)] == magic:
            raise InputError("structure.other_format", str(path), f"is {what}", hint)
    known = _by_content(head, path.stat().st_size)
    if not known and path.suffix.lower() in PICKLED:
        raise _pickle(path, f"is called {path.suffix} and is of no known format; such files are Python pickles")


def _pickle(path: Path, problem: str) -> InputError:
    hint = "export the model to ONNX where it was trained; edgeproof never opens a pickle"
    return InputError("structure.pickle", str(path), problem, hint)


def _extension(path: Path, problem: str) -> InputError:
    return InputError(
        "structure.extension",
        str(path),
        f"is called {path.suffix} but {problem}",
        "find out what it is, and give it the name of its format",
    )
