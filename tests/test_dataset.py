from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jsonschema
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import edgeproof.dataset
from edgeproof import registry
from edgeproof.dataset import EXAMPLE, DataSpec, Decode, Preprocess, describe, load_spec, split
from edgeproof.errors import InputError
from edgeproof.preprocess import DTYPES

PACKAGE = Path(edgeproof.dataset.__file__).parent
SCHEMA = json.loads((PACKAGE / "dataset.schema.json").read_text())
DOCS = (Path(__file__).parents[1] / "docs/data.md").read_text()


def refused(text: str) -> InputError:
    with pytest.raises(InputError) as e:
        load_spec(text)
    return e.value


# --- the split


@given(st.integers(1, 3000), st.integers(0, 5))
def test_parts_are_disjoint_complete_and_within_their_shares(n: int, seed: int) -> None:
    parts = split(n, seed)
    together = sorted(parts.calibration + parts.search + parts.confirm)
    assert together == list(range(n))
    assert parts == split(n, seed)
    assert parts.confirm
    if n >= 5:
        assert 1 <= len(parts.calibration) <= min(128, n / 5)
        assert 1 <= len(parts.search) <= 0.3 * n


@pytest.mark.parametrize(
    ("n", "sizes"),
    [
        (1, (0, 0, 1)),
        (2, (1, 0, 1)),
        (3, (1, 1, 1)),
        (4, (1, 1, 2)),
        (5, (1, 1, 3)),
        (10, (2, 3, 5)),
        (1000, (128, 300, 572)),
    ],
)
def test_few_samples_are_divided_as_documented(n: int, sizes: tuple[int, int, int]) -> None:
    parts = split(n)
    assert (len(parts.calibration), len(parts.search), len(parts.confirm)) == sizes


def test_the_seed_changes_the_parts_and_counts_can_be_given() -> None:
    assert split(100, 0) != split(100, 1)
    parts = split(100, 0, calibration=0, search=99)
    assert (len(parts.calibration), len(parts.search), len(parts.confirm)) == (0, 99, 1)


def test_the_order_is_fixed_for_ever() -> None:
    # printf 7:0 | sha256sum … begin with f5, d7, 8d, 11, 02, so the order is 4, 3, 2, 1, 0
    parts = split(5, 7, calibration=2, search=2)
    assert (parts.calibration, parts.search, parts.confirm) == ((3, 4), (1, 2), (0,))


def test_nothing_left_to_confirm_on_is_refused() -> None:
    with pytest.raises(InputError) as e:
        split(10, calibration=5, search=5)
    assert str(e.value) == (
        "data: 5 samples to calibrate and 5 to search leave none of 10 to confirm on\n"
        "  hint: lower these counts or add samples  [data.split]"
    )
    with pytest.raises(InputError, match="0 samples cannot be split"):
        split(0)


# --- what --data takes


@pytest.mark.parametrize(
    ("files", "name", "form"),
    [
        (["cat/1.png"], "", "images"),
        (["labels.csv"], "", "images"),
        (["l.csv"], "l.csv", "images"),
        (["x.npz"], "x.npz", "npz"),
        (["x.npy"], "x.npy", "npz"),
        (["i.json"], "i.json", "coco"),
        (["annotations/i.json", "val/1.png"], "", "coco"),
        (["images/1.png", "labels/1.txt"], "", "yolo"),
        (["valid/images/1.png", "valid/labels/1.txt"], "", "yolo"),
        (["a.txt"], "a.txt", "text"),
        (["a.tsv"], "a.tsv", "text"),
        (["a.jsonl"], "a.jsonl", "text"),
    ],
)
@pytest.mark.parametrize("by_file", [False, True])
def test_the_format_is_told_by_the_path(tmp_path: Path, files: list[str], name: str, form: str, by_file: bool) -> None:
    for file in files:
        (tmp_path / "d" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / file).touch()
    if by_file:
        (tmp_path / "data.yaml").write_text(f"path: d/{name}\n")
    spec = load_spec(str(tmp_path / "data.yaml" if by_file else tmp_path / "d" / name))
    assert spec.format == form
    assert Path(spec.path) == tmp_path / "d" / name
    if form == "coco" and not name:
        assert spec.options["annotations"] == "annotations/i.json"


