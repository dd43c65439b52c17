"""Make a bundle: only of a model whose evidence says accept, for exactly these bytes, signed by a key that is trusted.

Nothing of the model is held in memory: it is hashed and copied in a stream. Weights beside a model are found through
the evidence, which lists every file of the model; a file too many or too few is refused.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..archive import Archive, open_archive, write_archive
from ..digest import digest_bytes, digest_file, digest_json
from ..errors import InputError, TrustError
from ..evidence import members
from ..evidence.verify import Verification, verify
from ..files import os_error, plain
from ..manifest import File, Manifest, Rollback, Runtime, Sla
from ..policy import Policy, policy_from
from ..strictjson import canonical, loads
from ..structure import Structure
from . import envelope
from .opening import CARD, EVIDENCE, MANIFEST, MODEL, PAYLOAD_TYPE, PREPROCESSING, SIGNATURE, open_bundle
from .promise import check_promise, promise
from .reading import check_manifest

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey


@dataclass(frozen=True, slots=True)
class Order:
    """What a bundle is to be, apart from what its evidence says.

    Attributes:
        name: See `Manifest`.
        product_line: See `Manifest`.
        bundle_version: See `Manifest`.
        security_version: See `Manifest`.
        device_allow: See `Manifest`.
        min_driver: See `Manifest`.
        max_driver: See `Manifest`.
        runtime: See `Manifest`.
        sla: What it promises; None derives it from the limits of the policy in the evidence.
        rollback: How it is tried.
        card: A file for people that goes along; None for none.
        expected: Digest that the model file must have besides, from a manifest of the seed's style; empty for none.
    """

    name: str
    product_line: str
    bundle_version: int
    security_version: int
    device_allow: tuple[str, ...] = ()
    min_driver: str = ""
    max_driver: str = ""
    runtime: tuple[Runtime, ...] = ()
    sla: Sla | None = None
    rollback: Rollback = field(default_factory=Rollback)
    card: Path | None = None
    expected: str = ""


@dataclass(frozen=True, slots=True)
class Packed:
    """A bundle that was made.

    Attributes:
        path: The file.
        digest: Of the file.
        manifest: What is in it.
        accepted_by: Ids of the keys that signed the evidence.
    """

    path: Path
    digest: str
    manifest: Manifest
    accepted_by: tuple[str, ...]


def pack(
    evidence: Path,
    model: Path,
    order: Order,
    *,
    trusted: Sequence[SSlibKey],
    signers: Sequence[CryptoSigner],
    out: Path,
    now: datetime | None = None,
) -> Packed:
    """Make and sign a bundle.

    Args:
        evidence: A sealed evidence file.
        model: The model file; files that belong to it lie beside it.
        order: What the bundle is to be.
        trusted: Keys whose evidence is believed.
        signers: Keys of the product line that sign the bundle.
        out: File to write.
        now: Refuse evidence that has expired by then; None does not look at the time.

    Raises:
        TrustError: pack.not_accepted, pack.other_model, pack.changed, archive.*, evidence.*.
        InputError: pack.unsigned, pack.missing_file, pack.seed_hash, manifest.*, files.*.
    """
    if not signers:
        raise InputError("pack.unsigned", str(out), "would be signed by nobody", "give --key of the product line")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pack-", dir=out.parent) as folder:
        # What is verified, read and packed is one copy, which nobody else writes to.
        sealed = Path(folder) / EVIDENCE
        _copied(evidence, sealed)
        verification = _accepted(sealed, str(evidence), trusted, now)
        with open_archive(sealed, allowed=members.allowed, max_total=members.MOST_BYTES) as archive:
            analysis, policy, preprocessing = _analysis(archive), _policy(archive), _preprocessing(archive)
        files = _model_files(verification.candidate_files, model, order)
        card = None if order.card is None else _read(order.card)
        extra = {EVIDENCE: _read(sealed), PREPROCESSING: preprocessing, CARD: card}
        content: dict[str, bytes | Path] = {name: data for name, data in extra.items() if data is not None}
        listed = [File(name, digest_bytes(data), len(data)) for name, data in extra.items() if data is not None]
        content |= {file.path: path for file, path in files}
        manifest = _manifest(order, analysis, policy, [*(file for file, _ in files), *listed])
        content[MANIFEST] = manifest.to_bytes()
        content[SIGNATURE] = envelope.sign(manifest.to_bytes(), PAYLOAD_TYPE, signers)
        digest = _written(Path(folder) / "bundle", out, content)
    return Packed(out, digest, manifest, verification.signed_by)


def interface_digest(structure: Structure) -> str:
    """Digest of a model's inputs and outputs: names, dtypes, shapes and layouts; empty when they are not known."""
    if structure.inputs is None or structure.outputs is None:
        return ""
    value = structure.to_json()
    return digest_json({"inputs": value["inputs"], "outputs": value["outputs"]})


