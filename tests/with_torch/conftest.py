"""Tests that need torch: ``scripts/test-with torch`` runs them, in an environment of their own."""

import importlib.util
import shutil

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
# The engines are held against each other where tinygrad is there too: ``scripts/test-with torch+tinygrad``.
collect_ignore = [] if importlib.util.find_spec("tinygrad") and shutil.which("clang") else ["test_engines.py"]
