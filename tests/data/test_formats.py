from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgeproof import registry
from edgeproof.dataset import Boxes, DataSpec, Example, Preprocess, load_spec
from edgeproof.errors import InputError
from edgeproof.model import TensorSpec
from edgeproof.protocols import Dataset

PICTURE = (TensorSpec("x", "float32", (1, 3, 8, 8)),)
VECTOR = (TensorSpec("x", "float32", ("n", 4)),)


def save(path: Path, colour: int = 0, size: tuple[int, int] = (8, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (colour, 0, 0)).save(path)
    return path


def opened(where: Path | str, inputs: tuple[TensorSpec, ...] = PICTURE, **options: Any) -> Dataset:
    spec = load_spec(str(where))
    spec = DataSpec(spec.format, spec.path, options={**spec.options, **options}, root=spec.root)
    dataset: Dataset = registry.load("data", spec.format)().open(spec, inputs)
    return dataset


def refused(make: Callable[[], Any]) -> InputError:
    with pytest.raises(InputError) as e:
        make()
    return e.value


# --- pictures with a class


def test_classes_are_the_sorted_names_of_subfolders(tmp_path: Path) -> None:
    for name in ("dog/1.png", "ant/2.png", "cat/3.png", "ant/1.png", "ant/._1.png", ".cache/1.png"):
        save(tmp_path / name)
    data = opened(tmp_path)
    assert [(e.id, e.truth) for e in data] == [("ant/1.png", 0), ("ant/2.png", 0), ("cat/3.png", 1), ("dog/1.png", 2)]  # type: ignore[attr-defined]
    assert data[0].feeds["x"].shape == (1, 3, 8, 8)


def test_folders_named_by_numbers_are_the_class_numbers(tmp_path: Path) -> None:
    for name in ("0/a.png", "10/a.png", "2/a.png"):
        save(tmp_path / name)
    assert sorted(opened(tmp_path)[i].truth for i in range(3)) == [0, 2, 10]


def test_a_classes_file_gives_the_order(tmp_path: Path) -> None:
    for name in ("dog/1.png", "cat/1.png"):
        save(tmp_path / name)
    (tmp_path / "names.txt").write_text("dog\nemu\ncat\n")
    data = opened(tmp_path, classes="names.txt")
    assert [data[i].truth for i in range(2)] == [2, 0]


def test_a_folder_that_is_no_class_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "dogg/1.png")
    (tmp_path / "names.txt").write_text("dog\ncat\n")
    assert str(refused(lambda: opened(tmp_path, classes="names.txt"))) == (
        "sample 'dogg/1.png': has label 'dogg', which is not one of the classes\n"
        "  hint: did you mean 'dog'?  [data.label]"
    )


def test_a_number_outside_the_classes_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text("a.png,7\n")
    (tmp_path / "names.txt").write_text("dog\ncat\n")
    assert str(refused(lambda: opened(tmp_path, classes="names.txt"))) == (
        "sample 'a.png': has label 7; expected 0..1\n  hint: fix the label or the classes file  [data.label]"
    )


@pytest.mark.parametrize(("name", "separator"), [("labels.csv", ","), ("labels.tsv", "\t")])
def test_a_table_with_a_heading_names_pictures_and_labels(tmp_path: Path, name: str, separator: str) -> None:
    save(tmp_path / "p/a.png")
    save(tmp_path / "p/b.png")
    (tmp_path / name).write_text(f"path{separator}label\np/a.png{separator}zebra\np/b.png{separator}ant\n")
    assert [opened(tmp_path)[i].truth for i in range(2)] == [1, 0]


