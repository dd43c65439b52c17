"""edgeproof makes a trained model fit its device, and proves it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model import Model as Model
    from .model import TensorSpec as TensorSpec
    from .model import load_model as load_model
    from .model import save_model as save_model

__version__ = "0.1.0"

_WHERE = {"Model": "model", "TensorSpec": "model", "load_model": "model", "save_model": "model"}
__all__ = ["Model", "TensorSpec", "__version__", "load_model", "save_model"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import edgeproof`` stays light."""
    if name in _WHERE:
        return getattr(importlib.import_module(f"edgeproof.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'edgeproof' has no attribute {name!r}")
