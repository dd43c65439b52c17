from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproof.dataset import Decode, Preprocess
from edgeproof.decode import decode, suppressed
from edgeproof.errors import InputError
from edgeproof.preprocess import apply


def run(array: Any, kind: Any, meta: Any = None, metadata: Any = None, **options: Any) -> Any:
    outputs = {"y": np.asarray(array, np.float32)}
    return decode(outputs, Decode(kind, options=options), meta or {}, metadata or {})


def test_classes_are_ranked_best_first_and_ties_keep_the_lower_index() -> None:
    assert run([[0.1, 0.7, 0.1, 0.9]], "classes").tolist() == [3, 1, 0, 2]


def test_softmax_does_not_change_the_ranking() -> None:
    logits = np.random.default_rng(0).normal(size=(1, 50))
    shares = np.exp(logits) / np.exp(logits).sum()
    assert run(logits, "classes").tolist() == run(shares, "classes").tolist()


def test_a_nan_score_is_no_candidate() -> None:
    assert run([[np.nan, 0.2, 0.1]], "classes").tolist() == [1, 2]


def test_a_background_class_is_left_out() -> None:
    assert run([[9, 0.1, 0.3]], "classes", offset=1).tolist() == [1, 0]


def one_hot(path: list[int], classes: int) -> Any:
    return np.eye(classes, dtype=np.float32)[path][None]


def test_best_path_merges_repeats_and_drops_blanks() -> None:
    # Graves et al. 2006, section 3.1: B(a-ab-) = B(-aa--abb) = aab.
    for path in ([1, 0, 1, 2, 0], [0, 1, 1, 0, 0, 1, 2, 2]):
        assert run(one_hot(path, 3), "ctc", charset="ab") == "aab"


def test_the_blank_may_be_the_last_class() -> None:
    assert run(one_hot([0, 2, 1, 1, 2], 3), "ctc", charset="ab", blank=2) == "ab"


def test_symbols_can_be_ignored() -> None:
    assert run(one_hot([3, 1, 0, 3, 2], 4), "ctc", charset="ab ", ignore=" ") == "ab"


def test_time_may_come_first() -> None:
    assert run(one_hot([1, 2], 3).transpose(1, 0, 2), "ctc", charset="ab") == "ab"


def test_the_models_own_characters_get_a_space_when_one_class_is_left() -> None:
    # PaddleOCR: 6625 classes = blank + 6623 characters + space.
    metadata = {"character": "\n".join(chr(0x4E00 + i) for i in range(6623))}
    text = run(one_hot([1, 6624, 6623], 6625), "ctc", metadata=metadata)
    assert text == chr(0x4E00) + " " + chr(0x4E00 + 6622)


def test_a_newline_after_the_last_character_is_no_character() -> None:
    assert run(one_hot([1, 2], 3), "ctc", metadata={"character": "a\nb\n"}) == "ab"


def test_a_character_set_of_another_size_is_refused_with_both_sizes() -> None:
    with pytest.raises(InputError) as e:
        run(one_hot([1], 9), "ctc", charset="ab")
    assert str(e.value) == (
        "decode.options.charset: has 2 symbols and blank 0, but the model has 9 classes; "
        "expected 8 symbols, or 7 and a space\n"
        "  hint: give the character set that the model was trained with  [decode.charset]"
    )


def test_absent_metadata_is_named() -> None:
    with pytest.raises(InputError) as e:
        run(one_hot([1], 3), "ctc", metadata={"charakter": "a"})
    assert str(e.value) == (
        "metadata 'character': the model carries no such metadata, so its characters are not known\n"
        "  hint: give decode.options.charset; did you mean 'charakter'?  [decode.charset]"
    )


def test_boxes_return_to_the_pictures_pixels_through_the_letterbox() -> None:
    # 100×200 into 64×64: ratio 0.32, 32×64, 16 rows of padding. (10, 20, 60, 80) → ×0.32, +16 rows.
    _, meta = apply(np.zeros((100, 200, 3), np.uint8), Preprocess(size=(64, 64), resize="letterbox"))
    got = run([[[3.2, 22.4, 19.2, 41.6, 0.9, 7]]], "boxes", meta)
    np.testing.assert_allclose(got.xyxy, [[10, 20, 60, 80]], atol=1e-4)
    assert got.classes.tolist() == [7]
    np.testing.assert_allclose(got.scores, [0.9])


@given(st.sampled_from(["stretch", "letterbox", "crop", "none"]), st.integers(20, 90), st.integers(20, 90))
def test_every_way_of_resizing_is_undone(resize: Any, height: int, width: int) -> None:
    _, meta = apply(np.zeros((height, width, 3), np.uint8), Preprocess(size=(48, 64), resize=resize))
    (sy, sx), (py, px) = meta["scale"], meta["pad"]
    box = np.array([width * 0.25, height * 0.5, width * 0.75, height])
    moved = box * [sx, sy, sx, sy] + [px, py, px, py]
    got = run([[[*moved, 0.5, 0]]], "boxes", meta)
    np.testing.assert_allclose(got.xyxy[0], box, atol=1e-3)


def test_boxes_are_clipped_to_the_picture() -> None:
    meta = {"size": (10, 20), "input": (10, 20), "scale": (1.0, 1.0), "pad": (0.0, 0.0)}
    got = run([[[-5, -5, 50, 50, 0.9, 0]]], "boxes", meta)
    assert got.xyxy.tolist() == [[0, 0, 20, 10]]


