"""What an engine's first bytes tell, and who is refused before a runtime is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeproof.errors import UnsupportedError
from edgeproof.structure import read_here
from edgeproof.tensorrt.device import Device
from edgeproof.tensorrt.dialect import Dialect
from edgeproof.tensorrt.header import Header, check_header, read_header

CARD = Device("RTX A2000", "8.6", 12 << 30, False, "12.6")
TRT10 = Dialect(False, (10, 3, 0, 30))
RTX = Dialect(True, (1, 7, 1, 116))


def plan(*version: int, magic: bytes = b"ftrt") -> bytes:
    return magic + bytes(20) + bytes(version) + bytes(16)


def rtx(mask: int, *version: int) -> bytes:
    """The head of an engine of TensorRT for RTX, as its 1.7.1.116 writes it."""
    return b"vtrt" + bytes(20) + bytes(version or (1, 7, 1, 116)) + b"vtrt" + mask.to_bytes(4, "little") + bytes(8)


def test_a_plan_tells_its_version() -> None:
    assert read_header(plan(10, 3, 0, 30)) == Header(False, (10, 3, 0, 30))
    assert read_header(plan(8, 5, 2, 2)) == Header(False, (8, 5, 2, 2))
    assert read_header(plan(200, 3, 0, 30)) == Header(False, ())


@pytest.mark.parametrize("data", [b"", b"ftrt", b"PK\x03\x04" + bytes(60)])
def test_what_is_no_engine_has_no_header(data: bytes) -> None:
    assert read_header(data) is None
    with pytest.raises(UnsupportedError, match="not as an engine does"):
        check_header(data, TRT10, CARD, "e")


@pytest.mark.parametrize(
    ("mask", "capabilities"),
    # Written by tensorrt_rtx 1.7.1.116 for {SM75}, {SM86}, {SM86, SM89, SM120} and its default set.
    [
        (1, ("7.5",)),
        (4, ("8.6",)),
        (0x1C, ("8.6", "8.9", "12.0")),
        (0x7E, ("8.0", "8.6", "8.9", "12.0", "12.1")),
    ],
)
def test_an_engine_for_rtx_tells_its_capabilities(mask: int, capabilities: tuple[str, ...]) -> None:
    header = read_header(rtx(mask))
    assert header == Header(True, (1, 7, 1, 116), capabilities)


@pytest.mark.parametrize(
    ("data", "dialect", "reason"),
    [
        (rtx(4), TRT10, "was built by TensorRT for RTX; TensorRT cannot load it"),
        (plan(10, 3, 0, 30), RTX, "was built by TensorRT; TensorRT for RTX cannot load it"),
        (plan(8, 5, 2, 2), TRT10, "built by TensorRT 8.5.2.2; here is 10.3.0.30"),
        (plan(10, 13, 0, 35), TRT10, "built by TensorRT 10.13.0.35"),
        (rtx(8), RTX, "is for compute capability 8.9; RTX A2000 has 8.6"),
        (rtx(4, 1, 8, 0, 1), RTX, "built by TensorRT for RTX 1.8.0.1"),
    ],
)
def test_an_engine_for_something_else_is_refused_with_the_reason(data: bytes, dialect: Dialect, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason.replace(".", r"\.")) as e:
        check_header(data, dialect, CARD, "engine of net")
    assert e.value.code == "tensorrt.engine"
    assert "build it with" in e.value.hint


@pytest.mark.parametrize(
    ("data", "dialect"),
    [
        (plan(10, 3, 0, 30), TRT10),
        (plan(10, 1, 0, 1), TRT10),  # older: it may be version compatible, which the runtime knows
        (rtx(0x1C), RTX),
        (rtx(0x7E), RTX),
        (plan(200, 0, 0, 0), TRT10),  # no version to be seen: nothing speaks against it
    ],
)
def test_what_may_load_is_left_to_the_runtime(data: bytes, dialect: Dialect) -> None:
    check_header(data, dialect, CARD, "e")


def test_a_review_tells_what_an_engine_for_rtx_runs_on(tmp_path: Path) -> None:
    (tmp_path / "net.engine").write_bytes(rtx(0x1C) + bytes(60))
    found = read_here(tmp_path / "net.engine")
    assert found.facts["compute_capability"] == "8.6, 8.9, 12.0"
    assert found.facts["tensorrt_version"] == "1.7.1.116"