def test_a_picture_that_is_listed_but_absent_is_named(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("a.png,7\n")
    error = refused(lambda: opened(tmp_path))
    assert (error.code, error.subject, error.problem) == ("data.missing", str(tmp_path / "a.png"), "no such picture")


def test_an_empty_folder_of_classes_has_no_samples(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    assert str(refused(lambda: opened(tmp_path))) == (
        f"{tmp_path}: has no samples\n  hint: expected pictures "
        "(.bmp, .jpeg, .jpg, .pgm, .png, .ppm, .tif, .tiff, .webp)  [data.empty]"
    )


def test_pictures_of_the_wrong_size_name_sample_value_and_expectation(tmp_path: Path) -> None:
    save(tmp_path / "cat/1.png", size=(9, 5))
    spec = DataSpec("images", str(tmp_path), Preprocess(resize="none"))
    assert str(refused(lambda: registry.load("data", "images")().open(spec, PICTURE))) == (
        "sample 'cat/1.png': is float32[3, 5, 9]; the model expects x float32[1, 3, 8, 8]\n"
        "  hint: declare preprocess with the model's size and layout, or make the samples that shape  [data.mismatch]"
    )


def test_a_model_with_a_fixed_larger_batch_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "cat/1.png")
    error = refused(lambda: opened(tmp_path, (TensorSpec("x", "float32", (16, 3, 8, 8)),)))
    assert error.hint == "the model takes batches of 16; export it with batch 1 or a dynamic batch"


def test_a_broken_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/1.jpg").write_bytes(b"\xff\xd8\xff\xe0 not a picture")
    error = refused(lambda: opened(tmp_path))
    assert (error.code, error.subject) == ("data.picture", str(tmp_path / "cat/1.jpg"))


def test_pictures_for_a_model_with_two_inputs_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "cat/1.png")
    two = (*PICTURE, TensorSpec("size", "int64", (2,)))
    assert "the model has 2: x float32[1, 3, 8, 8], size int64[2]" in refused(lambda: opened(tmp_path, two)).problem


# --- digests


def test_the_digest_changes_with_a_pixel_a_label_a_name_and_a_setting_but_not_with_the_folder(tmp_path: Path) -> None:
    def made(name: str, colour: int = 0, label: str = "cat", preprocess: Preprocess | None = None) -> str:
        save(tmp_path / name / label / "1.png", colour)
        save(tmp_path / name / "zoo" / "1.png", 9)
        spec = DataSpec("images", str(tmp_path / name), preprocess)
        return str(registry.load("data", "images")().open(spec, PICTURE).digest)

    first = made("a")
    assert first == made("b")
    assert len({first, made("c", colour=1), made("d", label="zzz"), made("e", preprocess=Preprocess(scale=0.5))}) == 4


def test_a_part_has_a_digest_of_its_own(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
    data = opened(tmp_path / "x.npy", VECTOR)
    assert data.take([0, 1]).digest == data.take([0, 1, 2]).take([0, 1]).digest
    assert len({data.digest, data.take([0, 1]).digest, data.take([1, 0]).digest}) == 3
    assert data.take([2])[0].id == "2"


# --- arrays


@pytest.mark.parametrize("save_arrays", [np.savez, np.savez_compressed])
def test_arrays_are_named_like_the_inputs_beside_their_labels(tmp_path: Path, save_arrays: Any) -> None:
    a, b = np.arange(6.0).reshape(3, 2), np.arange(3)
    save_arrays(tmp_path / "d.npz", a=a, b=b, labels=np.array([2, 0, 1]))
    inputs = (TensorSpec("a", "float32", (1, 2)), TensorSpec("b", "int64", (1,)))
    data = opened(tmp_path / "d.npz", inputs)
    assert len(data) == 3
    np.testing.assert_array_equal(data[1].feeds["a"], np.array([[2, 3]], np.float32))
    assert data[1].feeds["a"].dtype == np.float32
    np.testing.assert_array_equal(data[1].feeds["b"], [1])
    assert [data[i].truth for i in range(3)] == [2, 0, 1]


def test_uncompressed_arrays_are_mapped_not_loaded(tmp_path: Path) -> None:
    from edgeproof.data.npz import _arrays

    for order in ("C", "F"):
        x = np.asarray(np.random.default_rng(1).normal(size=(5, 4, 3)), order=order)  # type: ignore[call-overload]
        np.savez(tmp_path / "d.npz", x=x, empty=np.zeros((0, 2)))
        arrays = _arrays(tmp_path / "d.npz")
        assert isinstance(arrays["x"], np.memmap)
        np.testing.assert_array_equal(arrays["x"], x)
        assert arrays["empty"].shape == (0, 2)


def test_samples_may_carry_their_batch_dimension(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 1, 4), np.float32))
    assert opened(tmp_path / "x.npy", VECTOR)[0].feeds["x"].shape == (1, 4)


def test_strings_are_labels_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 4), np.float32), y=np.array(["ab", "ç"]))
    assert opened(tmp_path / "d.npz", VECTOR)[1].truth == "ç"


