"""Tests that need LiteRT: ``scripts/test-with litert`` runs them, in an environment of their own."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("ai_edge_litert") else ["test_*.py"]
