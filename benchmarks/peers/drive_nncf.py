"""NNCF on ONNX: ``nncf.quantize``, and ``nncf.quantize_with_accuracy_control`` on lines of text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from driving import Feeds, Job, drive


def quantise(job: Job) -> dict[str, Any]:
    import nncf
    import onnx

    settings = dict(job.settings)
    validation = settings.pop("labelled", None)
    if settings.pop("transformer", False):
        settings["model_type"] = nncf.ModelType.TRANSFORMER
    model, samples = onnx.load(job.model), nncf.Dataset(_Samples(job))
    if validation is None:
        onnx.save(nncf.quantize(model, samples, subset_size=job.count, **settings), job.out)
        return {}
    lines = _Lines(Path(validation))
    relative = {"max_drop": settings.pop("max_drop"), "drop_type": nncf.DropType.RELATIVE}
    found = nncf.quantize_with_accuracy_control(
        model, samples, nncf.Dataset(lines), lines.accuracy, subset_size=job.count, **relative, **settings
    )
    onnx.save(found, job.out)
    return {"evaluations": lines.evaluations}


class _Samples:
    """Every pass over it reads the samples anew."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __iter__(self) -> Iterator[Feeds]:
        yield from self.job.feeds()

    def __len__(self) -> int:
        return self.job.count


class _Lines:
    """Labelled lines, and the share that a model reads without an error (best path, spaces left out)."""

    def __init__(self, folder: Path) -> None:
        known = json.loads((folder / "lines.json").read_text())
        self.texts: list[str] = known["texts"]
        self.symbols: list[str] = known["symbols"]
        self.folder = folder
        self.evaluations = 0
        self.latest: tuple[Any, Any] | None = None

    def __iter__(self) -> Iterator[tuple[Feeds, str]]:
        return (self[i] for i in range(len(self.texts)))

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int) -> tuple[Feeds, str]:
        with np.load(self.folder / f"{i:04}.npz") as arrays:
            return dict(arrays), self.texts[i]

    def accuracy(self, model: Any, items: Iterable[tuple[Feeds, str]]) -> tuple[float, list[float]]:
        """Asked for one item at a time too, so the session of the latest model is kept."""
        import onnxruntime as ort

        if self.latest is None or self.latest[0] is not model:
            self.latest = (model, ort.InferenceSession(model.SerializeToString()))
        session = self.latest[1]
        right = [float(self._read(session.run(None, feeds)[0]) == text) for feeds, text in items]
        self.evaluations += len(right) == len(self.texts)
        return sum(right) / len(right), right

    def _read(self, scores: np.ndarray) -> str:
        best = scores[0].argmax(-1)
        new = np.append(True, best[1:] != best[:-1])
        return "".join(self.symbols[k] for k in best[new & (best != 0)]).replace(" ", "").replace("\u3000", "")


if __name__ == "__main__":
    drive(quantise, "onnx", "onnxruntime", "nncf", "nncf.onnx")