def test_uint8_pictures_in_arrays_can_be_preprocessed(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.full((2, 28, 28), 51, np.uint8), y=[1, 2])
    spec = DataSpec("npz", str(tmp_path / "d.npz"), Preprocess(scale=1 / 255, colour="gray"))
    data = registry.load("data", "npz")().open(spec, (TensorSpec("x", "float32", (1, 1, 14, 14)),))
    np.testing.assert_allclose(data[0].feeds["x"], np.full((1, 1, 14, 14), 0.2), rtol=1e-6)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    expected = (
        "holds Python objects (a pickle), which can run code when opened; expected plain arrays\n"
        "  hint: save numeric or fixed-width string arrays with numpy.savez  [data.pickle]"
    )
    objects = np.array([{"a": 1}, None], dtype=object)
    np.savez(tmp_path / "a.npz", x=objects)
    np.savez_compressed(tmp_path / "b.npz", x=objects)
    np.save(tmp_path / "c.npy", objects)
    for name in ("a.npz", "b.npz", "c.npy"):
        error = refused(lambda name=name: opened(tmp_path / name, VECTOR))  # type: ignore[misc]
        assert str(error) == f"{tmp_path / name}: {expected}"


@pytest.mark.parametrize("name", ["d.npz", "d.npy"])
def test_a_truncated_or_foreign_array_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 and no more")
    assert refused(lambda: opened(tmp_path / name, VECTOR)).code == "data.not_arrays"


def test_arrays_without_samples_are_empty(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((0, 4), np.float32))
    assert str(refused(lambda: opened(tmp_path / "x.npy", VECTOR))) == (
        f"{tmp_path / 'x.npy'}: has no samples\n  hint: add samples, or check the path and the format  [data.empty]"
    )


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x": np.zeros((2, 4), np.uint8)}, "is uint8[4]; the model expects x float32[n, 4]"),
        ({"x": np.zeros((2, 5), np.float32)}, "is float32[5]; the model expects x float32[n, 4]"),
        ({"x": np.zeros((2, 4), np.float32), "lables": np.zeros(2)}, "has an array 'lables' that is neither"),
        ({"a": np.zeros((2, 4)), "b": np.zeros((2, 4))}, "has no array for input 'x'; it has a, b"),
        ({"x": np.zeros((2, 4)), "y": np.zeros(3)}, "arrays have different lengths: x 2, y 3"),
        ({"x": np.float32(1)}, "array 'x' has no dimensions"),
        ({"x": np.zeros((2, 4)), "y": np.array([-1, 0])}, "has label -1; expected 0 or above"),
    ],
)
def test_arrays_that_do_not_fit_say_why(tmp_path: Path, arrays: Any, problem: str) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    assert problem in str(refused(lambda: opened(tmp_path / "d.npz", VECTOR)))


def test_integers_change_their_width_only_when_every_value_fits(tmp_path: Path) -> None:
    inputs = (TensorSpec("x", "int8", (1, 2)),)
    np.save(tmp_path / "a.npy", np.array([[1, -128]]))
    assert opened(tmp_path / "a.npy", inputs)[0].feeds["x"].dtype == np.int8
    np.save(tmp_path / "b.npy", np.array([[1, 128]]))
    assert refused(lambda: opened(tmp_path / "b.npy", inputs)).hint == "values from 1 to 128 do not fit int8"


# --- boxes


def coco(tmp_path: Path, **change: Any) -> Path:
    save(tmp_path / "val2017/b.png", 1)
    save(tmp_path / "val2017/a.png", 2, (16, 8))
    value = {
        "images": [{"id": 9, "file_name": "b.png"}, {"id": 4, "file_name": "a.png"}],
        "categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}],
        "annotations": [
            {"id": 1, "image_id": 4, "category_id": 18, "bbox": [1, 2, 3, 4], "iscrowd": 0},
            {"id": 2, "image_id": 4, "category_id": 3, "bbox": [0, 0, 16, 8], "iscrowd": 1},
        ],
        **change,
    }
    path = tmp_path / "annotations/instances_val2017.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize("as_folder", [False, True])
def test_coco_boxes_become_corners_with_classes_by_sorted_category(tmp_path: Path, as_folder: bool) -> None:
    path = coco(tmp_path)
    data = opened(tmp_path if as_folder else path)
    assert [data[i].id for i in range(2)] == ["a.png", "b.png"]
    truth = data[0].truth
    assert truth.xyxy.tolist() == [[1, 2, 4, 6], [0, 0, 16, 8]]
    assert truth.classes.tolist() == [1, 0]
    assert truth.crowd.tolist() == [False, True]
    assert data[0].meta["scale"] == (0.5, 0.5)  # letterboxed, as nothing was declared
    assert len(data[1].truth.xyxy) == 0


