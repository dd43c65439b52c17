"""Tests that need TensorRT for RTX: ``scripts/test-with tensorrt_rtx`` runs them, in an environment of their own."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("tensorrt_rtx") else ["test_*.py"]
