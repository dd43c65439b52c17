"""What is fuzzed: from bytes to a reader, and what must hold of whatever it accepts.

A target ends with a typed `EdgeproofError`, or with a value that is what the bytes say and no more than was signed.
Anything else (another exception, a broken promise, too much time or memory) is a crash.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeproof import archive, strictjson
from edgeproof.digest import canonical_json, digest_bytes
from edgeproof.errors import EdgeproofError

TESTS = Path(__file__).parents[2] / "tests"
GOLDEN, MODELS, RECORDS = TESTS / "golden", TESTS / "structure/fixtures", TESTS / "importers/fixtures"
EVIDENCE = ("evidence-1-top1.zip", "evidence-1-cer.zip", "evidence-1-map.zip")
Run = Callable[[bytes], None]


class BrokenError(Exception):
    """Something was accepted that must not be."""


@dataclass(frozen=True)
class Target:
    """A reader under test.

    Attributes:
        name: Its name.
        seeds: Inputs to begin with.
        prepare: Given a scratch folder, gives the function to call with each input.
        json: Where JSON begins in an input, for edits that keep it JSON; None for none.
    """

    name: str
    seeds: Callable[[], Iterator[bytes]]
    prepare: Callable[[Path], Run]
    json: int | None = None


def promise(held: bool, what: str) -> None:
    if not held:
        raise BrokenError(what)


def files(folder: Path, *names: str) -> Callable[[], Iterator[bytes]]:
    return lambda: (p.read_bytes() for name in names for p in sorted(folder.glob(name)))


def golden(name: str) -> dict[str, bytes]:
    from edgeproof.evidence.verify import read_members

    return read_members(GOLDEN / name)[0]


# Archives and what is signed.


def zip_archive(scratch: Path) -> Run:
    """An archive that opens is, byte for byte, the one that its members give."""
    path, again = scratch / "a.zip", scratch / "b.zip"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        with archive.open_archive(path, allowed=lambda _: 2**20, max_total=2**22) as opened:
            members = {name: opened.read(name) for name in opened.names}
        archive.write_archive(again, members)
        promise(again.read_bytes() == data, "another archive with the same members was opened")

    return run


def evidence_file(scratch: Path) -> Run:
    """What is accepted is what was sealed, but for further signatures."""
    from edgeproof.bundle.keys import load_public
    from edgeproof.evidence.verify import verify

    path, key = scratch / "a.zip", load_public(GOLDEN / "evidence.pub")
    sealed = [_but(golden(name), "attestation.json") for name in EVIDENCE]

    def run(data: bytes) -> None:
        path.write_bytes(data)
        if not verify(path, keys=[key]).accepted:
            return
        with archive.open_archive(path, allowed=lambda _: 2**24, max_total=2**26) as opened:
            members = {name: opened.read(name) for name in opened.names}
        promise(_but(members, "attestation.json") in sealed, "evidence was accepted that nobody sealed")

    return run


def _but(members: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {n: d for n, d in members.items() if n != name}


def _members() -> list[tuple[str, str]]:
    return [(file, name) for file in EVIDENCE for name in golden(file) if name.endswith(".json")]


def member_seeds() -> Iterator[bytes]:
    for i, (file, name) in enumerate(_members()):
        yield bytes([i]) + golden(file)[name]


def evidence_member(scratch: Path) -> Run:
    """One member is another, in canonical form, and the manifest fits again: nobody signed that."""
    from edgeproof.bundle.keys import load_public
    from edgeproof.evidence.verify import verify_members

    key, places, whole = load_public(GOLDEN / "evidence.pub"), _members(), {file: golden(file) for file in EVIDENCE}

    def run(data: bytes) -> None:
        file, name = places[data[0] % len(places)] if data else places[0]
        content = _canonical(data[1:])
        members = {**whole[file], name: content}
        if name not in ("manifest.json", "attestation.json"):
            manifest = json.loads(members["manifest.json"])
            manifest["members"][name] = {"digest": digest_bytes(content), "size": len(content)}
            members["manifest.json"] = canonical_json(manifest)
        found = verify_members(members, "", keys=[key])
        json.dumps(found.to_json())
        same = name == "attestation.json" or content == whole[file][name]
        promise(same or not found.trusted, f"a changed {name} is trusted")

    return run


def _canonical(data: bytes) -> bytes:
    try:
        return canonical_json(json.loads(data))
    except (ValueError, TypeError, RecursionError):
        return data


def strict_json(scratch: Path) -> Run:
    """A value that is read is the one that the standard library reads, and can be written and read again."""
    del scratch

    def run(data: bytes) -> None:
        value = strictjson.loads(data, "x", limit_bytes=2**20)
        promise(json.loads(data) == value, "another value than json's was read")
        text = strictjson.canonical(value)
        promise(strictjson.loads(text, "x", canonical=True, limit_bytes=2**24) == value, "written and read, it differs")

    return run


def manifest(scratch: Path) -> Run:
    """A manifest that is read says its bytes; one of the seed's style is read or refused."""
    from edgeproof.bundle.reading import from_seed, read_manifest

    del scratch

    def run(data: bytes) -> None:
        if b'"schema"' not in data:
            from_seed(strictjson.loads(data, "x"), "x")
            return
        data = _canonical(data)
        promise(read_manifest(data).to_bytes() == data, "a manifest is not what its bytes say")

    return run