def test_coco_categories_can_keep_their_id_or_be_mapped(tmp_path: Path) -> None:
    path = coco(tmp_path)
    assert opened(path, categories="id")[0].truth.classes.tolist() == [18, 3]
    assert opened(path, categories="18=5")[0].truth.classes.tolist() == [5]
    assert "expected 'order', 'id' or pairs" in refused(lambda: opened(path, categories="x")).problem


def test_coco_mistakes_are_named(tmp_path: Path) -> None:
    stray = {"id": 5, "image_id": 4, "category_id": 77, "bbox": [0, 0, 1, 1]}
    path = coco(tmp_path, annotations=[stray])
    assert str(refused(lambda: opened(path))) == (
        "sample 'annotation 5': has category 77, which instances_val2017.json does not list\n"
        "  hint: fix categories  [data.label]"
    )
    path = coco(tmp_path, annotations=[{**stray, "category_id": 3, "bbox": [1, 2]}])
    assert "has bbox [1, 2]; expected [x, y, width, height]" in str(refused(lambda: opened(path)))
    path = coco(tmp_path, images=[], annotations=[])
    assert refused(lambda: opened(path)).code == "data.empty"
    path = coco(tmp_path, images=[{"id": 1, "file_name": "gone.png"}], annotations=[])
    assert "picture 'gone.png' is in none of" in refused(lambda: opened(path)).problem
    path = coco(tmp_path, annotations=[{"id": 1}])
    assert "(KeyError 'category_id'); expected" in refused(lambda: opened(path)).problem
    path.write_text("[]")
    assert refused(lambda: opened(path)).code == "data.not_coco"
    path.write_text("{")
    assert refused(lambda: opened(path)).code == "files.not_json"


def yolo(root: Path, labels: str = "1 0.5 0.5 0.5 0.25\n", yaml: str = "names: [cat, dog]\nval: images/val\n") -> Path:
    save(root / "images/val/a.png", size=(16, 8))
    (root / "labels/val").mkdir(parents=True, exist_ok=True)
    (root / "labels/val/a.txt").write_text(labels)
    save(root / "images/val/b.png")
    (root / "data.yaml").write_text(yaml)
    return root


@pytest.mark.parametrize("name", ["", "data.yaml"])
def test_yolo_boxes_are_shares_of_the_picture(tmp_path: Path, name: str) -> None:
    data = opened(yolo(tmp_path) / name)
    assert [data[i].id for i in range(2)] == ["images/val/a.png", "images/val/b.png"]
    assert data[0].truth.xyxy.tolist() == [[4, 3, 12, 5]]
    assert data[0].truth.classes.tolist() == [1]
    assert len(data[1].truth.xyxy) == 0


def test_yolo_polygons_count_with_their_bounding_box(tmp_path: Path) -> None:
    data = opened(yolo(tmp_path, "0 0.25 0.5 0.5 0.25 0.75 1.0\n"))
    assert data[0].truth.xyxy.tolist() == [[4, 2, 12, 8]]


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ("2 0.5 0.5 0.1 0.1", "has class 2; expected 0..1"),
        ("0.5 0.5 0.5 0.1 0.1", "has class 0.5; expected 0..1"),
        ("nan 0.5 0.5 0.1 0.1", "has class nan; expected 0..1"),
        ("0 nan 0.5 0.1 0.1", "has coordinates outside 0..1: '0 nan 0.5 0.1 0.1'"),
        ("0 10 20 5 5", "has coordinates outside 0..1: '0 10 20 5 5'"),
        ("0 0.5 0.5", "has 3 numbers; expected 5"),
        ("cat 0.5 0.5 0.1 0.1", "is 'cat 0.5 0.5 0.1 0.1'; expected numbers"),
    ],
)
def test_yolo_label_mistakes_name_picture_and_line(tmp_path: Path, labels: str, problem: str) -> None:
    error = refused(lambda: opened(yolo(tmp_path, "\n" + labels)))
    assert (error.code, error.subject) == ("data.label", "sample 'images/val/a.png, line 2 of a.txt'")
    assert error.problem == problem


def test_yolo_without_any_labels_is_refused(tmp_path: Path) -> None:
    (yolo(tmp_path) / "labels/val/a.txt").unlink()
    assert "none of 2 pictures has a label file" in refused(lambda: opened(tmp_path)).problem
    assert "has no pictures for split 'tset'" in refused(lambda: opened(tmp_path, split="tset")).problem


# --- text


