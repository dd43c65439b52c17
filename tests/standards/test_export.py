"""Every standard: the same bytes each time, nothing from evidence that does not hold, and a small install."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from securesystemslib.signer import CryptoSigner

from edgeproof import registry
from edgeproof.cli import main
from edgeproof.digest import digest_bytes
from edgeproof.errors import TrustError
from edgeproof.standards import export, read_verified
from evidence_files import tamper
from standards.sealing import GOLDEN, KEY, PUBLIC, sealed

NAMES = registry.names("standards")
STRICT = [n for n in NAMES if not registry.load("standards", n).shows_differences]
OTHER = CryptoSigner.generate_ed25519().public_key
DOCS = Path(__file__).parents[2] / "docs"


def test_the_four_standards_are_there():
    assert set(NAMES) >= {"cyclonedx", "intoto", "model_card", "sarif"}
    assert set(NAMES) - set(STRICT) == {"sarif"}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_evidence_gives_the_same_bytes_whatever_the_file_is_called(name, tmp_path):
    (tmp_path / "other name.zip").write_bytes(GOLDEN.read_bytes())
    first, second = (export(read_verified(p, [KEY]), name, [KEY]) for p in (GOLDEN, tmp_path / "other name.zip"))
    assert first == second


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_is_and_is_documented(name):
    standard = registry.load("standards", name)
    assert sys.modules[standard.__module__].__doc__
    assert standard.suffix.startswith(".")
    assert f"`{name}`" in (DOCS / "standards.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", STRICT)
def test_evidence_in_which_something_differs_is_refused(name, tmp_path):
    path = sealed(tmp_path / "e.zip")
    tamper(path, lambda v: v["decision.json"]["candidate"]["size"].update(value=1.0), hashes=False)
    with pytest.raises(TrustError) as e:
        export(read_verified(path), name)
    assert e.value.code == "standards.differences"


@pytest.mark.parametrize("name", STRICT)
def test_a_signature_by_another_key_than_was_given_is_refused(name):
    with pytest.raises(TrustError) as e:
        export(read_verified(GOLDEN, [OTHER]), name, [OTHER])
    assert e.value.code == "standards.untrusted"


@pytest.mark.parametrize("name", STRICT)
def test_unsigned_evidence_is_refused_when_a_key_was_given(name, tmp_path):
    with pytest.raises(TrustError) as e:
        export(read_verified(sealed(tmp_path / "e.zip", signed=False), [KEY]), name, [KEY])
    assert e.value.code == "standards.untrusted"


@pytest.mark.parametrize("name", STRICT)
def test_a_signature_over_something_else_is_refused_without_a_key_too(name, tmp_path):
    path = sealed(tmp_path / "e.zip")
    tamper(path, lambda v: v["manifest.json"].update(made_by="someone"), hashes=False)
    with pytest.raises(TrustError) as e:
        export(read_verified(path), name)
    assert e.value.code == "standards.attestation"


@pytest.mark.parametrize("name", NAMES)
def test_the_command_writes_beside_the_evidence_what_python_gives(name, tmp_path, capsys):
    path = tmp_path / "run.zip"
    path.write_bytes(GOLDEN.read_bytes())
    assert main(["export", str(path), "--as", name, "--key", str(PUBLIC), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    data = Path(told["path"]).read_bytes()
    assert Path(told["path"]) == path.with_suffix(registry.load("standards", name).suffix)
    assert data == export(read_verified(GOLDEN, [KEY]), name, [KEY])
    assert told["digest"] == digest_bytes(data)


def test_sarif_of_evidence_that_does_not_hold_is_written_and_ends_with_4(tmp_path, capsys):
    path = sealed(tmp_path / "e.zip")
    tamper(path, lambda v: v["decision.json"].update(state="reject"), hashes=False)
    assert main(["export", str(path), "--as", "sarif"]) == 4
    assert "evidence.recomputed" in path.with_suffix(".sarif").read_text()
    assert main(["export", str(path), "--as", "cyclonedx"]) == 4
    assert not path.with_suffix(".cdx.json").exists()


def test_the_evidence_itself_is_never_overwritten(tmp_path, capsys):
    path = sealed(tmp_path / "e.zip")
    before = path.read_bytes()
    assert main(["export", str(path), "--as", "sarif", "--out", str(path)]) == 2
    assert path.read_bytes() == before


def test_an_unknown_standard_is_guessed(capsys):
    assert main(["export", str(GOLDEN), "--as", "cyclondx"]) == 2
    assert "cyclonedx" in capsys.readouterr().err


def test_exporting_needs_none_of_the_packages_that_optimise(tmp_path):
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {{"onnx", "onnx_ir", "onnxruntime", "PIL", "pycocotools", "scipy", "cyclonedx"}}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
from edgeproof.cli import main
for name in {NAMES!r}:
    assert main(["export", {str(GOLDEN)!r}, "--as", name, "--out", f"{tmp_path}/{{name}}"]) == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {p.name for p in tmp_path.iterdir()} == set(NAMES)


def test_a_loop_of_links_is_bad_input_and_not_a_bug_of_ours(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    assert main(["export", str(loop), "--as", "sarif"]) == 2
