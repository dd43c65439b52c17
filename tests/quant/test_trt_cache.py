"""Calibration caches of TensorRT: the text that it writes is read, and what is written is that text."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from edgeproof.errors import InputError
from edgeproof.quant.trt_cache import TrtCache, from_ranges, read_cache, write_cache

# IEEE 754 by hand: 0.5 = 1.0 · 2^-1 → exponent 126 = 0x7e, so 0x3f000000; 0.0234375 = 1.5 · 2^-6 → 0x3cc00000.
GOLDEN = """\
TRT-8601-EntropyCalibration2
images: 3f000000
(Unnamed Layer* 3) [Convolution]_output: 3cc00000
scope:0/relu: 0
last: 3F800000
"""


def cache_file(folder: Path, text: str) -> Path:
    (folder / "calib.cache").write_text(text)
    return folder / "calib.cache"


def test_a_cache_is_read_with_names_that_hold_colons_and_spaces(tmp_path: Path) -> None:
    held = read_cache(cache_file(tmp_path, GOLDEN))
    assert (held.version, held.algorithm) == (8601, "EntropyCalibration2")
    assert held.scales == {"images": 0.5, "(Unnamed Layer* 3) [Convolution]_output": 0.0234375, "last": 1.0}
    assert held.ranges()["images"] == (-63.5, 63.5)


def test_the_number_is_the_largest_magnitude_over_127() -> None:
    # A cache that TensorRT 8.4 wrote for pictures normalised as for ImageNet holds 3caa54fc for the input, whose
    # largest value is (1 - 0.406) / 0.225.
    text = from_ranges({"input": ((0 - 0.485) / 0.229, (1 - 0.406) / 0.225)}, 8401).text()
    written = int(text.split()[-1], 16)
    assert abs(written - 0x3CAA54FC) < 2**12  # TensorRT's histogram ends a bin's width beyond


def test_what_is_written_is_read_back_bit_by_bit(tmp_path: Path) -> None:
    held = from_ranges({"a": (-1.0, 3.3), "b": (0.0, 1e-30), "c": (-7e8, 0.0), "zero": (0.0, 0.0)}, 101401)
    write_cache(tmp_path / "c", held)
    assert read_cache(tmp_path / "c") == held
    assert "zero" not in held.scales
    assert held.scales["a"] == pytest.approx(3.3 / 127, rel=1e-7)


def test_the_golden_file_is_what_we_would_write(tmp_path: Path) -> None:
    held = read_cache(cache_file(tmp_path, GOLDEN))
    lines = GOLDEN.replace("3F8", "3f8").splitlines(keepends=True)
    assert held.text() == "".join(line for line in lines if not line.endswith(": 0\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("images: 3f000000\n", r"begins with 'images: 3f000000'; expected e.g. 'TRT-8601-EntropyCalibration2'"),
        ("TRT-8601-EntropyCalibration2\nimages 3f000000\n", r"line 2: is 'images 3f000000'"),
        ("TRT-8601-EntropyCalibration2\n\nimages: 0.5\n", r"line 3: is 'images: 0.5'"),
        ("TRT-8601-EntropyCalibration2\nimages: 7f800000\n", r"gives 'images' the step inf"),
        ("TRT-8601-EntropyCalibration2\nimages: bf000000\n", r"gives 'images' the step -0.5"),
        ("TRT-8601-EntropyCalibration2\nimages: 3f0000000\n", r"expected 'TENSOR: HEX'"),
    ],
)
def test_a_bad_cache_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_cache(cache_file(tmp_path, text))


def test_names_that_break_the_format_and_ranges_without_end_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot stand on a line"):
        write_cache(tmp_path / "c", TrtCache({"a\nb": 1.0}))
    with pytest.raises(InputError, match="tensor 'a'"):
        from_ranges({"a": (0.0, math.inf)})
    with pytest.raises(InputError, match=r"files\.missing"):
        read_cache(tmp_path / "absent")