def test_lines_of_text_belong_to_pictures(tmp_path: Path) -> None:
    save(tmp_path / "p/1.png")
    (tmp_path / "lines.tsv").write_text("p/1.png\tHello, wörld 1\n\n", encoding="utf-8")
    (tmp_path / "lines.jsonl").write_text(json.dumps({"image": "p/1.png", "text": "Hello, wörld 1"}))
    for name in ("lines.tsv", "lines.jsonl"):
        data = opened(tmp_path / name)
        assert [(e.id, e.truth) for e in (data[0],)] == [("p/1.png", "Hello, wörld 1")]


def test_lines_with_a_tokenizer_have_a_class(tmp_path: Path) -> None:
    (tmp_path / "tok.py").write_text("import numpy as np\ndef tok(t):\n    return {'x': np.ones(4) * len(t)}\n")
    (tmp_path / "lines.txt").write_text("good\t1\nbad\t0\n")
    data = opened(tmp_path / "lines.txt", VECTOR, tokenizer=str(tmp_path / "tok.py") + ":tok")
    assert [(data[i].truth, float(data[i].feeds["x"][0, 0])) for i in range(2)] == [(1, 4.0), (0, 3.0)]
    first = data.digest
    (tmp_path / "tok.py").write_text("import numpy as np\ndef tok(t):\n    return {'x': np.zeros(4)}\n")
    assert opened(tmp_path / "lines.txt", VECTOR, tokenizer=str(tmp_path / "tok.py") + ":tok").digest != first


def test_a_tokenizer_that_fails_or_gives_other_inputs_is_named(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("good\t1\n")
    (tmp_path / "tok.py").write_text("def bad(t):\n    return 1 / 0\ndef other(t):\n    return {'z': [1]}\n")
    for name, problem in (
        ("bad", "raised ZeroDivisionError: division by zero on line 1"),
        ("other", "returned z; expected arrays for x"),
    ):
        tokenizer = f"{tmp_path / 'tok.py'}:{name}"
        assert refused(lambda t=tokenizer: opened(tmp_path / "lines.txt", VECTOR, tokenizer=t)).problem == problem  # type: ignore[misc]
    (tmp_path / "lines.txt").write_text("good\tyes\n")
    assert "has label 'yes'; expected a class index" in str(
        refused(lambda: opened(tmp_path / "lines.txt", VECTOR, tokenizer=tokenizer))
    )


def test_lines_of_another_form_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("only one column\n")
    assert str(refused(lambda: opened(tmp_path / "a.tsv"))) == (
        f"{tmp_path / 'a.tsv'}:1: has 1 columns; expected 2, separated by a tab: image, text\n"
        "  hint: separate the columns by one tab character, or write .jsonl  [data.row]"
    )
    (tmp_path / "b.jsonl").write_text('{"image": "x"}\n')
    assert "expected keys image and text" in refused(lambda: opened(tmp_path / "b.jsonl")).problem
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe\x00")
    assert refused(lambda: opened(tmp_path / "c.txt")).code == "data.encoding"
    (tmp_path / "d.txt").write_text("")
    assert refused(lambda: opened(tmp_path / "d.txt")).code == "data.empty"


# --- Python


def module(tmp_path: Path, body: str) -> str:
    (tmp_path / "mine.py").write_text("import numpy as np\nfrom edgeproof.dataset import Example\n" + body)
    return str(tmp_path / "mine.py") + ":samples"


def test_a_callable_gives_pairs_examples_or_bare_arrays(tmp_path: Path) -> None:
    x = "np.ones(4, np.float32)"
    for body in (f"({{'x': {x}}}, 3)", f"({x}, 3)", f"Example('0', {{'x': {x}}}, 3)"):
        data = opened(module(tmp_path, f"def samples():\n    yield {body}\n"), VECTOR)
        assert (data[0].id, data[0].truth, data[0].feeds["x"].shape) == ("0", 3, (1, 4))
        assert isinstance(data[0], Example)
    assert opened(module(tmp_path, f"def samples():\n    return [{x}]\n"), VECTOR)[0].truth is None


def test_a_sequence_is_read_item_by_item(tmp_path: Path) -> None:
    body = """
from collections.abc import Sequence
class Lazy(Sequence):
    read = []
    def __len__(self): return 1000
    def __getitem__(self, i):
        self.read.append(i)
        return np.full(4, i, np.float32), i % 3
samples = Lazy
"""
    data = opened(module(tmp_path, body), VECTOR)
    assert (len(data), data[7].truth) == (1000, 1)


def test_pictures_from_a_callable_can_be_preprocessed(tmp_path: Path) -> None:
    body = "def samples():\n    yield np.full((16, 32, 3), 51, np.uint8), 1\n"
    preprocess = Preprocess(resize="letterbox", scale=1 / 255)
    spec = DataSpec("callable", module(tmp_path, body), preprocess)
    data = registry.load("data", "callable")().open(spec, PICTURE)
    assert data[0].feeds["x"].shape == (1, 3, 8, 8)
    assert data[0].feeds["x"][0, 0, 4, 4] == pytest.approx(0.2)
    assert data[0].meta["scale"] == (0.25, 0.25)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("def samples():\n    return 3\n", "returned a int; expected a sequence or an iterable of samples"),
        ("def samples():\n    raise OSError('no net')\n", "raised OSError: no net"),
        ("def samples():\n    return []\n", "has no samples"),
        ("def samples():\n    return ['a']\n", "gave a sample of type str; expected a dictionary"),
        ("def samples():\n    return [({'z': np.ones(4)}, 1)]\n", "feeds z; the model expects x float32[n, 4]"),
        ("def sample():\n    return []\n", "has no 'samples'; did you mean 'sample'?"),
        ("1 / 0\n", "failed: ZeroDivisionError: division by zero"),
    ],
)
def test_a_callable_that_gives_something_else_is_named(tmp_path: Path, body: str, problem: str) -> None:
    assert problem in str(refused(lambda: opened(module(tmp_path, body), VECTOR)))


