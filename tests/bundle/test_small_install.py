"""The bundle side works where no model library is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import importlib, importlib.abc, pkgutil, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"onnx", "onnx_ir", "onnxruntime", "PIL", "pycocotools", "scipy"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import edgeproof.bundle
for module in pkgutil.iter_modules(edgeproof.bundle.__path__):
    importlib.import_module(f"edgeproof.bundle.{module.name}")

from datetime import UTC, datetime
from pathlib import Path
from shops import opened, publics
from test_pack import LAB, ORDER, sealed
from edgeproof.bundle.opening import open_bundle
from edgeproof.bundle.pack import pack
from edgeproof.bundle.release import add_bundle

folder = Path(sys.argv[1])
shop = opened(folder)
(folder / "int8.onnx").write_bytes(b"model bytes")
sealed(folder / "e.zip", {"int8.onnx": b"model bytes"})
made = pack(folder / "e.zip", folder / "int8.onnx", ORDER, trusted=publics([LAB]), signers=shop.keys["cameras"],
            out=folder / "a.bundle")
add_bundle(shop.folder, made.path, shop.signers, now=datetime.now(UTC))
device = shop.device()
offer = device.newest("cameras", "plate-reader")
device.download(offer, folder / "got")
with open_bundle(folder / "got") as bundle:
    bundle.check_offer(offer)
    bundle.check_files()
print("installed")
"""


def test_packing_publishing_and_fetching_need_no_model_library(tmp_path):
    tests = Path(__file__).parents[1]
    paths = f"sys.path[:0] = [{str(tests)!r}, {str(tests / 'bundle')!r}]"
    command = [sys.executable, "-W", "error", "-c", f"import sys; {paths}\n{CODE}", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("installed\n", "")