@pytest.mark.parametrize("name", ["mine.py:load", "package.module:Class.load"])
def test_a_callable_is_told_by_its_form(name: str) -> None:
    assert load_spec(name).format == "callable"
    assert load_spec(f"path: {name}\n").path == name


def test_a_yolo_data_file_is_a_data_set_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text("names: [a]\nval: images\n")
    spec = load_spec(str(tmp_path / "data.yaml"))
    assert (spec.format, spec.path) == ("yolo", str(tmp_path / "data.yaml"))


def test_every_key_of_a_data_file_arrives(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text(
        "format: images\npath: p\nlimit: 5\nseed: 2\nmetric: top5\noptions: {classes: c.txt}\n"
        "preprocess: {size: [4, 6], scale: 1/255, mean: 0.5, std: [1, 2, 1e-3], resize: none}\n"
        "decode: {kind: classes, output: y, options: {offset: 1}}\n"
    )
    spec = load_spec(str(tmp_path / "d.yaml"))
    assert spec == DataSpec(
        "images",
        str(tmp_path / "p"),
        Preprocess(size=(4, 6), scale=1 / 255, mean=(0.5,), std=(1.0, 2.0, 0.001), resize="none"),
        Decode("classes", "y", {"offset": 1}),
        "top5",
        limit=5,
        seed=2,
        options={"classes": "c.txt"},
        root=str(tmp_path),
        source=str(tmp_path / "d.yaml"),
        left_out=("crop_fraction", "pad_value", "interpolation", "colour", "layout", "dtype"),
    )
    assert DataSpec.from_json(json.loads(json.dumps(spec.to_json(paths=True)))) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format: npz\npaht: x\npath: y", "data: unknown key 'paht'\n  hint: did you mean 'path'?  [data.key]"),
        ("format: npz\nlimit: 3", "data: has no 'path'\n  hint: add path: where the samples are  [data.key]"),
        (
            "format: npz\npath: x\npreprocess: {resise: crop}",
            "data: preprocess: unknown key 'resise'\n  hint: did you mean 'resize'?  [data.key]",
        ),
        (
            "format: npz\npath: x\npreprocess: {resize: leterbox}",
            "data: preprocess: resize: is 'leterbox'\n  hint: did you mean 'letterbox'?  [data.value]",
        ),
        (
            "format: npz\npath: x\npreprocess: {size: 224}",
            f"data: preprocess: size: is 224; expected a list of 2\n  hint: {EXAMPLE}  [data.value]",
        ),
        (
            "format: npz\npath: x\npreprocess: {scale: fast}",
            f"data: preprocess: scale: is 'fast'; expected a finite number\n  hint: {EXAMPLE}  [data.value]",
        ),
        (
            "format: npz\npath: x\nlimit: many",
            f"data: limit: is 'many'; expected a whole number\n  hint: {EXAMPLE}  [data.value]",
        ),
        (
            "format: npz\npath: x\noptions: {labels: [1]}",
            f"data: options.labels: is [1]; expected one value\n  hint: {EXAMPLE}  [data.value]",
        ),
        (
            "- 1\n- 2",
            f"data: is [1, 2]; expected keys and values\n  hint: {EXAMPLE}  [data.value]",
        ),
    ],
)
def test_a_mistake_in_a_data_file_says_what_was_meant(text: str, message: str) -> None:
    assert str(refused(text + "\n")) == message


