"""Packing refuses everything but a trusted accept of exactly these bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from shops import key, opened, publics

from edgeproof.archive import open_archive
from edgeproof.bundle.keys import load_public, load_signer
from edgeproof.bundle.opening import open_bundle
from edgeproof.bundle.pack import Order, interface_digest, pack
from edgeproof.bundle.release import add_bundle
from edgeproof.cli import main
from edgeproof.digest import digest_bytes, digest_file
from edgeproof.errors import InputError, TrustError
from edgeproof.manifest import Rollback, Runtime, Sla
from edgeproof.policy import Rule
from edgeproof.structure import Structure
from evidence_files import POLICY, digest, tamper, values, write

NOW = datetime(2026, 12, 24, tzinfo=UTC)
LAB, LINE = key(), key()
ORDER = Order("plate-reader", "cameras", 1, 1, ("orin-nano",), rollback=Rollback(samples=500))
POLICY_MS = replace(POLICY, rules=(*POLICY.rules, Rule("latency_p95", "<=", Decimal(80), "ms")))


def refused(action: Any) -> str:
    with pytest.raises((TrustError, InputError)) as caught:
        action()
    return caught.value.code


def sealed(out: Path, files: Mapping[str, bytes], signers: Any = (LAB,), **options: Any) -> Path:
    """Evidence that accepts a model of these files; the first is the model."""
    found = values(POLICY_MS)
    parts = [{"name": n, "size": len(d), "digest": digest_bytes(d)} for n, d in files.items()]
    assert found["analysis-candidate.json"]["files"][0]["digest"] == digest("file int8 int8")
    found["analysis-candidate.json"]["files"] = parts
    for kind in ("runs", "quality"):
        found[f"receipt-candidate-{kind}.json"]["files"] = {p["name"]: p["digest"] for p in parts}
    write(found, out, signers, **options)
    return out


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A folder with a model and the evidence that accepts it."""
    (tmp_path / "int8.onnx").write_bytes(b"model bytes")
    sealed(tmp_path / "e.zip", {"int8.onnx": b"model bytes"})
    return tmp_path


def packed(lab: Path, order: Order = ORDER, **options: Any) -> Any:
    given = {"trusted": publics([LAB]), "signers": [LINE], "out": lab / "out.bundle", "now": NOW, **options}
    return pack(lab / "e.zip", lab / "int8.onnx", order, **given)


def test_a_bundle_carries_the_model_its_evidence_and_what_it_promises(lab):
    (lab / "card.md").write_text("# Plate reader\n")
    runtime = (Runtime("onnxruntime", "1.20", "1.32"),)
    made = packed(lab, replace(ORDER, min_driver="535.104", runtime=runtime, card=lab / "card.md"))
    with open_bundle(made.path) as bundle:
        bundle.check_signature(publics([LINE]))
        bundle.check_files()
        m = bundle.manifest
        assert m == made.manifest
        assert [f.path for f in m.files] == ["card.md", "evidence.zip", "model/int8.onnx", "preprocessing.json"]
        assert (m.format, m.model, m.model_sha256) == ("onnx", "model/int8.onnx", digest_file(lab / "int8.onnx"))
        assert m.evidence == digest_file(lab / "e.zip")
        assert bundle.read("evidence.zip") == (lab / "e.zip").read_bytes()
        assert json.loads(bundle.read("preprocessing.json")) == {"decode": {"kind": "classes"}, "preprocess": None}
        assert m.interface == interface_digest(Structure.from_json(values()["analysis-candidate.json"]))
    assert [(o.metric, o.statistic, o.op, o.limit) for o in m.sla.objectives] == [("latency", "p95", "<=", 80)]
    assert (m.device_allow, m.min_driver, m.runtime) == (("orin-nano",), "535.104", runtime)
    assert made.digest == digest_file(made.path)
    assert made.accepted_by == (LAB.public_key.keyid,)


def test_the_same_inputs_give_the_same_bytes(lab):
    first = packed(lab).path.read_bytes()
    assert packed(lab, out=lab / "again.bundle").path.read_bytes() == first


