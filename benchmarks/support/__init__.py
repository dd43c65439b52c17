"""What every runtime does with every ONNX operator, asked of the runtimes themselves."""