def manifest_seeds() -> Iterator[bytes]:
    yield golden_bundle()["manifest.json"]
    yield (
        b'{"device_allow":["a"],"format":"onnx","hash":"%s","min_driver":"9.10","name":"m","rollback":true,"size":5}'
        % (b"a" * 64)
    )


def golden_bundle() -> dict[str, bytes]:
    with archive.open_archive(GOLDEN / "bundle-1.bundle", allowed=lambda _: 2**24, max_total=2**26) as opened:
        return {name: opened.read(name) for name in opened.names}


def bundle(scratch: Path) -> Run:
    """A bundle whose signature and digests hold has the members that were packed."""
    from edgeproof.bundle.keys import load_public
    from edgeproof.bundle.opening import open_bundle

    path, key, packed = scratch / "a.bundle", load_public(GOLDEN / "evidence.pub"), golden_bundle()

    def run(data: bytes) -> None:
        path.write_bytes(data)
        with open_bundle(path) as opened:
            opened.check_signature([key])
            opened.check_files()
        with archive.open_archive(path, allowed=lambda _: 2**24, max_total=2**26) as again:
            members = {name: again.read(name) for name in again.names}
        promise(_but(members, "signature.json") == _but(packed, "signature.json"), "a bundle that nobody packed")

    return run


def envelope(scratch: Path) -> Run:
    """A DSSE envelope holds what was signed, or is not signed by the key."""
    from edgeproof import dsse
    from edgeproof.bundle.keys import load_public

    del scratch
    key = load_public(GOLDEN / "evidence.pub")
    known = [dsse.read(data, "x").payload for data in envelope_seeds()]

    def run(data: bytes) -> None:
        signed = dsse.read(_canonical(data), "x")
        promise(not dsse.signed_by(signed, [key]) or signed.payload in known, "a payload that nobody signed")

    return run


def envelope_seeds() -> Iterator[bytes]:
    yield golden_bundle()["signature.json"]
    for name in EVIDENCE:
        yield golden(name)["attestation.json"]


# Policies, states, records.


def policy(scratch: Path) -> Run:
    """A policy that is read means the same when it is written as JSON and read again."""
    from edgeproof.evaluate import metric_units
    from edgeproof.policy import load_policy, policy_from

    path, units = scratch / "p.yaml", metric_units()

    def run(data: bytes) -> None:
        path.write_bytes(data)
        found = load_policy(path, units)
        promise(policy_from(found.to_json(), "p", units).digest == found.digest, "a policy changes on its way")

    return run


def policy_seeds() -> Iterator[bytes]:
    from edgeproof import policy as module

    yield from files(Path(module.__file__).parent / "policies", "*.yaml")()
    port = b"{baseline: x, candidate: y, dtype: int8"
    yield b'rules: [{metric: latency_p95, op: "<=", limit: 80}]\ninterface: {inputs: [' + port
    yield (
        b'rules: [{metric: size, op: "<=", limit: 0.9, unit: ratio, relative_to: baseline}]\ninterface:\n  inputs: ['
        + (port + b", transpose: [0, 2, 3, 1]}]\n  outputs: [{baseline: a, candidate: b}]\n")
    )


def device_state(scratch: Path) -> Run:
    """A device's state that is read is written with the same meaning."""
    from edgeproof.device.state import from_bytes

    del scratch

    def run(data: bytes) -> None:
        try:  # its digest is no secret: it fits again, so that what lies behind it is reached
            body = json.loads(data)
            body.pop("digest", None)
            data = canonical_json({**body, "digest": digest_bytes(canonical_json(body))})
        except (ValueError, TypeError, AttributeError, RecursionError):
            pass
        state = from_bytes(data, "state.json")
        promise(from_bytes(state.to_bytes(), "state.json") == state, "a state changes on its way")
        state.fallbacks()
        state.free()

    return run


