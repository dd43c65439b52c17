from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from edgeproof.backends.onnxruntime import OnnxRuntime
from edgeproof.dataset import DataSpec, Decode, Preprocess, load_spec
from edgeproof.errors import InputError
from edgeproof.evaluate import complete, custom_metric, evaluate, metric_of, metric_units, open_dataset, quality_metric
from edgeproof.model import Model, load_model
from edgeproof.protocols import Outputs
from edgeproof.registry import names
from edgeproof.target import Target


def linear(tmp_path: Path, gain: float = 1.0, classes: int = 3) -> Model:
    """y = gain × x, [n, classes]."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "g"], ["y"])],
        "linear",
        [value("x", TensorProto.FLOAT, ["n", classes])],
        [value("y", TensorProto.FLOAT, ["n", classes])],
        [numpy_helper.from_array(np.float32(gain), "g")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    model.metadata_props.append(onnx.StringStringEntryProto(key="character", value="a\nb"))
    path = tmp_path / f"linear{gain}.onnx"
    onnx.save(model, path)
    return load_model(path)


def session(model: Model) -> Any:
    return OnnxRuntime().compile(model, Target("onnxruntime:cpu", "onnxruntime", "cpu"))


def classes(tmp_path: Path, labels: Any = (0, 1, 2, 0)) -> DataSpec:
    x = np.eye(3, dtype=np.float32)[[0, 1, 2, 1]]
    np.savez(tmp_path / "d.npz", x=x, **({} if labels is None else {"y": np.array(labels)}))
    return load_spec(str(tmp_path / "d.npz"))


def test_one_pass_scores_labels_and_differences_in_the_order_of_the_indices(tmp_path: Path) -> None:
    model, spec = linear(tmp_path), classes(tmp_path)
    seen: list[float] = []
    scores = evaluate(
        session(linear(tmp_path, 0.5)),
        open_dataset(spec, model),
        [3, 0],
        spec,
        model,
        ["top1", "cosine", "max_abs"],
        session(model),
        lambda _what, share: seen.append(share),
    )
    assert scores == {"top1": [0, 1], "cosine": [{"y": 1.0}, {"y": 1.0}], "max_abs": [{"y": 0.5}, {"y": 0.5}]}
    assert seen == [0.5, 1.0]


def test_every_output_is_computed_once_per_example(tmp_path: Path) -> None:
    model, spec = linear(tmp_path), classes(tmp_path)
    runs: list[int] = []

    class Counting:
        def __init__(self) -> None:
            self.real = session(model)

        def run(self, feeds: Any) -> Outputs:
            runs.append(1)
            outputs: Outputs = self.real.run(feeds)
            return outputs

    evaluate(Counting(), open_dataset(spec, model), range(4), spec, model, ["top1", "top5", "cosine"], session(model))  # type: ignore[arg-type]
    assert len(runs) == 4


def test_the_quality_metric_follows_the_kind_of_the_label(tmp_path: Path) -> None:
    model = linear(tmp_path)
    for labels, name, kind in (
        ((0, 1, 2, 0), "top1", "classes"),
        (list("abab"), "char_accuracy", "ctc"),
        (None, "cosine", "none"),
    ):
        spec = classes(tmp_path, labels)
        assert quality_metric(spec, open_dataset(spec, model)) == name
        assert complete(spec, model).decode == Decode(kind, "y")  # type: ignore[arg-type]
    assert quality_metric(DataSpec("coco", "x")) == "map"
    assert quality_metric(DataSpec("npz", "x", metric="top5")) == "top5"
    assert quality_metric(DataSpec("npz", "x", evaluator="a.py:f")) == "evaluator"
    with pytest.raises(InputError, match=r"d.yaml: metric: there is no metric 'topp1'\n  hint: did you mean 'top1'"):
        quality_metric(DataSpec("npz", "x", metric="topp1", source="d.yaml"))


def test_text_is_decoded_with_the_models_own_characters(tmp_path: Path) -> None:
    model, spec = linear(tmp_path), classes(tmp_path, list("aabb"))
    scores = evaluate(session(model), open_dataset(spec, model), range(4), spec, model, ["char_accuracy"])
    # one time step per sample: blank, a, b, a against a, a, b, b
    assert scores["char_accuracy"] == [[1, 1], [0, 1], [0, 1], [1, 1]]


def test_completing_writes_out_what_the_models_input_tells(tmp_path: Path) -> None:
    (tmp_path / "p/cat").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(tmp_path / "p/cat/1.png")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["y"])],
        "flat",
        [value("x", TensorProto.FLOAT, [1, 3, 4, 6])],
        [value("y", TensorProto.FLOAT, [1, 72])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "f.onnx")
    model = load_model(tmp_path / "f.onnx")
    spec = load_spec(str(tmp_path / "p"))
    done = complete(spec, model)
    assert done.preprocess == Preprocess(size=(4, 6), scale=1 / 255)
    assert done.metric == "top1"
    assert open_dataset(done, model).digest == open_dataset(spec, model).digest
    assert complete(done, model) == done


def test_a_limit_takes_the_same_samples_of_every_class_each_time(tmp_path: Path) -> None:
    model = linear(tmp_path)
    np.savez(tmp_path / "d.npz", x=np.zeros((300, 3), np.float32), y=np.repeat([0, 1, 2], 100))
    spec = DataSpec("npz", str(tmp_path / "d.npz"), limit=30)
    data = open_dataset(spec, model)
    labels = [data[i].truth for i in range(len(data))]
    assert len(data) == 30
    assert labels == sorted(labels)
    assert set(labels) == {0, 1, 2}
    assert open_dataset(spec, model).digest == data.digest
    assert open_dataset(DataSpec("npz", spec.path, limit=30, seed=1), model).digest != data.digest
    with pytest.raises(InputError, match="limit: is -1; expected 0"):
        open_dataset(DataSpec("npz", spec.path, limit=-1), model)


def test_a_label_outside_the_models_classes_is_refused(tmp_path: Path) -> None:
    model, spec = linear(tmp_path), classes(tmp_path, (0, 1, 3, 0))
    with pytest.raises(InputError) as e:
        evaluate(session(model), open_dataset(spec, model), range(4), spec, model, ["top1"])
    assert str(e.value) == (
        "sample '2': has class 3; the model has 3 classes, 0..2\n  hint: fix the label, or give options.classes, "
        "the names in the order of the model's classes  [data.label]"
    )


def test_a_label_of_another_kind_than_the_decoding_is_refused(tmp_path: Path) -> None:
    model, spec = linear(tmp_path), classes(tmp_path, list("abab"))
    with pytest.raises(InputError) as e:
        evaluate(
            session(model),
            open_dataset(spec, model),
            [0],
            DataSpec("npz", spec.path, decode=Decode("classes")),
            model,
            ["top1"],
        )
    assert str(e.value) == (
        "sample '0': has a label of type str; decoding to classes is scored against a class index\n"
        "  hint: add labels, or choose metric: cosine to compare with the original's outputs  [data.label]"
    )
    spec = classes(tmp_path, None)
    with pytest.raises(InputError, match="sample '0': has no label; decoding to none"):
        evaluate(session(model), open_dataset(spec, model), [0], spec, model, ["top1"])


def test_metrics_that_cannot_be_scored_on_samples_are_refused(tmp_path: Path) -> None:
    model, spec = linear(tmp_path), classes(tmp_path)
    for name, problem in (("latency_p95", "is measured by running the model for time"), ("sqnr", "and none was given")):
        with pytest.raises(InputError, match=problem):
            evaluate(session(model), open_dataset(spec, model), [0], spec, model, [name])


@pytest.mark.parametrize("name", ["map", "cer"])
def test_a_metric_for_another_kind_of_label_is_refused(tmp_path: Path, name: str) -> None:
    model, spec = linear(tmp_path), classes(tmp_path)
    with pytest.raises(InputError) as e:
        evaluate(session(model), open_dataset(spec, model), [0], spec, model, [name])
    assert str(e.value) == (
        f"{name}: cannot score a prediction of type ndarray against a label of type int\n"
        "  hint: leave metric out to get the one for the kind of the labels  [evaluate.metric]"
    )


def test_classes_are_not_scored_against_text(tmp_path: Path) -> None:
    model, spec = linear(tmp_path), classes(tmp_path, list("abab"))
    with pytest.raises(InputError, match="top1: cannot score a prediction of type str against a label of type str"):
        evaluate(session(model), open_dataset(spec, model), [0], spec, model, ["top1"])


def custom(tmp_path: Path, body: str) -> DataSpec:
    (tmp_path / "score.py").write_text(body)
    spec = classes(tmp_path)
    return DataSpec("npz", spec.path, evaluator="score.py:score", root=str(tmp_path))


def test_a_custom_evaluator_sees_outputs_truth_and_meta(tmp_path: Path) -> None:
    body = "def score(outputs, truth, meta):\n    return outputs['y'][0, truth] + len(meta)\n"
    body += "score.better = 'lower'\nscore.unit = 'k'\n"
    model, spec = linear(tmp_path, 2.0), custom(tmp_path, body)
    scores = evaluate(session(model), open_dataset(spec, model), range(4), spec, model, ["evaluator"])["evaluator"]
    metric = metric_of("evaluator", spec)
    assert scores == [2.0, 2.0, 2.0, 0.0]
    assert (metric.value(scores), metric.better, metric.unit, metric.kind, metric.needs) == (
        1.5,
        "lower",
        "k",
        "mean",
        "examples",
    )


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("def score(o, t, m):\n    return 1 / 0\n", "score.py:score on sample '0': raised ZeroDivisionError"),
        ("def score(o, t, m):\n    return 'high'\n", "score.py:score on sample '0': raised ValueError"),
        ("def score(o, t, m):\n    return float('nan')\n", "returned nan; expected a finite number"),
        ("def score(o, t, m):\n    return 1\nscore.better = 'up'\n", "better is 'up'; expected 'higher' or 'lower'"),
        (
            "def score(o, t, m):\n    return 1\nscore.kind = 'ratio'\n",
            "kind is 'ratio'; expected 'mean' or 'proportion'",
        ),
        ("def score(o, t, m):\n    return 0.5\nscore.kind = 'proportion'\n", "a proportion's scores are 0 or 1"),
        ("def scores(o, t, m):\n    return 1\n", "has no 'score'; did you mean 'scores'?"),
        ("score = 3\n", "is a int; expected a callable"),
    ],
)
def test_a_custom_evaluator_that_fails_is_named(tmp_path: Path, body: str, problem: str) -> None:
    model, spec = linear(tmp_path), custom(tmp_path, body)
    with pytest.raises(InputError) as e:
        evaluate(session(model), open_dataset(spec, model), [0], spec, model, ["evaluator"])
    assert problem in str(e.value)


def test_an_evaluator_file_that_is_absent_is_named() -> None:
    with pytest.raises(InputError, match=r"gone.py:f: importing gone.py failed: FileNotFoundError"):
        custom_metric("gone.py:f")
    with pytest.raises(InputError, match=r"f: expected 'file\.py:callable' or 'module:callable'"):
        custom_metric("f")


def test_an_unknown_format_says_what_was_meant(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"imagess: is not one of the data\n  hint: did you mean 'images'"):
        open_dataset(DataSpec("imagess", "x"), linear(tmp_path))


def test_units_are_known_for_every_metric() -> None:
    units = metric_units()
    assert set(units) == set(names("metrics"))
    assert (units["latency_p95"], units["throughput"], units["power"], units["temperature"]) == ("ms", "1/s", "W", "°C")
