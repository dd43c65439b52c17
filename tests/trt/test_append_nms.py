"""Suppression behind a detection head, against a greedy loop written from its definition."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from edgeproof.errors import InputError, UnsupportedError
from edgeproof.model import Model
from edgeproof.passes.append_nms import AppendNms
from small_nets import compiled, context

DOCUMENTED = {
    "plugin_version",
    "score_threshold",
    "iou_threshold",
    "max_output_boxes",
    "background_class",
    "score_activation",
    "class_agnostic",
    "box_coding",
}
"""Attributes of EfficientNMS_TRT version 1 (TensorRT, plugin/efficientNMSPlugin)."""


def head(boxes=("n", 40, 4), scores=("n", 40, 3), opset=17, kind=TensorProto.FLOAT) -> Model:
    """A head that gives what it is fed."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["b"], ["boxes"]), helper.make_node("Identity", ["s"], ["scores"])],
        "head",
        [value("b", kind, list(boxes)), value("s", kind, list(scores))],
        [value("boxes", kind, list(boxes)), value("scores", kind, list(scores))],
    )
    return Model.of(ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])), "head")


def drawn(seed=0, images=2, count=40, classes=3):
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 60, (images, count, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(8, 30, corner.shape)], axis=2).astype(np.float32)
    return boxes, rng.uniform(0, 1, (images, count, classes)).astype(np.float32)


def overlap(a, b) -> float:
    width, height = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1))
    inner = max(width, 0) * max(height, 0)
    return inner / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inner)


def greedy(boxes, scores, most, iou, least, agnostic=False):
    """The best remaining (box, class) is kept, and what overlaps it too much is dropped."""
    order = sorted(np.ndindex(*scores.shape), key=lambda at: -scores[at])
    kept = []
    for box, label in order:
        rivals = [k for k in kept if agnostic or k[1] == label]
        if scores[box, label] > least and all(overlap(boxes[box], boxes[b]) <= iou for b, _ in rivals):
            kept.append((box, label))
    return kept[:most]


def appended(model, **settings):
    return AppendNms(boxes="boxes", scores="scores", **settings)(model, context(model)).model


def ran(model, **feeds):
    session = compiled(model)
    try:
        return session.run(feeds)
    finally:
        session.close()


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 21])
@pytest.mark.parametrize("agnostic", [False, True])
def test_the_onnx_form_keeps_what_the_greedy_loop_keeps(opset, agnostic):
    boxes, scores = drawn()
    model = appended(head(opset=opset), form="onnx", max_boxes=20, iou=0.3, score=0.2, agnostic=agnostic)
    got = ran(model, b=boxes, s=scores)
    assert [o.name for o in model.outputs] == [
        "num_detections",
        "detection_boxes",
        "detection_scores",
        "detection_classes",
    ]
    for image in range(2):
        want = greedy(boxes[image], scores[image], 20, 0.3, 0.2, agnostic)
        assert got["num_detections"][image, 0] == len(want)
        n = len(want)
        np.testing.assert_array_equal(got["detection_classes"][image, :n], [label for _, label in want])
        np.testing.assert_array_equal(got["detection_boxes"][image, :n], boxes[image, [b for b, _ in want]])
        np.testing.assert_array_equal(got["detection_scores"][image, :n], [scores[image][at] for at in want])
        assert not got["detection_scores"][image, n:].any()
        assert not got["detection_boxes"][image, n:].any()


def test_there_may_be_fewer_boxes_than_places_and_none_that_is_good_enough():
    boxes, scores = drawn(count=3)
    model = appended(head((2, 3, 4), (2, 3, 3)), form="onnx", max_boxes=50, score=0.5)
    got = ran(model, b=boxes, s=np.where([[[1]], [[0]]], scores, scores * 0))
    assert got["detection_scores"].shape == (2, 50)
    assert got["num_detections"][0, 0] == len(greedy(boxes[0], scores[0], 50, 0.5, 0.5))
    assert got["num_detections"][1, 0] == 0


