"""The zoo's data and evaluators, without the network."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks.zoo import catalogue, composites, reuters
from benchmarks.zoo.check import METRICS
from benchmarks.zoo.score_lines import boxes_of, line_f1, matched, regions
from PIL import Image
from scipy import ndimage

from edgeproof.errors import InputError


def material(tmp_path):
    """A red ellipse with transparent margins as the only cut-out, on blue."""
    ellipse = Image.new("RGBA", (90, 70))
    yy, xx = np.mgrid[:70, :90]
    inside = ((xx - 50) / 30) ** 2 + ((yy - 30) / 20) ** 2 <= 1
    pixels = np.zeros((70, 90, 4), np.uint8)
    pixels[inside] = (255, 0, 0, 255)
    ellipse = Image.fromarray(pixels)
    ellipse.save(tmp_path / "ellipse.png")
    Image.new("RGB", (700, 500), (0, 0, 255)).save(tmp_path / "blue.png")
    labels = {"coco": {"orange": ["ellipse"]}, "coco_index": {"orange": 49}, "imagenet": {"ellipse": [950, 951]}}
    return composites.Material(tmp_path, (tmp_path / "blue.png",), labels)


def test_boxes_of_a_scene_enclose_exactly_the_pixels_that_were_pasted(tmp_path):
    stuff = material(tmp_path)
    for seed in range(5):
        picture, boxes = composites._scene(stuff, stuff.labels["coco"], np.random.default_rng(seed))
        found, count = ndimage.label(np.asarray(picture)[:, :, 0] > 127 * 0.85)
        assert count == len(boxes)
        seen = [(s[1].start, s[0].start, s[1].stop, s[0].stop) for s in ndimage.find_objects(found)]
        np.testing.assert_allclose(sorted(b for _, b in boxes), sorted(seen), atol=1)


def test_composites_are_the_same_for_the_same_seed_and_differ_for_another(tmp_path, monkeypatch):
    stuff = material(tmp_path)
    monkeypatch.setattr(composites, "material", lambda _cache: stuff)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        composites.write_scenes(tmp_path, tmp_path / name, 2, seed)
    a, b, c = ((tmp_path / name / "scenes.json").read_bytes() for name in "abc")
    assert a == b != c


def test_a_synonym_of_the_label_counts_and_another_class_does_not():
    space = {}
    exec(composites.evaluator_source({"bear": [294, 295], "lion": [291]}), space)
    scores = {"logits": np.eye(1000, dtype=np.float32)[None, 295]}
    assert space["accepted"](scores, 294, {}) == 1
    assert space["accepted"](scores, 291, {}) == 0


def test_every_cut_out_has_a_class_of_its_data_set():
    labels = composites.labels()
    assert set(labels["coco"]) == set(labels["coco_index"])
    assert all(0 <= i < 80 for i in labels["coco_index"].values())
    assert all(0 <= i < 1000 for classes in labels["imagenet"].values() for i in classes)
    synonyms = {}
    for classes in labels["imagenet"].values():
        assert synonyms.setdefault(classes[0], classes) == classes  # the table is by first class


def test_regions_equal_those_of_scipy():
    mask = np.random.default_rng(0).random((40, 60)) > 0.45
    labels, count = ndimage.label(mask)
    got = sorted(sorted(zip(r.tolist(), c.tolist(), strict=True)) for r, c in regions(mask))
    assert got == sorted(sorted(map(tuple, np.argwhere(labels == k + 1).tolist())) for k in range(count))


def test_a_region_grows_by_area_times_ratio_over_perimeter():
    chances = np.zeros((40, 80), np.float32)
    chances[10:20, 20:60] = 1  # 40 × 10: offset 400 · 1.6 / 100 = 6.4
    np.testing.assert_allclose(boxes_of(chances), [[13.6, 3.6, 66.4, 26.4]])


def test_two_detections_of_one_line_count_once():
    line = np.array([[0.0, 0.0, 10.0, 4.0]])
    assert matched(np.concatenate([line, line + 0.5]), line) == 1
    assert line_f1({"map": np.zeros((1, 1, 8, 8))}, SimpleNamespace(xyxy=line), {}) == 0


def test_the_probe_separates_what_is_linearly_separable():
    rng = np.random.default_rng(0)
    classes = rng.integers(3, size=300)
    points = np.eye(3)[classes] * 4 + rng.normal(0, 0.3, (300, 3))
    probe = reuters.fit(points.astype(np.float32), classes, 3)
    np.testing.assert_array_equal((points @ probe[:-1] + probe[-1]).argmax(1), classes)


def test_every_data_set_has_a_model_and_a_metric():
    assert set(METRICS) == set(catalogue.DATA)
    assert {d.model for d in catalogue.DATA.values()} == set(catalogue.MODELS)


def test_an_unknown_name_gets_a_suggestion(tmp_path):
    with pytest.raises(InputError, match="did you mean 'centernet'"):
        catalogue.fetch("centrenet", tmp_path)


def test_data_are_not_written_over_old_ones(tmp_path):
    (tmp_path / "old.png").touch()
    with pytest.raises(InputError, match="is not empty"):
        catalogue.write_data("mnist", tmp_path, tmp_path, 1)
