"""Transforms of a model, one a file: Model → Change on ONNX only, pure, with a reason for what was left alone."""
