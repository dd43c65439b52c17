"""ONNX → TensorFlow Lite flatbuffers, written directly: no TensorFlow, and no quantisation but the graph's own."""