def _accepted(sealed: Path, name: str, trusted: Sequence[SSlibKey], now: datetime | None) -> Verification:
    """Verify the evidence; nothing but a trusted accept will do.

    Raises:
        TrustError: pack.not_accepted.
    """
    verification = verify(sealed, keys=trusted, now=now)
    if verification.accepted:
        return verification
    why = [f"its state is {verification.state}"] if verification.state != "accept" else []
    why += [f"{d.member}: {d.what} differs" for d in verification.differences[:3]]
    why += [verification.untrusted[1]] if not verification.trusted else []
    why += [f"it was good until {verification.expires}"] if verification.expired else []
    hint = "pack only what was accepted: 'edgeproof verify' says more; give --evidence-key for the key that sealed it"
    raise TrustError("pack.not_accepted", name, f"is no trusted accept: {'; '.join(why)}", hint)


def _analysis(archive: Archive) -> Structure:
    """The candidate's static analysis, which lists its files."""
    return Structure.from_json(loads(archive.read("analysis-candidate.json"), "analysis-candidate.json"))


def _policy(archive: Archive) -> Policy:
    from ..evaluate import metric_units

    return policy_from(loads(archive.read("policy.json"), "policy.json"), "policy.json", metric_units())


def _preprocessing(archive: Archive) -> bytes | None:
    """How inputs were made and outputs read when the model was accepted."""
    if "evaluator.json" not in archive:
        return None
    value: Mapping[str, Any] = loads(archive.read("evaluator.json"), "evaluator.json")
    return canonical({"preprocess": value.get("preprocess"), "decode": value.get("decode")})


def _model_files(accepted: Mapping[str, str], model: Path, order: Order) -> list[tuple[File, Path]]:
    """Every file of the model, held against the evidence; the first is the one that the runtime opens.

    Raises:
        TrustError: pack.other_model.
        InputError: pack.missing_file, pack.seed_hash.
    """
    found: list[tuple[File, Path]] = []
    for name, digest in accepted.items():
        path = _plain(model.parent / name if found else model)
        sha256 = digest_file(path)
        if sha256 != digest:
            problem = f"has the digest {sha256[:19]}…; the evidence accepts {digest[:19]}… as {name}"
            raise TrustError("pack.other_model", str(path), problem, "pack the model that the evidence is about")
        found.append((File(f"{MODEL}{name if found else model.name}", sha256, path.stat().st_size), path))
    if order.expected and found[0][0].sha256 != order.expected:
        problem = f"has the digest {found[0][0].sha256[:19]}…; its manifest says {order.expected[:19]}…"
        raise InputError("pack.seed_hash", str(model), problem, "give the model that the manifest is about")
    return found


def _plain(path: Path) -> Path:
    """A file that is there, and is the file itself and no link to another."""
    if path.is_symlink() or not path.is_file():
        problem = "is not there, or is no plain file"
        raise InputError("pack.missing_file", str(path), problem, "put it beside the model, as the evidence lists it")
    return path


def _manifest(order: Order, analysis: Structure, policy: Policy, listed: list[File]) -> Manifest:
    digests = {file.path: file.sha256 for file in listed}
    manifest = Manifest(
        name=order.name,
        product_line=order.product_line,
        format=analysis.format,
        model=listed[0].path,
        files=tuple(sorted(listed, key=lambda file: file.path)),
        bundle_version=order.bundle_version,
        security_version=order.security_version,
        device_allow=order.device_allow,
        min_driver=order.min_driver,
        max_driver=order.max_driver,
        runtime=order.runtime,
        interface=interface_digest(analysis),
        preprocessing=digests.get(PREPROCESSING, ""),
        evidence=digests[EVIDENCE],
        sla=promise(policy) if order.sla is None else order.sla,
        rollback=order.rollback,
    )
    check_manifest(manifest, f"bundle {order.name}")
    check_promise(manifest.sla, manifest.rollback, f"bundle {order.name}")
    return manifest


def _written(made: Path, out: Path, content: Mapping[str, bytes | Path]) -> str:
    """Write the archive and read it back: a file that changed while it was copied is noticed here.

    Raises:
        TrustError: pack.changed.
    """
    digest = write_archive(made, content)
    try:
        with open_bundle(made) as bundle:
            bundle.check_files()
    except TrustError as e:
        problem = f"changed while it was packed ({e.problem})"
        raise TrustError("pack.changed", str(out), problem, "let nothing write to the model, and pack again") from e
    try:
        made.replace(out)
    except OSError as e:
        raise os_error(out, e) from e
    return digest


def _copied(source: Path, to: Path) -> None:
    try:
        shutil.copyfile(plain(source), to)
    except OSError as e:
        raise os_error(source, e) from e


def _read(path: Path) -> bytes:
    try:
        return plain(path).read_bytes()
    except OSError as e:
        raise os_error(path, e) from e
