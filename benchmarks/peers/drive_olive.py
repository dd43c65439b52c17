"""Olive: its pass ``OnnxStaticQuantization``, which wraps ONNX Runtime's quantiser, with a weight scale per channel."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from driving import Feeds, Job, drive


def quantise(job: Job) -> None:
    from olive.data.registry import Registry
    from olive.model import ONNXModelHandler
    from olive.passes.olive_pass import create_pass_from_dict
    from olive.passes.onnx.quantization import OnnxStaticQuantization

    @Registry.register_dataset("benchmark_samples")  # type: ignore[untyped-decorator]
    def samples(**_: Any) -> _Samples:
        return _Samples(list(job.feeds()))

    data = {
        "name": "calibration",
        "load_dataset_config": {"type": "benchmark_samples"},
        "pre_process_data_config": {"type": "skip_pre_process"},
        "post_process_data_config": {"type": "skip_post_process"},
        "dataloader_config": {"type": "no_auto_batch_dataloader"},
    }
    quantiser = create_pass_from_dict(
        OnnxStaticQuantization, {"data_config": data, "per_channel": True}, disable_search=True
    )
    with tempfile.TemporaryDirectory() as folder:
        made = quantiser.run(ONNXModelHandler(job.model), str(Path(folder) / "model.onnx"))
        shutil.copyfile(made.model_path, job.out)


class _Samples:
    """Pairs of inputs and no label, as Olive takes them."""

    def __init__(self, feeds: list[Feeds]) -> None:
        self.feeds = feeds

    def __len__(self) -> int:
        return len(self.feeds)

    def __getitem__(self, i: int) -> tuple[Feeds, int]:
        return self.feeds[i], 0


if __name__ == "__main__":
    drive(quantise, "onnx", "onnxruntime", "olive.passes.onnx.quantization")
