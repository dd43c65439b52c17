"""The floor: load the float model and run it over the samples."""

from __future__ import annotations

import shutil

from driving import Job, drive


def quantise(job: Job) -> None:
    import onnxruntime as ort

    session = ort.InferenceSession(job.model)
    for feeds in job.feeds():
        session.run(None, feeds)
    shutil.copyfile(job.model, job.out)


if __name__ == "__main__":
    drive(quantise, "onnxruntime")
