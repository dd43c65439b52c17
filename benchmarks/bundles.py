"""What sealing, packing, publishing and installing cost by model size, as multiples of hashing the same bytes.

Every step runs in a fresh process, which reports the CPU time of the step alone (children included) and its peak
memory. Rounds are interleaved. The model has random weights; above 1 GB they lie beside it. The receipts are made up.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
STEPS = ("hash", "seal", "verify", "verify with model", "pack", "publish", "download", "check", "install")
MB = 10**6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 200, 2000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        print(json.dumps(step(args.step, args.folder)))
        return
    rows = [row for size in args.megabytes for row in measured(size, args.rounds)]
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    print("| model | step | CPU × hash | CPU s | peak MB |\n|---|---|---|---|---|")
    for r in rows:
        step_ = r["step"] if r["held"] else f"{r['step']} (does not verify)"
        print(f"| {r['model_mb']} MB | {step_} | {r['of_hash']:.1f} | {r['cpu_s']:.2f} | {r['peak_mb']:.0f} |")


def measured(size: int, rounds: int) -> list[dict[str, Any]]:
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in STEPS}
    with tempfile.TemporaryDirectory(prefix="edgeproof-bundles-") as name:
        folder = Path(name)
        prepare(folder, size * MB)
        for i in range(rounds):
            for what in STEPS:
                command = [sys.executable, __file__, "--step", what, "--folder", name]
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
                seen[what].append(json.loads(done.stdout))
            print(f"{size} MB: round {i + 1} of {rounds}", file=sys.stderr)
    base = median(s["cpu_s"] for s in seen["hash"])
    return [
        {
            "model_mb": size,
            "step": what,
            "cpu_s": median(s["cpu_s"] for s in found),
            "of_hash": median(s["cpu_s"] for s in found) / base,
            "peak_mb": max(s["peak_mb"] for s in found),
            "held": all(s["held"] for s in found),
        }
        for what, found in seen.items()
    ]


def prepare(folder: Path, size: int) -> None:
    """A model, keys, and a repository with one product line."""
    from edgeproof.bundle.keys import load_public, load_signer, new_key
    from edgeproof.bundle.repository import RootKeys, add_line, create
    from edgeproof.bundle.trust import provision

    write_model(folder / "int8.onnx", size)
    names = ("a", "b", "c", "targets", "online", "cameras", "lab")
    for name in names:
        new_key(folder / f"{name}.key", None)
    public = {name: load_public(folder / f"{name}.pub") for name in names}
    signers = [load_signer(folder / f"{name}.key") for name in names]
    online, now = [public["online"]], datetime.now(UTC)
    keys = RootKeys([public[name] for name in "abc"], [public["targets"]], online, online)
    root = create(folder / "repo", keys, signers, now=now)
    add_line(folder / "repo", "cameras", [public["cameras"]], signers, now=now)
    provision(folder / "trust", root, last_seen=now - timedelta(days=1))


def write_model(path: Path, size: int) -> None:
    """An ONNX chain of MatMuls whose random weights have about so many bytes."""
    import numpy as np
    from onnx import TensorProto, helper

    layers = max(1, size // (16 * MB))
    width = int((size / 4 / layers) ** 0.5)
    rng, nodes, weights = np.random.default_rng(0), [], []
    beside = path.with_name(path.name + ".data")
    with beside.open("wb") as f:
        for i in range(layers):
            data = (rng.standard_normal((width, width), np.float32) / np.float32(width**0.5)).tobytes()
            tensor = TensorProto(name=f"w{i}", dims=[width, width], data_type=TensorProto.FLOAT)
            if size > 1000 * MB:
                tensor.data_location = TensorProto.EXTERNAL
                for key, value in (("location", beside.name), ("offset", f.tell()), ("length", len(data))):
                    tensor.external_data.add(key=key, value=str(value))
                f.write(data)
            else:
                tensor.raw_data = data
            weights.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"y{i}", f"w{i}"], [f"y{i + 1}"], name=f"layer{i}"))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, width]) for n in ("y0", f"y{layers}")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    if not beside.stat().st_size:
        beside.unlink()


def step(name: str, folder: Path) -> dict[str, float]:
    run = STEP[name](folder)  # imports come first and are not counted
    before = cpu()
    held = run() is not False
    spent = cpu() - before
    peak = max(own_peak_kb(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    return {"cpu_s": spent, "peak_mb": peak * 1024 / MB, "held": held}


def own_peak_kb() -> int:
    """Peak memory since this program began; ru_maxrss would count the process that started it too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def cpu() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in both)


