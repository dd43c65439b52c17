"""Pack the golden bundle: ``python tests/golden/make_bundle.py FILE``.

A file that is kept is never made anew: a later version must open what an earlier one packed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "bundle"))

from test_golden_bundle import ORDER
from test_pack import sealed

from edgeproof.bundle.pack import pack
from evidence_files import golden_signer


def make(out: Path) -> str:
    """Pack it; its digest."""
    signer, model = golden_signer(), b"model bytes"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "int8.onnx").write_bytes(model)
        sealed(folder / "e.zip", {"int8.onnx": model}, [signer], expires=None)
        inputs = (folder / "e.zip", folder / "int8.onnx")
        return pack(*inputs, ORDER, trusted=[signer.public_key], signers=[signer], out=out).digest


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