def state_seeds() -> Iterator[bytes]:
    from edgeproof.device.state import Slot, State

    first = State(floor=1, last_seen=1_790_000_000)
    slot = Slot("writing", "sha256:" + "a" * 64, "sha256:" + "b" * 64, "reader", 2, 1)
    on = first.writing("a", slot).on_trial("a", 1_790_000_100)
    for state in (first, on, on.kept(1_790_000_200), on.left("it crashed", None, 1_790_000_200, quarantine=True)):
        yield state.to_bytes()


def records(scratch: Path) -> Run:
    """Records of measurements made elsewhere become a receipt that reads back, or are refused."""
    from edgeproof.importers import import_records
    from edgeproof.receipt import Receipt

    path, digest = scratch / "record", "sha256:" + "a" * 64

    def run(data: bytes) -> None:
        path.write_bytes(data)
        receipt = import_records([path], model=digest, files={"m.onnx": digest}).receipt
        again = Receipt.from_json(strictjson.loads(strictjson.canonical(receipt.to_json()), "x"))
        promise(again.digest == receipt.digest, "a receipt changes on its way")

    return run


def record_seeds() -> Iterator[bytes]:
    yield from files(RECORDS, "*.json", "*.log", "*.csv")()
    measured = {
        "format": "edgeproof.measured/1",
        "label": "m",
        "runs": [{"latency_ms": [1.5, 1.6, 1.4]}, {"latency_ms": [1.5, 1.7, 1.4]}],
    }
    yield json.dumps(measured).encode()


# Models, in this process; edgeproof itself reads them in a child with limits.


def model(name: str, beside: dict[str, bytes]) -> Callable[[Path], Run]:
    """A model's structure reads back from its own JSON, which has one RFC 8785 form."""

    def prepare(scratch: Path) -> Run:
        from edgeproof.structure import Structure, read_here

        path = scratch / name
        for other, content in beside.items():
            (scratch / other).write_bytes(content)

        def run(data: bytes) -> None:
            path.write_bytes(data)
            value = read_here(path).to_json()
            text = strictjson.canonical(value)
            promise(
                Structure.from_json(strictjson.loads(text, "x")).to_json() == value, "a structure changes on its way"
            )

        return run

    return prepare


def engine(scratch: Path) -> Run:
    """An engine's build record, and its header."""
    from edgeproof.structure import read_here

    path, record = scratch / "m.engine", scratch / "m.engine.json"

    def run(data: bytes) -> None:
        path.write_bytes(b"ftrt" + data[:28].ljust(28, b"\0"))
        record.write_bytes(data[28:])
        strictjson.canonical(read_here(path).to_json())

    return run


def engine_seeds() -> Iterator[bytes]:
    inputs, outputs = ('"dtype":"float32","name":"x","shape":[1,-1,"n"]', '"dtype":"int8","name":"y","shape":[]')
    ports = f'{{"inputs":[{{{inputs}}}],"outputs":[{{{outputs}}}]}}'
    yield bytes(20) + bytes([10, 3, 0, 1]) + bytes(4) + ports.encode()


def onnx_seeds() -> Iterator[bytes]:
    """Our small ones, and models of the onnx package's own tests."""
    import onnx

    yield from files(MODELS, "*.onnx")()
    suite = Path(onnx.__file__).parent / "backend/test/data"
    for kind, every in (("simple", 1), ("pytorch-operator", 3), ("pytorch-converted", 6)):
        for path in sorted((suite / kind).glob("*/model.onnx"))[::every]:
            if path.stat().st_size < 20_000:
                yield path.read_bytes()


def bins() -> dict[str, bytes]:
    return {"m.bin": (MODELS / "conv.bin").read_bytes()}


# The client of TUF repositories.


def repository(scratch: Path) -> Run:
    """A device gets what was published, or nothing, whoever else serves it and whatever the line's key signs."""
    import shutil

    sys.path[:0] = [str(TESTS / "bundle")]
    from shops import opened

    from edgeproof.bundle.client import Client

    shop = opened(scratch)
    shop.add(2, content=b"second")
    shop.device().refresh()
    state, kept = scratch / "device", scratch / "kept"
    shutil.copytree(state, kept, symlinks=True)
    whole = {p: p.read_bytes() for p in (scratch / "repo/metadata").iterdir()}

    def run(data: bytes) -> None:
        role = ROLES[data[0] % len(ROLES)] if data else ROLES[0]
        shutil.rmtree(state)
        shutil.copytree(kept, state, symlinks=True)
        for name in ROLES[1:]:
            (state / "metadata" / f"{name}.json").unlink(missing_ok=True)
        (scratch / "got").unlink(missing_ok=True)
        for path in (scratch / "repo/metadata").iterdir():
            if path not in whole:
                path.unlink()
        for path, content in whole.items():
            path.write_bytes(content)
        signed = _put(shop, role, data[1:], sign=bool(data[:1] and data[0] & 128))
        device = Client(state, str(shop.folder), grace_s=5)
        device.download(device.newest("cameras"), scratch / "got")
        promise((scratch / "got").read_bytes() == b"second" or signed, "a device got what nobody published")

    return run


