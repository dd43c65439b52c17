"""Devices and bundles for tests: real keys, real signatures, small real models, nothing mocked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from onnx import TensorProto, helper

from edgeproof.archive import write_archive
from edgeproof.bundle import envelope
from edgeproof.bundle.keys import load_signer, new_key, public_path
from edgeproof.bundle.opening import PAYLOAD_TYPE
from edgeproof.bundle.release import add_bundle
from edgeproof.bundle.repository import RootKeys, add_line, create
from edgeproof.device.home import Home
from edgeproof.device.install import Installed, install
from edgeproof.device.provision import Factory, provision
from edgeproof.device.sources import FileSource
from edgeproof.digest import digest_bytes
from edgeproof.manifest import File, HardLimit, Manifest, Objective, Rollback, Sla

NOW = 1_700_000_000
DEVICE, LINE = "bench-camera", "cameras"
QUICK = Sla(
    (Objective("latency", "p95", "<=", Decimal(10_000), window=2, k=2, n=3),),
    (HardLimit("nan_outputs", "<=", Decimal(0)), HardLimit("crashes", "<=", Decimal(0))),
)
"""An SLA that any machine meets within six inferences."""


def model(operator: str = "Neg", scale: float = 1.0) -> bytes:
    """One node over four floats; ``Log`` of negative numbers gives NaN."""
    value = helper.make_tensor_value_info
    scaled = helper.make_node("Mul", ["x", "s"], ["m"])
    graph = helper.make_graph(
        [scaled, helper.make_node(operator, ["m"], ["y"])],
        "one",
        [value("x", TensorProto.FLOAT, [1, 4])],
        [value("y", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor("s", TensorProto.FLOAT, [], [scale])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


@dataclass(frozen=True, slots=True)
class Maker:
    """Whoever makes bundles: a folder with a key."""

    folder: Path
    key: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        object.__setattr__(self, "key", self.folder / "maker.key")
        new_key(self.key, None)

    @property
    def public(self) -> Path:
        return public_path(self.key)

    def bundle(
        self,
        version: int,
        content: bytes | None = None,
        *,
        beside: Mapping[str, bytes] | None = None,
        name: str = "",
        **changes: Any,
    ) -> Path:
        """A signed bundle; ``changes`` are fields of its manifest."""
        files = {"model/model.onnx": model() if content is None else content, "evidence.zip": b"evidence"}
        files |= beside or {}
        manifest = replace(
            Manifest(
                name="plate-reader",
                product_line=LINE,
                format="onnx",
                model="model/model.onnx",
                files=tuple(File(p, digest_bytes(d), len(d)) for p, d in sorted(files.items())),
                bundle_version=version,
                security_version=1,
                device_allow=(DEVICE,),
                evidence=digest_bytes(files["evidence.zip"]),
                sla=QUICK,
                rollback=Rollback(trial_seconds=600, boots=3, samples=6),
            ),
            **changes,
        )
        data = manifest.to_bytes()
        signature = envelope.sign(data, PAYLOAD_TYPE, [load_signer(self.key)])
        path = self.folder / (name or f"{manifest.name}-{version}.bundle")
        write_archive(path, {"manifest.json": data, "signature.json": signature, **files})
        return path

    def device(self, folder: Path, *, golden: Path | None = None, floor: int = 0, **given: Any) -> Home:
        """A provisioned device that believes this maker."""
        home = Home(folder)
        provision(home, Factory(DEVICE, LINE, floor, keys=[self.public], golden=golden, **given), NOW)
        return home


def put(home: Home, bundle: Path, *, keep: bool = True, now: int = NOW) -> Installed:
    """Install a bundle, and keep it without a trial when asked to."""
    done = install(home, FileSource(bundle), now)
    if keep:
        home.change(lambda s: s.kept(now))
    return done


def repository(
    folder: Path, maker: Maker, *bundles: Path, custom: Mapping[str, Any] | None = None
) -> tuple[Path, Path]:
    """A TUF repository that offers bundles; gives its folder and its first root.

    Args:
        folder: To make it in.
        maker: Its key signs the product line.
        bundles: What it offers.
        custom: What the metadata says of the last bundle, where that is not the truth.
    """
    from edgeproof.bundle.repository import add_target

    keys = {name: new_key(folder / "keys" / f"{name}.key", None) for name in ("root1", "root2", "targets", "online")}
    signer = {name: load_signer(folder / "keys" / f"{name}.key") for name in keys}
    where, now = folder / "repository", datetime.now(UTC)
    online = [keys["online"]]
    roles = RootKeys([keys["root1"], keys["root2"]], [keys["targets"]], online, online)
    root = create(where, roles, list(signer.values()), now=now)
    line = load_signer(maker.key)
    add_line(where, LINE, [line.public_key], [line, signer["targets"], signer["online"]], now=now)
    for bundle in bundles:
        if custom is not None and bundle == bundles[-1]:
            add_target(where, LINE, bundle.name, bundle, dict(custom), [line, signer["online"]], now=now)
        else:
            add_bundle(where, bundle, [line, signer["online"]], now=now)
    first = folder / "1.root.json"
    first.write_bytes(root)
    return where, first
