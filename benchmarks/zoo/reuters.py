"""Reuters R8, news in eight topics, read through sentence embeddings and a linear probe.

The texts come from a package under AGPL, downloaded for the benchmark and never a dependency. The probe is ridge
regression on the original model's embeddings of the training texts; it is part of the evaluator, so it stays the same
for every variant of the model.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeproof.digest import digest_bytes
from edgeproof.files import write_bytes, write_text

from .minilm import FOLDER
from .packages import MINILM, ORANGE_TEXT, member
from .wordpiece import batch, encode, vocabulary

LENGTH = 128
"""Tokens of a text, as in the model's tokenizer.json."""
TRAINING = 2000
"""Texts that the probe is fitted on."""
RIDGE = 1.0
BATCH = 16

DATA = """\
# News and their topics as token ids; the evaluator holds the linear probe.
format: npz
path: texts.npz
evaluator: evaluator.py:topic
"""

Embed = Callable[[Mapping[str, NDArray[np.int64]]], NDArray[np.float32]]


def texts(part: str, cache: Path) -> tuple[list[str], list[str]]:
    """Topics and texts of ``train`` or ``test``."""
    table = member(ORANGE_TEXT, f"orangecontrib/text/datasets/reuters-r8-{part}.tab", cache).decode()
    rows = [line.split("\t", 1) for line in table.splitlines()[3:] if line.strip()]
    return [r[0] for r in rows], [r[1] for r in rows]


def write_texts(cache: Path, folder: Path, count: int, seed: int, embed: Embed) -> Path:
    """Test texts as token ids, and the evaluator with a probe fitted to the training texts.

    Args:
        cache: Folder of the zoo.
        folder: Where to write.
        count: Texts; at most 2189 exist.
        seed: Of the choice of test and training texts.
        embed: The original model: ids and mask [N, T] → embeddings [N, 384].

    Returns:
        The data file.
    """
    rng = np.random.default_rng(seed)
    pieces = vocabulary(member(MINILM, f"{FOLDER}/tokenizer.json", cache))
    train_topics, train = _choice(*texts("train", cache), TRAINING, rng)
    topics, test = _choice(*texts("test", cache), count, rng)
    names = sorted(set(train_topics))
    rows = [encode(t, pieces, LENGTH) for t in train]
    probe = fit(_embedded(rows, embed), np.array([names.index(t) for t in train_topics]), len(names))

    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.save(buffer, probe)
    write_bytes(folder / "probe.npy", buffer.getvalue())
    source = Path(__file__).with_name("score_topic.py").read_text(encoding="utf-8")
    filled = source.replace('PROBE = ""', f'PROBE = "{digest_bytes(buffer.getvalue())}"', 1)
    write_text(folder / "evaluator.py", filled)
    labels = np.array([names.index(t) for t in topics], np.int64)
    arrays: dict[str, Any] = batch([encode(t, pieces, LENGTH) for t in test], LENGTH)
    buffer = io.BytesIO()
    np.savez(buffer, labels=labels, **arrays)
    write_bytes(folder / "texts.npz", buffer.getvalue())
    write_text(folder / "data.yaml", DATA)
    return folder / "data.yaml"


def _choice(
    topics: Sequence[str], bodies: Sequence[str], count: int, rng: np.random.Generator
) -> tuple[list[str], list[str]]:
    chosen = rng.permutation(len(topics))[:count]
    return [topics[i] for i in chosen], [bodies[i] for i in chosen]


def _embedded(rows: Sequence[Sequence[int]], embed: Embed) -> NDArray[np.float32]:
    """Embeddings in the order of the rows; rows of like length share a batch, so little padding is computed."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    parts = []
    for start in range(0, len(order), BATCH):
        chosen = [rows[i] for i in order[start : start + BATCH]]
        parts.append(embed(batch(chosen, len(chosen[-1]))))
    return np.concatenate(parts)[np.argsort(order)]


def fit(embeddings: NDArray[np.float32], classes: NDArray[np.intp], count: int) -> NDArray[np.float32]:
    """Ridge regression to one-hot targets: weights [width + 1, count], the last row is the bias."""
    x = np.concatenate([embeddings, np.ones((len(embeddings), 1))], axis=1).astype(np.float64)
    targets = np.eye(count)[classes]
    weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ targets)
    return weights.astype(np.float32)
