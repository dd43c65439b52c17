"""Training in a Python of its own: this end, and the process ``python -m edgeproof.train.child``.

A folder carries the job: ``model.onnx``, ``teacher.onnx``, an NPZ file per sample (inputs, label), ``job.json``. The
process writes ``trained.onnx``; on its output it tells progress and, at the end, the epochs, a line of JSON each. What
is wanted of a sample comes from the teacher there, when it is needed: nothing grows with the number of samples.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from .. import toolchain
from ..dataset import Feeds
from ..digest import digest_array, digest_json
from ..errors import EdgeproofError, InternalError, UnsupportedError, error_from
from ..files import read_json, write_json
from ..job import load_feeds, save_feeds
from ..model import Model, load_model, save_model
from ..protocols import Engine, Learner, Outputs, Progress, Session
from ..quant.calibration import observed
from ..runtimes import compile_for, find_target
from .fit import Epoch, Sample, Training, fit
from .losses import Term

ENGINES = ("torch", "tinygrad")
"""Engines, the fastest on a processor first."""

SEEN = 32
"""Samples from which the size of the teacher's values is taken."""

HELD_BYTES = 1 << 28
"""What the teacher said is kept for the next epoch up to here."""


def engine(name: str) -> Engine:
    """An engine by its name; ``auto`` takes the first that is installed, here or in a Python of its own.

    Raises:
        UnsupportedError: train.engine, with the lines that install one.
    """
    from importlib import import_module

    wanted = ENGINES if name == "auto" else (name,)
    for one in wanted:
        if one not in ENGINES:
            break
        found: Engine = import_module(f".{one}", __package__).IMPL()
        if found.missing() is None or toolchain.python_of(one) is not None:
            return found
    lines = " or ".join(f"'edgeproof targets --install {e}'" for e in wanted if e in ENGINES)
    raise UnsupportedError(
        "train.engine",
        name,
        "no engine that can train is installed" if name in ("auto", *ENGINES) else "is no engine",
        f"run {lines}" if lines else f"choose one of {', '.join(ENGINES)}",
    )


def can_train() -> bool:
    """Whether any engine is installed."""
    try:
        engine("auto")
    except UnsupportedError:
        return False
    return True


def train(
    model: Model,
    teacher: Model,
    feeds: Iterable[Feeds],
    training: Training,
    *,
    engine_name: str = "auto",
    labels: Sequence[int] | None = None,
    folder: Path | None = None,
    progress: Progress = lambda _what, _share: None,
) -> tuple[Model, list[Epoch]]:
    """Train a model in a process of its own.

    Args:
        model: What is trained: float, or with Q/DQ.
        teacher: What says how it should answer; also what a Q/DQ graph's weights start from.
        feeds: Inputs, one sample each.
        training: How.
        engine_name: See `engine`.
        labels: Class indices, for a loss with ``cross_entropy``.
        folder: Where the job is kept, to go on after an interruption; a temporary one when left out.
        progress: Told about every step.

    Raises:
        UnsupportedError: train.engine, train.crashed; and what `fit` and the engine say.
    """
    chosen = engine(engine_name)
    name = type(chosen).__module__.rpartition(".")[2]
    python = sys.executable if chosen.missing() is None else str(toolchain.python_of(name))
    with tempfile.TemporaryDirectory(prefix="edgeproof-train-") as temporary:
        root = folder or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        count = 0
        seen = [model.digest, teacher.digest]
        for count, sample in enumerate(feeds, 1):
            extra = {} if labels is None else {"labels": np.asarray([labels[count - 1]], np.int64)}
            save_feeds(root / f"{count - 1:06d}.npz", [sample, extra] if extra else [sample])
            seen.append(digest_json({n: digest_array(a) for n, a in {**sample, **extra}.items()}))
        save_model(model, root / "model.onnx")
        save_model(teacher, root / "teacher.onnx")
        masks = {n: m.tolist() for n, m in training.masks.items()}
        write_json(
            root / "job.json",
            {"engine": name, "samples": count, "of": digest_json(seen), **asdict(training), "masks": masks},
        )
        epochs = _run(name, toolchain.command(python, "edgeproof.train.child"), root, progress)
        return load_model(root / "trained.onnx"), epochs