def test_centres_and_logits_give_the_same_as_corners_and_probabilities():
    boxes, scores = drawn()
    want = ran(appended(head(), form="onnx"), b=boxes, s=scores)
    centres = np.concatenate([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], axis=2)
    logits = np.log(scores / (1 - scores))
    got = ran(appended(head(), form="onnx", centre=True, sigmoid=True), b=centres, s=logits)
    np.testing.assert_array_equal(got["num_detections"], want["num_detections"])
    np.testing.assert_allclose(got["detection_boxes"], want["detection_boxes"], atol=1e-4)
    np.testing.assert_allclose(got["detection_scores"], want["detection_scores"], atol=1e-5)


@pytest.mark.parametrize("turned", [False, True])
def test_one_tensor_of_boxes_and_scores_is_split(turned):
    boxes, scores = drawn()
    both = np.concatenate([boxes, scores], axis=2)
    shape = ("n", 7, 40) if turned else ("n", 40, 7)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["out"])],
        "one",
        [value("x", TensorProto.FLOAT, list(shape))],
        [value("out", TensorProto.FLOAT, list(shape))],
    )
    model = Model.of(ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])), "one")
    made = AppendNms(boxes="out", scores="out", form="onnx")(model, context(model)).model
    got = ran(made, x=both.transpose(0, 2, 1) if turned else both)
    want = ran(appended(head(), form="onnx"), b=boxes, s=scores)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)


def test_half_precision_stays_half_precision():
    boxes, scores = (a.astype(np.float16) for a in drawn())
    got = ran(appended(head(kind=TensorProto.FLOAT16), form="onnx"), b=boxes, s=scores)
    assert got["detection_boxes"].dtype == got["detection_scores"].dtype == np.float16
    assert len(greedy(boxes[0], scores[0], 100, 0.5, 0.25)) == got["num_detections"][0, 0]


def test_the_plugin_has_the_attributes_that_its_documentation_names():
    model = appended(head(), max_boxes=7, iou=0.6, score=0.1, centre=True, agnostic=True, sigmoid=True)
    (node,) = [n for n in onnx.load_from_string(model.to_bytes()).graph.node if n.op_type == "EfficientNMS_TRT"]
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert set(found) == DOCUMENTED
    assert (found["max_output_boxes"], found["box_coding"], found["class_agnostic"]) == (7, 1, 1)
    assert (found["score_activation"], found["background_class"], found["plugin_version"]) == (1, -1, b"1")
    assert list(node.input) == ["boxes", "scores"]
    shapes = {o.name: (o.dtype, o.shape) for o in model.outputs}
    assert shapes == {
        "num_detections": ("int32", ("n", 1)),
        "detection_boxes": ("float32", ("n", 7, 4)),
        "detection_scores": ("float32", ("n", 7)),
        "detection_classes": ("int32", ("n", 7)),
    }


def test_a_model_whose_tensors_are_not_named_is_left_alone():
    model = head()
    change = AppendNms()(model, context(model))
    assert change.model is model
    assert change.declined


@pytest.mark.parametrize(
    ("model", "settings", "match"),
    [
        (head(), {"boxes": "bixes", "scores": "scores"}, "'bixes': is not in the model"),
        (head(boxes=("n", 40, 5)), {"boxes": "boxes", "scores": "scores"}, r"expected boxes \[N, B, 4\]"),
        (head(scores=("n", 40)), {"boxes": "boxes", "scores": "scores"}, r"expected scores \[N, B, C\]"),
        (head(boxes=("n", 4, 4)), {"boxes": "boxes", "scores": "boxes"}, r"expected \[N, 4 \+ C, B\]"),
        (head(), {"boxes": "boxes", "scores": "scores", "iou": 1.5}, "iou: is 1.5"),
        (head(), {"boxes": "boxes", "scores": "scores", "max_boxes": 0}, "max_boxes: is 0"),
    ],
)
def test_what_does_not_fit_is_named(model, settings, match):
    with pytest.raises(InputError, match=match):
        AppendNms(**settings)(model, context(model))


def test_an_opset_without_the_operator_is_refused():
    model = head(opset=9)
    with pytest.raises(UnsupportedError, match="opset 9"):
        appended(model, form="onnx")
