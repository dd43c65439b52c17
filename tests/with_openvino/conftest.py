"""Tests that need OpenVINO: ``scripts/test-with openvino`` runs them, in an environment of their own."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("openvino") else ["test_*.py"]
