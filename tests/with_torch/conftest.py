"""Tests that need torch: ``scripts/test-with torch`` runs them, in an environment of their own."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
