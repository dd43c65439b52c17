"""NVIDIA ModelOpt on ONNX, ``modelopt.onnx.quantization.quantize``, what it leaves in float kept in FP32.

Its default for those is FP16, which ONNX Runtime's CPU provider would only convert back.
"""

from __future__ import annotations

from driving import Job, drive, reader


def quantise(job: Job) -> None:
    from modelopt.onnx.quantization import quantize

    quantize(
        job.model,
        quantize_mode="int8",
        calibration_method=job.settings["method"],
        calibration_data_reader=reader(job),
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=job.out,
        log_level="ERROR",
    )


if __name__ == "__main__":
    drive(quantise, "onnx", "onnxruntime", "modelopt.onnx.quantization")
