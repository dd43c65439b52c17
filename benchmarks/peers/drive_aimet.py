"""AIMET on ONNX: ``QuantizationSimModel`` with 8-bit types, written out as Q/DQ."""

from __future__ import annotations

from driving import Job, drive


def quantise(job: Job) -> None:
    import onnx
    from aimet_onnx.quantsim import QuantizationSimModel

    sim = QuantizationSimModel(
        onnx.load(job.model),
        quant_scheme=job.settings["scheme"],
        session_options_kwargs={"intra_op_num_threads": 1},
    )
    sim.compute_encodings(job.feeds())
    onnx.save(sim.to_onnx_qdq(prequantize_constants=True), job.out)


if __name__ == "__main__":
    drive(quantise, "onnx", "onnxruntime", "aimet_onnx.quantsim")
