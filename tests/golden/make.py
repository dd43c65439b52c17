"""Seal the golden evidence files: ``python tests/golden/make.py FOLDER``. Prints the digest of each, as JSON.

Files that are kept are never made anew: a later version must verify what an earlier one sealed.
"""

import json
import platform
import sys
from pathlib import Path

import numpy as np

import edgeproof.evidence.seal

sys.path.insert(0, str(Path(__file__).parents[1]))

from evidence_files import golden, golden_signer, write

VERSION = "0.1.0"
"""The version that sealed them; it stands in the manifest."""


def make(folder: Path) -> dict[str, str]:
    """Seal all of them; name → digest."""
    edgeproof.evidence.seal.__version__ = VERSION
    folder.mkdir(parents=True, exist_ok=True)
    return {name: write(values, folder / name, [golden_signer()]).digest for name, values in golden().items()}


if __name__ == "__main__":
    files = make(Path(sys.argv[1]))
    print(json.dumps({"python": platform.python_version(), "numpy": np.__version__, "files": files}))
