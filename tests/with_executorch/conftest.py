"""Tests that need ExecuTorch: ``scripts/test-with executorch`` runs them, in an environment of their own."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("executorch") else ["test_*.py"]