def test_weights_beside_the_model_go_along(tmp_path):
    files = {"int8.onnx": b"model bytes", "int8.onnx.data": b"weights"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    sealed(tmp_path / "e.zip", files)
    with open_bundle(packed(tmp_path).path) as bundle:
        assert bundle.read("model/int8.onnx.data") == b"weights"
    (tmp_path / "int8.onnx.data").write_bytes(b"w3ights")
    assert refused(lambda: packed(tmp_path)) == "pack.other_model"
    (tmp_path / "int8.onnx.data").unlink()
    assert refused(lambda: packed(tmp_path)) == "pack.missing_file"
    (tmp_path / "elsewhere").write_bytes(b"weights")
    (tmp_path / "int8.onnx.data").symlink_to(tmp_path / "elsewhere")
    assert refused(lambda: packed(tmp_path)) == "pack.missing_file"


def test_another_model_than_the_accepted_one_is_refused(lab):
    (lab / "int8.onnx").write_bytes(b"model bytez")
    assert refused(lambda: packed(lab)) == "pack.other_model"
    assert not (lab / "out.bundle").exists()
    assert not list(lab.glob(".pack-*"))


def test_a_model_may_be_renamed_on_its_way(lab):
    (lab / "int8.onnx").rename(lab / "best.onnx")
    options = {"trusted": publics([LAB]), "signers": [LINE], "out": lab / "out.bundle", "now": NOW}
    assert pack(lab / "e.zip", lab / "best.onnx", ORDER, **options).manifest.model == "model/best.onnx"


@pytest.mark.parametrize("why", ["unsigned", "strangers", "no key", "rejected", "changed", "expired"])
def test_evidence_that_is_no_trusted_accept_is_refused(lab, why):
    files = {"int8.onnx": b"model bytes"}
    options: dict[str, Any] = {}
    if why == "unsigned":
        sealed(lab / "e.zip", files, ())
    elif why == "strangers":
        sealed(lab / "e.zip", files, (key(),))
    elif why == "no key":
        options["trusted"] = []
    elif why == "rejected":
        small = {"int8.onnx": b"x" * 12_001}  # the policy allows 12,000 bytes
        (lab / "int8.onnx").write_bytes(small["int8.onnx"])
        sealed(lab / "e.zip", small)
    elif why == "changed":
        tamper(lab / "e.zip", lambda found: found["decision.json"].update(state="hold"), hashes=False)
    else:
        options["now"] = datetime(2027, 12, 2, tzinfo=UTC)
    with pytest.raises(TrustError) as caught:
        packed(lab, **options)
    assert caught.value.code == "pack.not_accepted"
    assert not (lab / "out.bundle").exists()


def test_what_is_no_evidence_is_refused(lab):
    (lab / "e.zip").write_bytes(b"PK")
    assert refused(lambda: packed(lab)) == "archive.no_end"


def test_files_that_cannot_be_read_or_written_are_named(lab):
    assert refused(lambda: packed(lab, replace(ORDER, card=lab / "nothing.md"))) == "files.missing"
    (lab / "out.bundle").mkdir()
    assert refused(lambda: packed(lab)) == "files.wrong_kind"
    (lab / "e.zip").unlink()
    assert refused(lambda: packed(lab)) == "files.missing"


def test_a_bundle_that_nobody_signs_is_refused(lab):
    assert refused(lambda: packed(lab, signers=[])) == "pack.unsigned"


def test_a_model_that_changes_while_it_is_packed_is_noticed(lab, monkeypatch):
    from edgeproof.bundle import pack as module

    def late(path: Path, members: Any) -> str:
        (lab / "int8.onnx").write_bytes(b"other bytes")  # after it was hashed, before it is copied
        return write_archive(path, members)

    write_archive = module.write_archive
    monkeypatch.setattr(module, "write_archive", late)
    assert refused(lambda: packed(lab)) == "pack.changed"
    assert not (lab / "out.bundle").exists()


def test_a_promise_that_no_trial_can_judge_is_refused(lab):
    assert refused(lambda: packed(lab, replace(ORDER, rollback=Rollback(samples=100)))) == "manifest.value"
    packed(lab, replace(ORDER, rollback=Rollback(samples=100), sla=Sla()))


def test_a_name_that_cannot_be_a_path_is_refused(lab):
    assert refused(lambda: packed(lab, replace(ORDER, name="../x"))) == "manifest.name"
    assert refused(lambda: packed(lab, replace(ORDER, min_driver="new"))) == "manifest.version"


def test_a_packed_bundle_is_published_and_arrives(tmp_path):
    shop = opened(tmp_path)
    (tmp_path / "int8.onnx").write_bytes(b"model bytes")
    sealed(tmp_path / "e.zip", {"int8.onnx": b"model bytes"})
    made = packed(tmp_path, signers=shop.keys["cameras"])
    add_bundle(shop.folder, made.path, shop.signers, now=shop.now)
    device = shop.device()
    offer = device.newest("cameras", "plate-reader")
    device.download(offer, tmp_path / "got.bundle")
    with open_bundle(tmp_path / "got.bundle") as bundle:
        bundle.check_offer(offer)
        bundle.check_files()


# The command


@pytest.fixture
def desk(lab: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(lab)
    assert main(["keys", "new", "lab", "cameras", "--no-passphrase"]) == 0
    sealed(lab / "e.zip", {"int8.onnx": b"model bytes"}, [load_signer(lab / "keys/lab.key")])
    return lab


COMMAND = ["pack", "e.zip", "int8.onnx", "--key", "keys/cameras.key", "--evidence-key", "keys/lab.pub"]


def test_the_command_packs_and_says_what_is_promised(desk, capsys):
    named = [
        "--name",
        "plate-reader",
        "--bundle-version",
        "2",
        "--device",
        "orin-nano",
        "--runtime",
        "onnxruntime:1.20",
    ]
    assert main([*COMMAND, *named]) == 0
    said = capsys.readouterr().out
    assert "latency p95 <= 80, broken when 3 of 5 windows of 100 are outside" in said
    with open_bundle(desk / "plate-reader-2.bundle") as bundle:
        bundle.check_signature([load_public(desk / "keys/cameras.pub")])
        assert bundle.manifest.runtime == (Runtime("onnxruntime", "1.20", ""),)
    (desk / "sla.json").write_text('{"objectives": [], "hard": [{"metric": "crashes", "op": "<=", "limit": "1"}]}')
    assert main([*COMMAND, *named, "--sla", "sla.json", "--json", "--out", "b.bundle"]) == 0
    assert json.loads(capsys.readouterr().out)["manifest"]["sla"]["hard"][0]["limit"] == "1"


def test_a_manifest_of_the_seeds_style_gives_name_devices_and_driver_and_binds_the_model(desk, capsys):
    seed = {
        "name": "Plate Reader",
        "format": "onnx",
        "hash": digest_file(desk / "int8.onnx").removeprefix("sha256:"),
        "size": 11,
        "device_allow": ["orin-nano"],
        "min_driver": "535.104",
        "rollback": True,
    }
    (desk / "seed.json").write_text(json.dumps(seed))
    asked = [*COMMAND, "--manifest", "seed.json", "--bundle-version", "1"]
    assert main(asked) == 0
    with open_bundle(desk / "plate-reader-1.bundle") as bundle:
        assert (bundle.manifest.device_allow, bundle.manifest.min_driver) == (("orin-nano",), "535.104")
    (desk / "seed.json").write_text(json.dumps({**seed, "hash": "0" * 64}))
    assert main(asked) == 2
    assert "pack.seed_hash" in capsys.readouterr().err


def test_the_command_refuses_with_4_and_asks_for_what_it_needs_with_2(desk, capsys):
    named = ["--name", "plate-reader", "--bundle-version", "1"]
    stranger = [*COMMAND[:-1], "keys/cameras.pub", *named]
    assert main(stranger) == 4
    assert "pack.not_accepted" in capsys.readouterr().err
    assert main(COMMAND) == 2
    assert main([*COMMAND, "--name", "plate-reader"]) == 2
    assert main([*COMMAND, *named, "--runtime", "a:1:2:3"]) == 2
    assert main([*COMMAND, *named, "--sla", "nothing.json"]) == 2
    assert main([*COMMAND, *named]) == 0
    assert "no device may install it" in capsys.readouterr().err


def test_a_bundle_is_a_canonical_archive_that_its_reader_takes(lab):
    with open_archive(packed(lab).path, allowed=lambda _: 2**20, max_total=2**24) as archive:
        assert archive.names[:3] == ("evidence.zip", "manifest.json", "model/int8.onnx")


@pytest.mark.parametrize("at", [1, 2])
def test_the_bundle_never_takes_the_place_of_what_goes_into_it(desk, at):
    before = Path(COMMAND[at]).read_bytes()
    assert main([*COMMAND, "--name", "plate-reader", "--bundle-version", "1", "--out", COMMAND[at]]) == 2
    assert Path(COMMAND[at]).read_bytes() == before


@pytest.mark.parametrize("flag", ["--sla", "--manifest", "--card"])
def test_what_never_ends_is_not_read(desk, flag):
    assert main([*COMMAND, "--name", "plate-reader", "--bundle-version", "1", flag, "/dev/zero"]) == 2
