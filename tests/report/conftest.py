from __future__ import annotations

from pathlib import Path

import pytest
from run_builder import RunBuilder


@pytest.fixture
def builder(tmp_path: Path) -> RunBuilder:
    return RunBuilder(tmp_path / "run")
