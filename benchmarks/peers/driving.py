"""What the drivers share. It runs in a peer's environment, so it needs no more than NumPy.

A driver is one file, ``drive_PEER.py``: it names the modules to import and a function of a `Job` that writes
``job.out``. Time counts from after the imports to the written result, children included; one thread everywhere.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

Feeds = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What to quantise.

    Attributes:
        model: The float model.
        out: Where the result goes.
        samples: Folder of ``0000.npz`` ….
        count: How many of them to use.
        settings: Of the tool.
    """

    model: str
    out: str
    samples: str
    count: int
    settings: dict[str, Any]

    def feeds(self) -> Iterator[Feeds]:
        """The samples, read one at a time."""
        for i in range(self.count):
            with np.load(Path(self.samples) / f"{i:04}.npz") as arrays:
                yield dict(arrays)


def drive(quantise: Callable[[Job], dict[str, Any] | None], *modules: str) -> None:
    """Do the job of the file named first on the command line; write what it cost to the second."""
    job, told = Job(**json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2])
    start = _cpu()
    _one_thread()
    for name in modules:
        import_module(name)
    imported, clock = _cpu(), time.perf_counter()
    facts = quantise(job) or {}
    cost = {"cpu_s": _cpu() - imported, "wall_s": time.perf_counter() - clock, "import_cpu_s": imported - start}
    told.write_text(json.dumps({**cost, **facts}))


def reader(job: Job) -> Any:
    """The samples as ONNX Runtime's quantiser wants them."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rewind()

        def get_next(self) -> Feeds | None:
            return next(self.left, None)

        def rewind(self) -> None:
            self.left = job.feeds()

        def get_first(self) -> Feeds:
            self.rewind()
            return next(job.feeds())

    return Reader()


def _one_thread() -> None:
    """Tools make sessions themselves, with a thread per core: have them ask for one."""
    import onnxruntime as ort

    made = ort.InferenceSession

    class OneThread(made):  # type: ignore[misc, valid-type]
        def __init__(self, path_or_bytes: Any, sess_options: Any = None, *args: Any, **kwargs: Any) -> None:
            options = sess_options or ort.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            super().__init__(path_or_bytes, options, *args, **kwargs)

    ort.InferenceSession = OneThread


def _cpu() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(s.ru_utime + s.ru_stime for s in spent)