ROLES = ("root", "timestamp", "snapshot", "targets", "cameras")


def _put(shop: Any, role: str, content: bytes, sign: bool) -> bool:
    """Put a role's metadata in place; when asked, signed by the role's own key, with snapshot and timestamp fitted."""
    from securesystemslib.formats import encode_canonical

    path = shop.path(role)
    if not sign:
        path.write_bytes(content)
        return False
    try:
        body = json.loads(content)["signed"]
        text = encode_canonical(body).encode()
    except Exception:  # whatever cannot be signed is put there as it is
        path.write_bytes(content)
        return False
    signatures = [{"keyid": s.public_key.keyid, "sig": s.sign(text).signature} for s in shop.keys[role]]
    path.write_bytes(json.dumps({"signatures": signatures, "signed": body}).encode())
    if role in ("targets", "cameras"):
        _fit(shop)
    elif role == "snapshot":
        _fit(shop, only="timestamp")
    return True


def _fit(shop: Any, only: str = "") -> None:
    """Snapshot and timestamp state lengths and hashes of whatever lies there."""
    from tuf.api.metadata import MetaFile

    def at(name: str) -> MetaFile:
        path = shop.path(name)
        return MetaFile.from_data(int(path.name.partition(".")[0]), path.read_bytes(), ["sha256"])

    def listed(signed: Any) -> None:
        for name in signed.meta:
            signed.meta[name] = at(name.removesuffix(".json"))

    def pointed(signed: Any) -> None:
        signed.snapshot_meta = at("snapshot")

    if only != "timestamp":
        shop.forge("snapshot", listed, shop.keys["snapshot"], later=False)
    shop.forge("timestamp", pointed, shop.keys["timestamp"], later=False)


def repository_seeds() -> Iterator[bytes]:
    sys.path[:0] = [str(TESTS / "bundle")]
    from shops import opened

    with tempfile.TemporaryDirectory() as folder:
        shop = opened(Path(folder))
        shop.add(2, content=b"second")
        for i, role in enumerate(ROLES):
            for high in (0, 128):
                yield bytes([_code(i, high)]) + shop.path(role).read_bytes()


def _code(role: int, high: int) -> int:
    """A byte whose remainder is the role and whose highest bit says whether it is signed."""
    return next(c for c in range(high, high + len(ROLES)) if c % len(ROLES) == role)


TARGETS: tuple[Target, ...] = (
    Target("archive", files(GOLDEN, "*.zip"), zip_archive),
    Target("evidence", files(GOLDEN, "*.zip"), evidence_file),
    Target("evidence members", member_seeds, evidence_member, json=1),
    Target("strict JSON", files(RECORDS, "*.json"), strict_json, json=0),
    Target("manifest", manifest_seeds, manifest, json=0),
    Target("bundle", files(GOLDEN, "*.bundle"), bundle),
    Target("signature", envelope_seeds, envelope, json=0),
    Target("repository", repository_seeds, repository, json=1),
    Target("device state", state_seeds, device_state, json=0),
    Target("policy", policy_seeds, policy),
    Target("records", record_seeds, records, json=0),
    Target("ONNX", onnx_seeds, model("m.onnx", {})),
    Target("TFLite", files(MODELS, "*.tflite"), model("m.tflite", {})),
    Target("OpenVINO", files(MODELS, "*.xml"), model("m.xml", bins() if MODELS.is_dir() else {})),
    Target("safetensors", files(MODELS, "*.safetensors"), model("m.safetensors", {}), json=8),
    Target("GGUF", files(MODELS, "*.gguf"), model("m.gguf", {})),
    Target("engine", engine_seeds, engine, json=28),
)


def guarded(run: Run) -> Run:
    """A typed error is a good end."""

    def call(data: bytes) -> None:
        try:
            run(data)
        except EdgeproofError as e:
            str(e)

    return call


def scratch_root() -> str | None:
    """Memory, where there is some, so that a disk is not worn."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
