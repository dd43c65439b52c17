"""What the two TensorRT backends share: engines from ONNX, and what is known of them.

Everything here takes the imported module, ``tensorrt`` (10 or 11) or ``tensorrt_rtx``, as its first argument ``trt``:
the two have one Python API, and `dialect.Dialect` says where it differs. Nothing here imports either.
"""
