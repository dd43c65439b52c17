"""Read and write calibration caches of TensorRT.

A cache is text: a header such as ``TRT-8601-EntropyCalibration2``, then ``TENSOR: HEX`` per tensor, where HEX are
the bits of a float32, most significant digit first: the step between codes of symmetric int8, largest magnitude / 127.

Source: NVIDIA, TensorRT developer guide, "INT8 calibration"; ONNX Runtime's TensorRT provider reads the number so too.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..files import os_error, write_text
from .histogram import Histogram

VERSION = 8601
ALGORITHM = "EntropyCalibration2"
_HEADER = re.compile(r"TRT-(\d+)-(\w+)")
_HEX = re.compile(r"[0-9a-fA-F]{1,8}")  # TensorRT writes 0 as "0"


@dataclass(frozen=True, slots=True)
class TrtCache:
    """What a cache holds.

    Attributes:
        scales: Tensor → step between codes, > 0.
        version: Of TensorRT, as the number in the header (8601 is 8.6.1).
        algorithm: Calibrator: ``EntropyCalibration2``, ``EntropyCalibration``, ``MinMaxCalibration``, ….
    """

    scales: Mapping[str, float]
    version: int = VERSION
    algorithm: str = ALGORITHM

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Tensor → (low, high) that ±127 steps cover."""
        return {name: (-127.0 * s, 127.0 * s) for name, s in self.scales.items()}

    def text(self) -> str:
        """The cache as TensorRT writes it.

        >>> print(TrtCache({"images": 1 / 127}).text(), end="")
        TRT-8601-EntropyCalibration2
        images: 3c010204
        """
        lines = [f"{name}: {struct.pack('>f', scale).hex()}" for name, scale in self.scales.items()]
        return "\n".join([f"TRT-{self.version}-{self.algorithm}", *lines, ""])


def within(chosen: tuple[float, float], histogram: Histogram) -> tuple[float, float]:
    """A symmetric range without the side that a tensor was never seen on, which asymmetric codes need not cover."""
    low, high = chosen
    if not histogram.seen:
        return low, high
    return (0.0 if histogram.low >= 0 else low), (0.0 if histogram.high <= 0 else high)


def from_ranges(ranges: Mapping[str, tuple[float, float]], version: int = VERSION) -> TrtCache:
    """A cache of symmetric steps that cover ranges; a tensor of zeros, which has no step, is left out.

    Raises:
        InputError: trt_cache.range, for a bound that is NaN or infinite.
    """
    scales = {}
    for name, (low, high) in ranges.items():
        top = max(-low, high)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise InputError(
                "trt_cache.range",
                f"tensor {name!r}",
                f"has the range [{low}, {high}]; expected finite bounds",
                "calibrate it again",
            )
        if top > 0:
            # As float32 holds it: a step below the least normal number would read back as another.
            scales[name] = struct.unpack(">f", struct.pack(">f", max(top / 127.0, 2.0**-126)))[0]
    return TrtCache(scales, version)


def write_cache(path: Path, cache: TrtCache) -> None:
    """Write a cache, atomically.

    Raises:
        InputError: trt_cache.name, for a tensor name with a line break; files.….
    """
    for name in cache.scales:
        if not name or "\n" in name or "\r" in name:
            raise InputError(
                "trt_cache.name", repr(name), "cannot stand on a line of a TensorRT cache", "rename the tensor"
            )
    write_text(path, cache.text())


def read_cache(path: Path) -> TrtCache:
    """Read a cache.

    Raises:
        InputError: trt_cache.header, trt_cache.line, naming the line; files.missing.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as e:
        raise os_error(path, e) from e
    except UnicodeDecodeError as e:
        raise _bad(path, 1, "is not text") from e
    header = _HEADER.fullmatch(lines[0].strip()) if lines else None
    if header is None:
        raise InputError(
            "trt_cache.header",
            str(path),
            f"begins with {lines[0][:60]!r}; expected e.g. 'TRT-8601-EntropyCalibration2'"
            if lines
            else "is empty; expected e.g. 'TRT-8601-EntropyCalibration2'",
            "give a calibration cache that TensorRT wrote",
        )
    scales: dict[str, float] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        # Names hold colons and spaces ("(Unnamed Layer* 3) [Convolution]_output"); the number does not.
        name, colon, bits = line.rpartition(":")
        if not colon or not name or not _HEX.fullmatch(bits.strip()):
            raise _bad(path, number, f"is {line[:60]!r}; expected 'TENSOR: HEX' with up to 8 hex digits")
        scale = struct.unpack(">f", bytes.fromhex(bits.strip().zfill(8)))[0]
        if not math.isfinite(scale) or scale < 0:
            raise _bad(path, number, f"gives {name.strip()!r} the step {scale}; expected a finite number from 0")
        if scale > 0:
            scales[name.strip()] = scale
    return TrtCache(scales, int(header[1]), header[2])


def _bad(path: Path, line: int, problem: str) -> InputError:
    return InputError("trt_cache.line", f"{path}: line {line}", problem, "calibrate again, or correct the line")