def test_what_is_not_there_or_not_known_is_refused(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert str(refused(str(gone))) == (
        f"{gone}: no such file or folder, and not of the form file.py:callable\n"
        "  hint: check the path given to --data  [data.missing]"
    )
    assert refused(str(tmp_path / "gone.yaml")).code == "data.missing"
    assert str(refused(str(tmp_path))) == (
        f"{tmp_path}: has no samples (the folder is empty)\n  hint: add samples to it  [data.empty]"
    )
    (tmp_path / "a.wav").touch()
    assert refused(str(tmp_path / "a.wav")).problem == "what kind of samples a .wav file holds is not known"
    assert refused(str(tmp_path)).code == "data.format"
    (tmp_path / "a.yaml").write_text("path: [")
    assert refused(str(tmp_path / "a.yaml")).code == "data.not_yaml"
    (tmp_path / "a.yaml").write_bytes(b"\xff")
    assert refused(str(tmp_path / "a.yaml")).code == "data.not_yaml"


def test_describing_shows_every_setting_in_force() -> None:
    spec = DataSpec("images", "photos", Preprocess((224, 224), "letterbox", scale=0.5, mean=(1.0, 2.0, 3.0)), limit=9)
    assert describe(spec).splitlines() == [
        "data        images at photos, 9 samples at most",
        "preprocess  letterbox to 224×224 (height×width), bilinear; rgb; pad with 114; "
        "(x × 0.5 − [1, 2, 3]) / 1; float32 nchw",
        "decode      auto of the first output",
        "quality     by the kind of the labels",
    ]


def test_the_evaluator_digest_covers_settings_and_source_but_no_path(tmp_path: Path) -> None:
    def digest(body: str = "", folder: str = "a", **more: Any) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "s.py").write_text(body)
        return DataSpec("npz", folder, evaluator="s.py:f", root=str(tmp_path / folder), **more).evaluator_digest

    assert digest() == digest(folder="b")
    assert len({digest(), digest("#"), digest(metric="top1"), digest(preprocess=Preprocess())}) == 4


# --- schema and documentation


def literals(cls: type, name: str) -> list[Any]:
    return list(get_args(get_type_hints(cls)[name]))


@pytest.mark.parametrize(
    ("cls", "where"),
    [
        (DataSpec, SCHEMA),
        (Preprocess, SCHEMA["properties"]["preprocess"]),
        (Decode, SCHEMA["properties"]["decode"]),
    ],
)
def test_the_schema_has_the_fields_values_and_defaults_of_the_code(cls: Any, where: Any) -> None:
    properties = where["properties"]
    assert list(properties) == [f.name for f in fields(cls)]
    for f in fields(cls):
        if "enum" in properties[f.name] and f.name != "dtype":
            assert properties[f.name]["enum"] == literals(cls, f.name)
        if "default" in properties[f.name]:
            default = list(f.default) if isinstance(f.default, tuple) else f.default
            assert properties[f.name]["default"] == default
    if cls is Preprocess:
        assert properties["dtype"]["enum"] == list(DTYPES)


EXAMPLES = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)


def test_the_page_has_an_example_of_every_format() -> None:
    assert {yaml.safe_load(e)["format"] for e in EXAMPLES} == set(registry.names("data"))


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_of_the_page_are_valid(text: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(yaml.safe_load(text), SCHEMA)
    spec = load_spec(text)
    assert spec.format in registry.names("data")
    from edgeproof.dataset import settings_from
    from edgeproof.decode import check

    settings_from(registry.load("data", spec.format).options, spec.options, "options")
    if spec.decode.kind != "auto":
        check(spec.decode)


def test_the_page_names_every_key_metric_and_option() -> None:
    names = [f.name for cls in (DataSpec, Preprocess, Decode) for f in fields(cls)]
    names += registry.names("metrics")
    names += [f.name for form in registry.names("data") for f in fields(registry.load("data", form).options)]
    assert [n for n in names if f"`{n}`" not in DOCS and f"`decode.{n}`" not in DOCS and f".{n}`" not in DOCS] == []


def test_the_python_examples_of_the_page_run(tmp_path: Path) -> None:
    samples, score = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    (tmp_path / "samples.py").write_text(samples)
    (tmp_path / "score.py").write_text(score)
    spec = load_spec(str(tmp_path / "samples.py") + ":load")
    from edgeproof.model import TensorSpec

    data = registry.load("data", spec.format)().open(spec, (TensorSpec("x", "float32", ("n", 4)),))
    assert [data[i].truth for i in range(len(data))] == [0, 1, 2]
    error = registry.callable_at("score.py:error", tmp_path)
    assert (error({"price": np.array([[3.0]])}, 5, {}), error.better) == (2.0, "lower")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    ["path: d\noptions: 3\n", "path: d\nlimit: " + "9" * 5000 + "\n", "path: 2020-99-99\n"],
    ids=["options that are a number", "a number too long to read", "a date that does not exist"],
)
def test_values_that_yaml_or_python_trip_over_are_bad_input(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d" / "0").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        load_spec(text)
