"""Tests that need coremltools: ``scripts/test-with coreml`` runs them, in an environment of their own."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("coremltools") else ["test_*.py"]
