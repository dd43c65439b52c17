"""ONNX as a torch.fx graph: to export to runtimes that start from PyTorch, and to train.

graph.py imports; write_back.py puts what was learned back into ONNX; exporting.py calls torch.export. Operators live
one family a file, each with a table ``OPERATORS``.
"""

from .exporting import example_inputs, export
from .graph import Imported, claimed, import_model
from .write_back import write_back

__all__ = ["Imported", "claimed", "example_inputs", "export", "import_model", "write_back"]
