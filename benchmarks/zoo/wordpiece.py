"""BERT's tokens: lower case without accents, split at spaces and punctuation, then the longest pieces first.

Source: Devlin et al. 2018 and the ``tokenizer.json`` of the model (BertNormalizer, BertPreTokenizer, WordPiece).
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

LONGEST_WORD = 100


def vocabulary(tokenizer: bytes) -> dict[str, int]:
    """Piece → id, from ``tokenizer.json``."""
    pieces: dict[str, int] = json.loads(tokenizer)["model"]["vocab"]
    return pieces


def encode(text: str, pieces: Mapping[str, int], longest: int) -> list[int]:
    """Ids of ``[CLS] text [SEP]``, at most ``longest`` of them."""
    ids = [i for word in _words(text) for i in _split(word, pieces)]
    return [pieces["[CLS]"], *ids[: longest - 2], pieces["[SEP]"]]


def batch(rows: Sequence[Sequence[int]], length: int) -> dict[str, NDArray[np.int64]]:
    """``input_ids`` and ``attention_mask``, int64 [len(rows), length], zeros on the right."""
    ids = np.zeros((len(rows), length), np.int64)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _words(text: str) -> Iterator[str]:
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    word = ""
    for c in plain:
        alone = _is_punctuation(c) or _is_ideograph(c)
        if alone or c.isspace():
            if word:
                yield word
            word = ""
            if alone:
                yield c
        elif unicodedata.category(c)[0] != "C" and c != "\ufffd":
            word += c
    if word:
        yield word


def _is_punctuation(c: str) -> bool:
    """ASCII signs count too, e.g. ``$`` and ``+``, which Unicode calls symbols."""
    return (c.isascii() and c.isprintable() and not c.isalnum() and c != " ") or unicodedata.category(c)[0] == "P"


def _is_ideograph(c: str) -> bool:
    return 0x4E00 <= ord(c) <= 0x9FFF or 0x3400 <= ord(c) <= 0x4DBF or 0xF900 <= ord(c) <= 0xFAFF


def _split(word: str, pieces: Mapping[str, int]) -> list[int]:
    if len(word) > LONGEST_WORD:
        return [pieces["[UNK]"]]
    ids: list[int] = []
    start = 0
    while start < len(word):
        prefix = "##" if start else ""
        end = next((e for e in range(len(word), start, -1) if prefix + word[start:e] in pieces), 0)
        if not end:
            return [pieces["[UNK]"]]
        ids.append(pieces[prefix + word[start:end]])
        start = end
    return ids
