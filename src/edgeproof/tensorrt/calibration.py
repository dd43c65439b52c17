"""Ranges for TensorRT 10's own choice of 8-bit kernels, from a calibration cache; nothing is calibrated here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..files import os_error
from .dialect import Dialect


def calibrator(trt: Any, cache: Path, dialect: Dialect) -> Any:
    """An ``IInt8EntropyCalibrator2`` that has a cache and asks for no batch.

    Args:
        trt: TensorRT 10.
        cache: As our INT8 pass or TensorRT wrote it; whoever calls has read it with `quant.trt_cache`.
        dialect: Its version is put into the header, which TensorRT compares.

    Raises:
        InputError: files.….
    """
    try:
        _, _, scales = cache.read_text(encoding="utf-8").partition("\n")
    except OSError as e:
        raise os_error(cache, e) from e
    data = f"TRT-{header_version(dialect)}-EntropyCalibration2\n{scales}".encode()

    class FromCache(trt.IInt8EntropyCalibrator2):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IInt8EntropyCalibrator2.__init__(self)

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: list[str]) -> None:
            del names

        def read_calibration_cache(self) -> bytes:
            return data

        def write_calibration_cache(self, cache: Any) -> None:
            del cache

    return FromCache()


def header_version(dialect: Dialect) -> int:
    """The version as one number. Source: NvInferVersion.h, NV_TENSORRT_VERSION.

    >>> header_version(Dialect(False, (10, 13, 0, 35)))
    101300
    """
    major, minor, patch = (*dialect.version, 0, 0)[:3]
    return major * 10000 + minor * 100 + patch
