"""Train an ONNX graph: quantisation-aware, by distillation or with labels, on one of several engines.

quantisers.py finds what training must imitate; losses.py says what is to be made small; fit.py is the loop. An engine
is one file: torch.py, tinygrad.py; learning.py is what they do alike. child.py runs an engine in its own Python.

export_tinygrad.py and export_torch.py bring networks in: `export` and `export_torch`, held against the original.
"""
