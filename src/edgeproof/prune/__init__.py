"""Pruning on the ONNX graph: what hangs together, how much each part matters, and the graph without the least of it."""