def _run(engine_name: str, command: list[str], root: Path, progress: Progress) -> list[Epoch]:
    """Run the process, follow it, and give its error as ours."""
    epochs: list[Epoch] = []
    pipe = subprocess.PIPE
    with (root / "log.txt").open("w+", encoding="utf-8", errors="replace") as log:
        try:
            process = subprocess.Popen([*command], stdin=pipe, stdout=pipe, stderr=log, text=True, encoding="utf-8")
        except OSError as e:
            raise toolchain.broken(engine_name, e.strerror or str(e)) from e
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):  # it ended at once; its exit code says why
                process.stdin.write(f"{root.absolute()}\n")
                process.stdin.close()
            for line in process.stdout:
                if not line.endswith("\n"):
                    break  # it ended in the middle of a word; its exit code says why
                told = json.loads(line)
                if "error" in told:
                    raise error_from(told["error"])
                if "epochs" in told:
                    epochs = [Epoch(**e) for e in told["epochs"]]
                else:
                    progress(told["what"], told["share"])
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        if code != 0:
            log.seek(0)
            last = [t for t in log.read()[-4000:].splitlines() if t.strip()]
            why = f"its process ended with {code}: {last[-1][:300] if last else 'no message'}"
            hint = "use fewer samples per step, or a machine with more memory" if code == -9 else "run it again"
            raise UnsupportedError("train.crashed", "training", why, hint)
    return epochs


@final
class Samples(Sequence[Sample]):
    """Samples on disk, and what the teacher says of them.

    Args:
        root: The job's folder.
        count: How many.
        teacher: A session whose outputs are the tensors in the loss.
    """

    def __init__(self, root: Path, count: int, teacher: Session) -> None:
        self._root, self._count, self._teacher = root, count, teacher
        self._said: OrderedDict[int, Outputs] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        index = int(index)
        feeds, *labels = load_feeds(self._root / f"{index:06d}.npz")
        wanted = self._said.get(index)
        if wanted is None:
            wanted = dict(self._teacher.run(feeds))
            size = sum(a.nbytes for a in wanted.values())
            if self._bytes + size <= HELD_BYTES:
                self._said[index] = wanted
                self._bytes += size
        return feeds, {**wanted, **(labels[0] if labels else {})}


def main() -> int:
    """Do one job."""
    tell = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    root = Path(sys.stdin.readline().strip())
    try:
        _do(root, lambda value: print(json.dumps(value), file=tell, flush=True))
    except EdgeproofError as e:
        print(json.dumps({"error": e.to_json()}), file=tell, flush=True)
    return 0


def _do(root: Path, tell: Any) -> None:
    job = read_json(root / "job.json")
    training = _training(job)
    model, teacher = load_model(root / "model.onnx"), load_model(root / "teacher.onnx")
    names = tuple(dict.fromkeys(t.tensor for t in training.terms))
    place = find_target("onnxruntime:cpu", {"threads": training.threads})
    session = compile_for(place, observed(teacher, names, alone=True))
    samples = Samples(root, job["samples"], session)
    training = replace(training, terms=tuple(_with_variance(t, samples) for t in training.terms))
    learner = engine(job["engine"]).learner(model, teacher, training)
    epochs = fit(
        learner,
        samples,
        training,
        stack=all(spec.shape and isinstance(spec.shape[0], str) for spec in model.inputs),
        checkpoint=root / "checkpoint.npz",
        of=job["of"],
        progress=lambda what, share: tell({"what": what, "share": share}),
    )
    trained = learner.model()
    again = engine(job["engine"]).learner(trained, None, training)
    _check_export(learner, again, samples[0][0])
    again.close()
    save_model(trained, root / "trained.onnx")
    tell({"epochs": [asdict(epoch) for epoch in epochs]})
    learner.close()
    session.close()


def _with_variance(term: Term, samples: Samples) -> Term:
    """A term with the variance of what the teacher says of the first samples."""
    if term.kind != "mse":
        return term
    count, total, squares = 0, 0.0, 0.0
    for i in range(min(len(samples), SEEN)):
        values = samples[i][1][term.tensor].astype(np.float64)
        count, total, squares = count + values.size, total + float(values.sum()), squares + float((values**2).sum())
    return replace(term, variance=max(squares / count - (total / count) ** 2, 1e-12)) if count else term


def _training(job: Mapping[str, Any]) -> Training:
    known = {k: v for k, v in job.items() if k in Training.__slots__}
    terms = tuple(Term(**t) for t in known["terms"])
    masks = {n: np.asarray(m, bool) for n, m in known["masks"].items()}
    return Training(**{**known, "terms": terms, "masks": masks, "only": tuple(known["only"])})


EXPORTED = 1e-4
"""Largest root mean square of the difference between what was trained and what was written, as a share of the values'.

Both are run by the same engine, in which equal graphs give equal numbers: another runtime sums in another order, which
moves values across the edges between codes, and more so the deeper the model."""


def _check_export(learner: Learner, again: Learner, feeds: Feeds) -> None:
    """Hold what was written against what was trained.

    Raises:
        InternalError: train.export, naming the tensor.
    """
    own, written = learner.outputs(feeds), again.outputs(feeds)
    for name, want in own.items():
        off = float(np.sqrt(np.mean((want - written[name]) ** 2) / max(float(np.mean(want**2)), 1e-30)))
        if not off <= EXPORTED:
            raise InternalError(
                "train.export",
                name,
                f"differs by {off:.2g} of its size between training and what was written; expected at most {EXPORTED}",
                "report it with the model",
            )


if __name__ == "__main__":
    sys.exit(main())
