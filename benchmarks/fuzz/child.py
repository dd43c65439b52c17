"""One target under atheris: ``python -m benchmarks.fuzz.child TARGET [libFuzzer's options] CORPUS``."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

PACKAGES = ["edgeproof", "tuf", "securesystemslib", "onnx_ir", "yaml"]


def main() -> None:
    with atheris.instrument_imports(include=PACKAGES):
        from edgeproof import bounds

        from . import targets
        from .edits import edited

        target = next(t for t in targets.TARGETS if t.name == sys.argv[1])
        scratch = Path(tempfile.mkdtemp())  # removed by who started this: libFuzzer ends the process itself
        run = targets.guarded(target.prepare(scratch))
        for seed in target.seeds():  # what is imported on first use is instrumented too
            run(seed)

    # A hundredth of the resamples: the same code, more often.
    bounds.bootstrap.__kwdefaults__["resamples"] = 10

    def mutated(data: bytes, most: int, seed: int) -> Any:
        rng = random.Random(seed)
        at = target.json or 0
        if rng.random() < 0.6 and (text := edited(data[at:], rng)) is not None and len(text) <= most - at:
            return data[:at] + text
        return atheris.Mutate(data, most)

    argv = [sys.argv[0], *sys.argv[2:]]
    if target.json is None:
        atheris.Setup(argv, run)
    else:
        atheris.Setup(argv, run, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
