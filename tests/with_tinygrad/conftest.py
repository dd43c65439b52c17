"""Tests that need tinygrad: ``scripts/test-with tinygrad`` runs them, in an environment of their own."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("tinygrad") else ["test_*.py"]
