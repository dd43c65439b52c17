"""What calibration saw survives on disk, exactly, and only for the graph and the samples that it came from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgeproof.quant import cache
from edgeproof.quant.histogram import Histogram
from edgeproof.quant.ranges import METHODS, find_range


def histogram(*arrays: np.ndarray) -> Histogram:
    held = Histogram()
    for array in arrays:
        assert held.update(array)
    return held


def seen() -> dict[str, Histogram]:
    rng = np.random.default_rng(0)
    return {
        "plain": histogram(rng.standard_normal(5000), 3 * rng.standard_normal(100)),
        "positive": histogram(np.abs(rng.standard_normal(40_000)).astype(np.float32)),
        "thinned": histogram(*(rng.standard_normal(2**17) for _ in range(4))),
        "zero": histogram(np.zeros(7)),
        "empty": histogram(),
        "far": histogram(np.array([1e30, 2e30])),
        "tiny": histogram(np.array([-1e-40, 1e-41])),
    }


@pytest.mark.parametrize("name", seen())
@pytest.mark.parametrize("method", METHODS)
def test_ranges_from_a_kept_histogram_are_those_of_the_histogram_itself(tmp_path: Path, name: str, method: str) -> None:
    held = seen()
    cache.save(tmp_path / "a.json", "key", "data", held, {})
    again = cache.load(tmp_path / "a.json", "key", "data")
    assert again is not None
    assert list(again) == list(held)
    assert find_range(again[name], method) == find_range(held[name], method)
    assert (again[name].low, again[name].high, again[name].seen) == (held[name].low, held[name].high, held[name].seen)


def test_a_kept_histogram_counts_on_as_if_it_had_never_been_away(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    first, second = rng.standard_normal(3000), 40 * rng.standard_normal(3000)
    cache.save(tmp_path / "a.json", "key", "data", {"t": histogram(first)}, {})
    again = (cache.load(tmp_path / "a.json", "key", "data") or {})["t"]
    assert again.update(second)
    want = histogram(first, second)
    for got, expected in zip(again.counts(), want.counts(), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_an_entry_is_only_for_its_graph_and_its_samples(tmp_path: Path) -> None:
    cache.save(tmp_path / "a.json", "key", "data", seen(), {})
    assert cache.load(tmp_path / "a.json", "key", "other samples") is None
    assert cache.load(tmp_path / "a.json", "other graph", "data") is None
    assert cache.load(tmp_path / "b.json", "key", "data") is None


def test_a_memory_is_kept_and_filled_with_its_facts(tmp_path: Path) -> None:
    memory = {"graph:0": seen(), "graph:0:settled": {"samples": 32}, "other": {"moments": np.zeros(3)}}
    assert cache.keep(memory, tmp_path, "data") == 1
    assert cache.keep(memory, tmp_path, "data") == 0
    fresh: dict[str, object] = {}
    assert cache.fill(fresh, tmp_path, "data") == 1
    assert set(fresh) == {"graph:0", "graph:0:settled"}
    assert fresh["graph:0:settled"] == {"samples": 32}
    assert cache.fill({}, tmp_path, "other samples") == 0
    assert cache.fill({}, tmp_path / "nowhere", "data") == 0


def test_an_entry_that_saw_more_tensors_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    held = seen()
    cache.keep({"g": {"plain": held["plain"]}}, tmp_path, "data")
    assert cache.keep({"g": held}, tmp_path, "data") == 1
    fresh: dict[str, dict[str, Histogram]] = {}
    cache.fill(fresh, tmp_path, "data")
    assert list(fresh["g"]) == list(held)


def damage(path: Path, kind: str) -> None:
    arrays = path.with_suffix(".npz")
    if kind == "cut":
        arrays.write_bytes(arrays.read_bytes()[:-20])
    elif kind == "bit":
        data = bytearray(arrays.read_bytes())
        data[len(data) // 2] ^= 1
        arrays.write_bytes(bytes(data))
    elif kind == "gone":
        arrays.unlink()
    elif kind == "not json":
        path.write_text("{")
    elif kind == "no object":
        path.write_text("[]")
    else:
        value = json.loads(path.read_text())
        value["tensors"] = value["tensors"][1:]
        path.write_text(json.dumps(value))


@pytest.mark.parametrize("kind", ["cut", "bit", "gone", "not json", "no object", "other tensors"])
def test_a_damaged_entry_counts_as_absent(tmp_path: Path, kind: str) -> None:
    cache.keep({"g": seen()}, tmp_path, "data")
    damage(next(tmp_path.glob("*.json")), kind)
    fresh: dict[str, object] = {}
    assert cache.fill(fresh, tmp_path, "data") == 0
    assert not fresh


def test_arrays_of_objects_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    cache.save(path, "key", "data", seen(), {})
    np.savez(path.with_suffix(".npz"), numbers=np.array([{}], object), ends=np.zeros(2), counts=np.zeros(1))
    value = json.loads(path.read_text())
    value["arrays"] = cache.digest_bytes(path.with_suffix(".npz").read_bytes())
    path.write_text(json.dumps(value))
    assert cache.load(path, "key", "data") is None
