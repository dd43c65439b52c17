"""Tests that need ncnn: ``scripts/test-with ncnn`` runs them, in an environment of their own."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("ncnn") else ["test_*.py"]
