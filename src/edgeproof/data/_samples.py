"""What every data format shares: lazily read samples with a digest, and the fit of an array to a model input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dataset import PICTURES, DataSpec, Example, Preprocess
from ..digest import digest_file, digest_json
from ..errors import InputError
from ..model import TensorSpec
from ..preprocess import apply, check, guess, open_picture


class Samples:
    """Samples that are read when they are asked for.

    Args:
        ids: Stable name of every sample.
        read: Index → sample.
        fingerprint: Index → anything that JSON can hold and that changes when the sample's content or label does.
        settings: What else turns files into samples, e.g. preprocessing; enters the digest.
        subject: Of errors.

    Raises:
        InputError: data.empty.
    """

    def __init__(
        self,
        ids: Sequence[str],
        read: Callable[[int], Example],
        fingerprint: Callable[[int], Any],
        settings: Mapping[str, Any],
        subject: str,
    ) -> None:
        if not ids:
            raise InputError("data.empty", subject, "has no samples", "add samples, or check the path and the format")
        self._ids = ids
        self._read = read
        self._fingerprint = fingerprint
        self._settings = settings
        self._subject = subject
        self._digest = ""

    @property
    def digest(self) -> str:
        """Covers every sample, label and setting; reads all files once."""
        if not self._digest:
            samples = [[name, self._fingerprint(i)] for i, name in enumerate(self._ids)]
            self._digest = digest_json({"settings": dict(self._settings), "samples": samples})
        return self._digest

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self._ids):
            raise IndexError(index)
        return self._read(index)

    def take(self, indices: Sequence[int]) -> Samples:
        """The samples at these indices, in this order."""
        chosen = list(indices)
        return Samples(
            [self._ids[i] for i in chosen],
            lambda i: self._read(chosen[i]),
            lambda i: self._fingerprint(chosen[i]),
            self._settings,
            self._subject,
        )


def from_pictures(
    spec: DataSpec,
    inputs: Sequence[TensorSpec],
    paths: Sequence[Path],
    names: Sequence[str],
    truth: Callable[[int, Mapping[str, Any]], Any],
    label: Callable[[int], Any],
    *,
    resize: str = "stretch",
) -> Samples:
    """One picture a sample. The first one is read at once, so that a data set that does not fit is refused early.

    Args:
        spec: With the preprocessing, or None to take it from the model's input.
        inputs: The model's inputs; one of them.
        paths: Picture files.
        names: Their stable names.
        truth: (index, meta of preprocessing) → label.
        label: Index → what the label is made from, as JSON, for the digest.
        resize: How to resize where nothing was declared.

    Raises:
        InputError: data.empty, data.mismatch, data.missing, data.picture, preprocess.value, preprocess.guess.
    """
    tensor = only_input(inputs, spec.path)
    if not paths:
        raise InputError(
            "data.empty", spec.path, "has no samples", f"expected pictures ({', '.join(sorted(PICTURES))})"
        )
    preprocess = guess(spec.preprocess, tensor, resize, spec.left_out)
    check(preprocess, spec.place("preprocess"))

    def read(i: int) -> Example:
        array, meta = apply(open_picture(paths[i]), preprocess)
        feeds = {tensor.name: fitted(array, tensor, names[i])}
        return Example(names[i], feeds, truth(i, meta), meta)

    samples = Samples(
        names,
        read,
        lambda i: [_file_digest(paths[i]), label(i)],
        {"format": spec.format, "preprocess": preprocess_json(preprocess)},
        spec.path,
    )
    samples[0]
    return samples


Convert = Callable[[NDArray[Any], str], tuple[NDArray[Any], dict[str, Any]]]


def converter(spec: DataSpec, inputs: Sequence[TensorSpec]) -> tuple[Convert, dict[str, Any]]:
    """How a given array becomes an input: preprocessed where that was declared, else as it is.

    Returns:
        Array and its name for errors → (input, meta), and what this adds to the settings of the digest.
    """
    if spec.preprocess is None:
        return lambda a, _: (a, {}), {"format": spec.format}
    preprocess = guess(spec.preprocess, only_input(inputs, spec.path), left_out=spec.left_out)
    check(preprocess, spec.place("preprocess"))
    return lambda a, name: apply(a, preprocess, name), {
        "format": spec.format,
        "preprocess": preprocess_json(preprocess),
    }


def preprocess_json(preprocess: Preprocess | None) -> Any:
    """Preprocessing settings as JSON."""
    return DataSpec("", "", preprocess).to_json()["preprocess"]


def only_input(inputs: Sequence[TensorSpec], subject: str) -> TensorSpec:
    """The input that pictures go to.

    Raises:
        InputError: data.mismatch, when there is not exactly one.
    """
    if len(inputs) != 1:
        raise InputError(
            "data.mismatch",
            subject,
            f"gives pictures for one input; the model has {len(inputs)}: {', '.join(map(str, inputs))}",
            "give all inputs as arrays (.npz) or from a Python callable",
        )
    return inputs[0]


def fitted(array: NDArray[Any], tensor: TensorSpec, sample: str, source: str = "") -> NDArray[Any]:
    """An array as the model takes it, with the batch dimension added where it lacks one.

    Floats are rounded to the model's float type (float64 → float32 is usual). Integers change their width only when
    every value fits. Nothing else is converted.

    Args:
        array: The sample.
        tensor: The model's input.
        sample: Name of the sample, for errors.
        source: Where it comes from, for errors: file and array.

    Raises:
        InputError: data.mismatch, naming the sample, what it has and what the model expects.
    """
    batched = array
    if tensor.shape is not None and array.ndim + 1 == len(tensor.shape):
        batched = array[None]
    if tensor.shape is not None and not _fits(batched.shape, tensor.shape):
        raise _mismatch(array, tensor, called(sample, source), _shape_hint(batched.shape, tensor))
    wanted = None if tensor.dtype in ("string", "unknown") else np.dtype(tensor.dtype)
    if wanted is None or batched.dtype == wanted:
        return np.ascontiguousarray(batched)
    if batched.dtype.kind == "f" and wanted.kind == "f":
        return np.ascontiguousarray(batched, dtype=wanted)
    if batched.dtype.kind in "iu" and wanted.kind in "iu":
        cast = batched.astype(wanted)
        if np.array_equal(cast, batched):
            return np.ascontiguousarray(cast)
        raise _mismatch(
            array,
            tensor,
            called(sample, source),
            f"values from {array.min()} to {array.max()} do not fit {tensor.dtype}",
        )
    raise _mismatch(
        array,
        tensor,
        called(sample, source),
        f"convert the samples to {tensor.dtype}; for uint8 pictures, add  preprocess: {{scale: 1/255}} in a data file",
    )


def called(sample: str, source: str = "") -> str:
    """What errors call a sample."""
    return f"{source}: sample {sample!r}" if source else f"sample {sample!r}"


def _fits(shape: tuple[int, ...], wanted: tuple[int | str, ...]) -> bool:
    return len(shape) == len(wanted) and all(isinstance(w, str) or s == w for s, w in zip(shape, wanted, strict=True))


def _shape_hint(shape: tuple[int, ...], tensor: TensorSpec) -> str:
    batch = tensor.shape[0] if tensor.shape else None
    if isinstance(batch, int) and batch > 1 and shape[:1] == (1,):
        return f"the model takes batches of {batch}; export it with batch 1 or a dynamic batch"
    return "declare preprocess with the model's size and layout, or make the samples that shape"


def _mismatch(array: NDArray[Any], tensor: TensorSpec, subject: str, hint: str) -> InputError:
    return InputError(
        "data.mismatch",
        subject,
        f"is {array.dtype}[{', '.join(map(str, array.shape))}]; the model expects {tensor}",
        hint,
    )


def bad_label(sample: str, problem: str, hint: str, source: str = "") -> InputError:
    """A label that is outside the classes or not of the right form."""
    return InputError("data.label", called(sample, source), problem, hint)


def beside(spec: DataSpec, name: str) -> Path:
    """A path from the options: looked for beside the samples, then in the folder of the data file.

    Raises:
        InputError: data.missing.
    """
    samples = Path(spec.path)
    places = (samples / name, samples.parent / name, Path(spec.root, name))
    for place in places:
        if place.exists():
            return place
    raise InputError("data.missing", name, f"no such file or folder beside {spec.path}", "check the path in options")


def existing(spec: DataSpec) -> Path:
    """The path of the samples.

    Raises:
        InputError: data.missing.
    """
    path = Path(spec.path)
    if not path.exists():
        raise InputError("data.missing", spec.path, "no such file or folder", "check the path of the data")
    return path


def lines_of(path: Path) -> list[str]:
    """Lines of a UTF-8 text file, without line ends and a byte-order mark.

    Raises:
        InputError: data.missing, data.encoding.
    """
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError as e:
        raise InputError("data.missing", str(path), "no such file", "check the path of the data") from e
    except UnicodeDecodeError as e:
        raise InputError("data.encoding", str(path), "is not UTF-8 text", "save it as UTF-8") from e


def _file_digest(path: Path) -> str:
    try:
        return digest_file(path)
    except FileNotFoundError as e:
        raise InputError("data.missing", str(path), "no such picture", "check the path in the data set") from e