def hashing(folder: Path) -> Callable[[], object]:
    from edgeproof.digest import digest_file

    return lambda: [digest_file(path) for path in sorted(folder.glob("int8.onnx*"))]


def sealing(folder: Path) -> Callable[[], object]:
    """Analyse the model and seal it with receipts that amount to an accept."""
    sys.path.insert(0, str(ROOT / "tests"))
    from edgeproof.bundle.keys import load_signer
    from edgeproof.structure import read_here
    from evidence_files import POLICY, reentered, structure, values, write

    signers = [load_signer(folder / "lab.key")]
    policy = replace(POLICY, rules=POLICY.rules[:2])

    def run() -> None:
        analysis = read_here(folder / "int8.onnx")
        made_up = structure("int8", 12_000, "int8").digest
        found = json.loads(json.dumps(values(policy)).replace(made_up, analysis.digest))
        found["analysis-candidate.json"] = analysis.to_json()
        for kind in ("runs", "quality"):
            found[f"receipt-candidate-{kind}.json"]["files"] = {p.name: p.digest for p in analysis.files}
        write(reentered(found), folder / "e.zip", signers)

    return run


def verifying(folder: Path, models: tuple[str, ...] = ()) -> Callable[[], object]:
    from edgeproof.bundle.keys import load_public
    from edgeproof.evidence.verify import verify

    keys = [load_public(folder / "lab.pub")]

    return lambda: verify(folder / "e.zip", keys=keys, models=[folder / m for m in models]).accepted


def packing(folder: Path) -> Callable[[], object]:
    from edgeproof.bundle.keys import load_public, load_signer
    from edgeproof.bundle.pack import Order, pack

    line, lab = load_signer(folder / "cameras.key"), load_public(folder / "lab.pub")
    version = len(list((folder / "repo/targets").rglob("*.bundle"))) + 1
    order = Order("reader", "cameras", version, 1, ("orin-nano",))
    paths = (folder / "e.zip", folder / "int8.onnx")
    return lambda: pack(*paths, order, trusted=[lab], signers=[line], out=folder / "a.bundle")


def publishing(folder: Path) -> Callable[[], object]:
    from edgeproof.bundle.keys import load_signer
    from edgeproof.bundle.release import add_bundle
    from edgeproof.bundle.repository import describe, remove_target

    signers = [load_signer(folder / f"{name}.key") for name in ("cameras", "online")]
    now = datetime.now(UTC)
    for target in describe(folder / "repo")["targets"]:  # of the round before: the disk need not hold them all
        remove_target(folder / "repo", target["path"], signers, now=now)
    return lambda: add_bundle(folder / "repo", folder / "a.bundle", signers, now=now)


def downloading(folder: Path) -> Callable[[], object]:
    import tuf.ngclient  # noqa: F401

    from edgeproof.bundle.client import Client

    def run() -> None:
        client = Client(folder / "trust", str(folder / "repo"))
        client.download(client.newest("cameras"), folder / "got.bundle")

    return run


def checking(folder: Path) -> Callable[[], object]:
    from edgeproof.bundle.client import Client
    from edgeproof.bundle.opening import open_bundle

    offer = Client(folder / "trust", str(folder / "repo")).newest("cameras")

    def run() -> None:
        with open_bundle(folder / "got.bundle") as bundle:
            bundle.check_offer(offer)
            bundle.check_files()

    return run


def installing(folder: Path) -> Callable[[], object]:
    """Into a device that was just provisioned, from the bundle file."""
    import shutil
    import time

    from edgeproof.device.home import Home
    from edgeproof.device.install import install
    from edgeproof.device.provision import Factory, provision
    from edgeproof.device.sources import FileSource

    shutil.rmtree(folder / "device", ignore_errors=True)
    home, now = Home(folder / "device"), int(time.time())
    provision(home, Factory("orin-nano", "cameras", keys=(folder / "cameras.pub",)), now)
    return lambda: install(home, FileSource(folder / "got.bundle"), now).fresh


STEP: dict[str, Callable[[Path], Callable[[], object]]] = {
    "hash": hashing,
    "seal": sealing,
    "verify": verifying,
    "verify with model": lambda folder: verifying(folder, ("int8.onnx",)),
    "pack": packing,
    "publish": publishing,
    "download": downloading,
    "check": checking,
    "install": installing,
}

if __name__ == "__main__":
    main()
