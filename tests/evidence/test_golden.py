"""Evidence that earlier versions sealed verifies for good, without the packages that optimise, and byte for byte."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from securesystemslib.signer import SSlibKey

from edgeproof.bundle.keys import load_public
from edgeproof.digest import digest_file
from edgeproof.errors import TrustError
from edgeproof.evidence.verify import verify
from evidence_files import golden, golden_signer, write

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = sorted(GOLDEN.glob("evidence-*.zip"))
REFUSED = ("onnx", "onnx_ir", "onnxruntime", "PIL", "pycocotools", "sympy", "openvino", "scipy", "mlflow")


def key() -> SSlibKey:
    return load_public(GOLDEN / "evidence.pub")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_golden_file_is_still_accepted(path):
    found = verify(path, keys=[key()])
    assert (found.state, found.accepted, found.differences) == ("accept", True, ())
    assert found.timestamp == "2026-12-01T09:30:00Z"


def test_there_is_a_golden_file_of_every_format():
    assert {p.name for p in FILES} >= {"evidence-1-top1.zip", "evidence-1-cer.zip", "evidence-1-map.zip"}
    assert sum(p.stat().st_size for p in FILES) < 200_000


@pytest.mark.parametrize("name", sorted(golden()))
def test_the_same_samples_key_and_time_give_the_golden_bytes(name, tmp_path, monkeypatch):
    # They were sealed by Python 3.11 with NumPy 2.4 and by Python 3.13 with NumPy 2.5, to the same bytes.
    monkeypatch.setattr("edgeproof.evidence.seal.__version__", "0.1.0")
    write(golden()[name], tmp_path / name, [golden_signer()])
    assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()


def test_the_golden_key_is_the_one_that_tests_sign_with():
    assert key().keyid == golden_signer().public_key.keyid


def test_a_flipped_byte_anywhere_in_a_golden_file_is_never_accepted(tmp_path):
    data = (GOLDEN / "evidence-1-top1.zip").read_bytes()
    for at in range(11, len(data), len(data) // 60):
        (tmp_path / "e.zip").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert not accepted(tmp_path / "e.zip")


def accepted(path: Path) -> bool:
    try:
        return verify(path, keys=[key()]).accepted
    except TrustError:
        return False


def test_verifying_needs_none_of_the_packages_that_optimise(tmp_path):
    # A child that refuses to import them, as if they were not installed; the model's bytes are given too.
    path = GOLDEN / "evidence-1-top1.zip"
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {REFUSED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
from edgeproof.cli import main
code = main(["verify", {str(path)!r}, "--key", {str(GOLDEN / "evidence.pub")!r}, "--json"])
assert not set({REFUSED!r}) & set(sys.modules)
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["digest"] == digest_file(path)