def test_the_digest_covers_what_a_callable_gives(tmp_path: Path) -> None:
    one = "def samples():\n    return [(np.ones(4), {0}), (np.ones(4) * {1}, 1)]\n"
    digests = {opened(module(tmp_path, one.format(a, b)), VECTOR).digest for a, b in ((0, 1), (1, 1), (0, 2))}
    assert len(digests) == 3


def test_boxes_from_a_callable_are_digested(tmp_path: Path) -> None:
    from edgeproof.data.callable import _truth_print

    box = Boxes(np.zeros((1, 4), np.float32), np.zeros(1, np.int64), np.ones(1, np.float32))
    other = Boxes(np.ones((1, 4), np.float32), np.zeros(1, np.int64), np.ones(1, np.float32))
    assert _truth_print(box) != _truth_print(other)
    assert _truth_print(np.int64(3)) == 3


def test_an_array_that_claims_a_negative_size_is_refused(tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (-5, 3), }".ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"1234")
    assert refused(lambda: opened(tmp_path / "a.npz", VECTOR)).code == "data.not_arrays"


@pytest.mark.parametrize(
    ("arrays", "subject"),
    [
        ({"pictures": np.zeros((2, 4), np.uint8)}, "array 'pictures': sample '0'"),
        ({"a": np.zeros((2, 4)), "y": np.array([-1, 0])}, "array 'y': sample '0'"),
    ],
)
def test_an_array_that_does_not_fit_goes_by_its_own_name_and_file(tmp_path: Path, arrays: Any, subject: str) -> None:
    np.savez(tmp_path / "d.npz", **arrays)
    assert refused(lambda: opened(tmp_path / "d.npz", VECTOR)).subject == f"{tmp_path / 'd.npz'}: {subject}"


@pytest.mark.parametrize("shape", [(3, 28, 28), (3, 28, 28, 1), (3, 1, 28, 28)])
def test_a_grey_model_needs_no_colour_and_no_order_of_axes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, shape, np.uint8)
    np.savez(tmp_path / "d.npz", images=pixels)
    (tmp_path / "d.yaml").write_text("path: d.npz\npreprocess: {scale: 1/255}\n", encoding="utf-8")
    dataset = registry.load("data", "npz")().open(
        load_spec(str(tmp_path / "d.yaml")), (TensorSpec("x", "float32", ("n", 1, 28, 28)),)
    )
    expected = pixels[2].reshape(1, 1, 28, 28).astype(np.float32) * np.float32(1 / 255)
    np.testing.assert_array_equal(dataset[2].feeds["x"], expected)


def test_a_wrong_setting_names_the_data_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 8, 8, 3), np.uint8))
    file, model = tmp_path / "d.yaml", (TensorSpec("x", "float32", ("n", 3, 8, 8)),)
    for text, place in (("options: {lables: y}", "options"), ("preprocess: {std: 0}", "preprocess.std")):
        file.write_text(f"path: d.npz\n{text}\n", encoding="utf-8")
        spec = load_spec(str(file))
        assert refused(lambda spec=spec: registry.load("data", "npz")().open(spec, model)).subject == f"{file}: {place}"