def test_the_three_formats_give_the_same_boxes() -> None:
    corners = [[[10, 20, 30, 60, 0.72, 1], [50, 50, 60, 70, 0.4, 0]]]
    v8 = np.array([[20, 40, 20, 40, 0.1, 0.72], [55, 60, 10, 20, 0.4, 0.2]]).T[None]
    v5 = [[[20, 40, 20, 40, 0.8, 0.1, 0.9], [55, 60, 10, 20, 0.5, 0.8, 0.4]]]
    want = run(corners, "boxes")
    for array, name in ((v8, "yolov8"), (v5, "yolov5")):
        got = run(array, "boxes", format=name)
        np.testing.assert_allclose(got.xyxy, want.xyxy, atol=1e-4)
        np.testing.assert_allclose(got.scores, want.scores, rtol=1e-6)
        assert got.classes.tolist() == want.classes.tolist() == [1, 0]


def test_normalised_boxes_are_shares_of_the_input() -> None:
    meta = {"size": (50, 100), "input": (100, 200), "scale": (2.0, 2.0), "pad": (0.0, 0.0)}
    got = run([[[0.1, 0.2, 0.5, 0.6, 0.9, 0]]], "boxes", meta, normalized=True)
    np.testing.assert_allclose(got.xyxy, [[10, 10, 50, 30]], atol=1e-5)


def test_only_boxes_of_the_same_class_suppress_each_other() -> None:
    rows = [[[0, 0, 10, 10, 0.8, 0], [0, 0, 10, 9, 0.9, 0], [0, 0, 10, 10, 0.7, 1]]]
    got = run(rows, "boxes", iou=0.5)
    assert [round(float(s), 1) for s in got.scores] == [0.9, 0.7]


def test_low_scores_non_finite_boxes_and_those_beyond_the_maximum_are_dropped() -> None:
    rows = [[[0, 0, 1, 1, 0.2, 0], [5, 5, 6, 6, 0.9, 0], [np.nan, 0, 1, 1, 0.9, 0], [8, 8, 9, 9, 0.8, 0]]]
    assert len(run(rows, "boxes", score=0.3).scores) == 2
    assert len(run(rows, "boxes", max=1).scores) == 1


@given(st.integers(0, 2**32 - 1))
def test_suppression_equals_its_definition_pair_by_pair(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(0, 25))
    corner = rng.integers(0, 20, (n, 2))
    xyxy = np.concatenate([corner, corner + rng.integers(1, 15, (n, 2))], axis=1).astype(float)
    scores, classes = rng.random(n), rng.integers(0, 2, n)
    kept: list[int] = []
    for i in sorted(range(n), key=lambda i: -scores[i]):

        def iou(j: int, i: int = i) -> float:
            w = min(xyxy[i, 2], xyxy[j, 2]) - max(xyxy[i, 0], xyxy[j, 0])
            h = min(xyxy[i, 3], xyxy[j, 3]) - max(xyxy[i, 1], xyxy[j, 1])
            inter = max(w, 0) * max(h, 0)
            area = [(xyxy[k, 2] - xyxy[k, 0]) * (xyxy[k, 3] - xyxy[k, 1]) for k in (i, j)]
            return float(inter / (sum(area) - inter))

        if all(classes[j] != classes[i] or iou(j) <= 0.4 for j in kept):
            kept.append(i)
    assert suppressed(xyxy, scores, classes, 0.4, 100).tolist() == kept


def test_an_output_of_another_shape_is_refused_with_what_was_expected() -> None:
    with pytest.raises(InputError) as e:
        run(np.zeros((1, 4, 8)), "classes")
    assert str(e.value) == (
        "output float32[1, 4, 8]: cannot be decoded to classes; expected one score per class, e.g. [1, 1000]\n"
        "  hint: choose the output and the kind in the data file, e.g.  decode: {kind: classes, output: scores}  "
        "[decode.shape]"
    )
    with pytest.raises(InputError, match=r"cannot be decoded to boxes as yolov8; expected \[1, 4\+classes, N\]"):
        run(np.zeros((1, 3, 8)), "boxes", format="yolov8")
    with pytest.raises(InputError, match=r"cannot be decoded to ctc; expected"):
        run(np.zeros((2, 3, 8)), "ctc", charset="ab")


def test_an_unknown_output_and_an_unknown_option_say_what_was_meant() -> None:
    with pytest.raises(
        InputError, match=r"output 'logit': the model has no such output\n  hint: did you mean 'logits'"
    ):
        decode({"logits": np.zeros((1, 3))}, Decode("classes", "logit"), {}, {})
    with pytest.raises(InputError, match=r"decode.options: unknown key 'charsett'\n  hint: did you mean 'charset'"):
        run(one_hot([1], 3), "ctc", charsett="ab")
    with pytest.raises(InputError, match=r"score is 2\.0, iou is 0\.7, max is 100; expected"):
        run([[[0, 0, 1, 1, 1, 1]]], "boxes", score=2.0)


def test_none_leaves_the_outputs_as_they_are() -> None:
    outputs = {"y": np.ones(3)}
    assert decode(outputs, Decode("none"), {}, {}) is outputs
