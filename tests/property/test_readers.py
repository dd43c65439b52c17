"""Whatever bytes a reader gets: a typed error, or what it promises; at a bounded price.

What each reader promises stands in `benchmarks.fuzz.targets`, which a coverage-guided fuzzer drives for minutes; here
hypothesis draws a few changes of good files, the same in every run.
"""

import tracemalloc
from pathlib import Path

import pytest
from benchmarks.fuzz.edits import edited
from benchmarks.fuzz.targets import TARGETS, Run, Target, guarded
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

MOST_BYTES = 64 * 2**20
"""What reading one small file may take at a time; decided evidence takes some 20 MB."""
FEWER = {"evidence": 8, "evidence members": 4, "repository": 10, "ONNX": 25, "records": 30, "engine": 30, "policy": 30}
BY_NAME = {t.name: t for t in TARGETS}


@pytest.fixture(params=BY_NAME)
def reading(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Target, list[bytes], Run]:
    """A reader, files that it reads, and a call that ends well or not."""
    target = BY_NAME[request.param]
    run = guarded(target.prepare(tmp_path))
    seeds = list(target.seeds())
    run(seeds[0])  # imports are not part of the price
    return target, seeds, run


@st.composite
def changed(draw: st.DrawFn, target: Target, seeds: list[bytes]) -> bytes:
    """Good bytes with flips, insertions, deletions, splices with another file or other JSON; or any bytes."""
    data = draw(st.sampled_from(seeds))
    kind = draw(st.sampled_from(["bytes", "bytes", "splice", "cut", "any", *["json"] * 3 * (target.json is not None)]))
    if kind == "any":
        return draw(st.binary(max_size=300))
    if kind == "json":
        at = target.json or 0
        return data[:at] + (edited(data[at:], draw(st.randoms(use_true_random=False))) or b"")
    places = st.integers(0, len(data))
    if kind == "cut":
        return data[: draw(places)]
    if kind == "splice":
        other = draw(st.sampled_from(seeds))
        return data[: draw(places)] + other[draw(st.integers(0, len(other))) :]
    for _ in range(draw(st.integers(1, 4))):
        at, new = draw(places), draw(st.binary(max_size=8))
        data = data[:at] + new + data[at + draw(st.integers(0, 8)) :]
    return data


def test_a_reader_of_files_that_others_make_refuses_by_name_or_keeps_its_promise(
    reading: tuple[Target, list[bytes], Run],
) -> None:
    target, seeds, run = reading

    @settings(
        max_examples=FEWER.get(target.name, 60),
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(changed(target, seeds))
    def holds(data: bytes) -> None:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        run(data)
        assert tracemalloc.get_traced_memory()[1] - before < MOST_BYTES

    tracemalloc.start()
    try:
        holds()
    finally:
        tracemalloc.stop()
