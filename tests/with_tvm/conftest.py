"""Tests that need TVM: ``scripts/test-with tvm`` runs them, in an environment of their own."""

import importlib.util

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("tvm") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEPROOF_CACHE", str(tmp_path / "cache"))
