"""``onnxruntime.quantization.quantize_static``: QDQ, a weight scale per channel, uint8 activations, int8 weights.

These types are what its documentation advises for CPUs with VNNI instructions; the rest is as it comes.
"""

from __future__ import annotations

from driving import Job, drive, reader


def quantise(job: Job) -> None:
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    quantize_static(
        job.model,
        job.out,
        reader(job),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=job.settings.get("ops"),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod[job.settings["method"]],
    )


if __name__ == "__main__":
    drive(quantise, "onnx", "onnxruntime", "onnxruntime.quantization")
