"""Training on the ONNX file: a step beside PyTorch's own, half of the channels, 4 bits of weights, and what comes back.

    python -m benchmarks.training step --out FOLDER [--rounds 40]
    python -m benchmarks.training prune --out FOLDER [--learn 2000] [--test 600] [--epochs 20] [--labels 0.5] …
    python -m benchmarks.training int4 --out FOLDER [--learn 2000] [--test 600] [--epochs 8] …

Needs ``torch`` in the same Python. ``step`` takes the networks of `training_networks`, written by hand, and the same
networks as ONNX through the importer: the same weights, loss, clipping and AdamW; CPU time of one thread in interleaved
steps, and in a fresh process each the peak of memory above what the imports took. ``prune`` takes half of the work from
the zoo's text direction classifier, ``int4`` all but 4 bits of every weight; both let the original teach it on samples
without labels, and test on others, drawn with another seed. What is in FOLDER already is not done again, and a training
goes on from its last epoch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from benchmarks.fusion import interleaved, ratio
from benchmarks.zoo.catalogue import fetch, write_data
from benchmarks.zoo.packages import default_cache
from numpy.typing import NDArray

from benchmarks import training_networks
from edgeproof.bounds import proportion_bounds, tango_bounds
from edgeproof.dataset import load_spec
from edgeproof.evaluate import open_dataset
from edgeproof.files import read_json, write_json
from edgeproof.model import Model, load_model, save_model, size_bytes
from edgeproof.passes.fix_shapes import FixShapes
from edgeproof.passes.prune_channels import PruneChannels
from edgeproof.passes.simplify import Simplify
from edgeproof.passes.weight_only import WeightOnly
from edgeproof.protocols import Context, Dataset
from edgeproof.runtimes import compile_for, find_target
from edgeproof.train.child import train
from edgeproof.train.fit import Training
from edgeproof.train.losses import Term
from edgeproof.train.teacher import features, heads

NETWORKS = ("mobilenet_v2", "resnet18")
LEGS = ("hand", "edgeproof")
BATCH = 16
RATE = 1e-5
WARM = 2
MODEL, DATA = "ppocr_cls", "turned"
SEEDS = (501, 502)
"""Of the samples to learn from, and of those to test on."""
SHAPE = "x=1,3,48,192"
ROUNDS = 60


# A step beside PyTorch's own.


def stepper(network: str, leg: str, path: Path) -> tuple[Callable[[], float], Any]:
    """A function that takes one step and gives its loss, and what holds the weights."""
    import torch

    torch.set_num_threads(1)
    x = np.random.default_rng(0).standard_normal((BATCH, 3, training_networks.SIZE, training_networks.SIZE))
    x = x.astype(np.float32)
    wanted = np.random.default_rng(1).standard_normal((BATCH, training_networks.CLASSES)).astype(np.float32)
    if leg == "edgeproof":
        from edgeproof.train.torch import TorchLearner

        settings = Training(terms=(Term("mse", "logits"),), norms="trained", threads=1)
        learner = TorchLearner(load_model(path), None, settings)
        return lambda: learner.step([({"x": x}, {"logits": wanted})], RATE), (learner, x, wanted)
    module = training_networks.made(network).train()
    optimiser = torch.optim.AdamW(module.parameters(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.0)

    def step() -> float:
        optimiser.zero_grad(set_to_none=True)
        target = torch.from_numpy(wanted)
        loss = ((module(torch.from_numpy(x)) - target) ** 2).mean() / target.var(unbiased=False)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        return float(loss.detach())

    return step, module


def same(network: str, path: Path) -> float:
    """Largest difference of a gradient between both, as a share of that gradient's largest value."""
    import torch

    _, (learner, x, wanted) = stepper(network, "edgeproof", path)
    module = training_networks.made(network).train()
    target = torch.from_numpy(wanted)
    (((module(torch.from_numpy(x)) - target) ** 2).mean() / target.var(unbiased=False)).backward()
    _, found = learner.gradients({"x": x}, {"logits": wanted})
    own = {n: p.grad.numpy() for n, p in module.named_parameters()}
    if set(own) != set(found):
        raise SystemExit(f"{network}: {sorted(set(own) ^ set(found))[:3]} are trained by one of both only")
    top = max(float(np.abs(g).max()) for g in own.values())
    return max(float(np.abs(g - found[n]).max() / max(float(np.abs(g).max()), 1e-3 * top)) for n, g in own.items())


def _status(key: str) -> float:
    """MB of a line of Linux's account of this process (ru_maxrss would hold the parent's peak too)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1]) / 1024


def memory(network: str, leg: str, path: Path) -> None:
    """In a process of its own: a few steps, and what they took."""
    import torch

    import edgeproof.train.torch  # noqa: F401  # both legs start from the same imports

    torch.set_num_threads(1)
    before = _status("VmRSS")
    step, _ = stepper(network, leg, path)
    for _ in range(4):
        step()
    print(json.dumps({"before": before, "peak": _status("VmHWM")}))


def steps(out: Path, rounds: int) -> None:
    """Both legs of every network."""
    rows = []
    for network in NETWORKS:
        kept = out / f"step-{network}.json"
        if not kept.is_file():
            path = out / f"{network}.onnx"
            training_networks.export(training_networks.made(network), path)
            row: dict[str, Any] = {"network": network, "gradients": same(network, path)}
            taken = [stepper(network, leg, path)[0] for leg in LEGS]
            row["losses"] = [step() for step in taken]
            times: list[list[float]] = [[] for _ in LEGS]
            for n in range(rounds + WARM):
                for i in (0, 1) if n % 2 else (1, 0):
                    start = time.process_time()
                    taken[i]()
                    times[i].append(time.process_time() - start)
            row["seconds"] = [t[WARM:] for t in times]
            command = [sys.executable, "-m", "benchmarks.training", "memory", network]
            row["memory"] = [
                json.loads(subprocess.run([*command, leg, path], capture_output=True, check=True, text=True).stdout)
                for leg in LEGS
            ]
            write_json(kept, row)
        rows.append(read_json(kept))
    print(f"\nbatch {BATCH}, {training_networks.SIZE} × {training_networks.SIZE}, one thread\n")
    print("| network | by hand, CPU s | edgeproof, CPU s | ratio | peak memory, MB | ratio | gradients differ by |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        hand, ours = row["seconds"]
        used = [m["peak"] - m["before"] for m in row["memory"]]
        print(
            f"| {row['network']} | {median(hand):.3f} | {median(ours):.3f} | {ratio(ours, hand)} (n = {len(hand)}) | "
            f"{used[0]:.0f}, {used[1]:.0f} | {used[1] / used[0]:.2f} | {row['gradients']:.0e} |"
        )


# What distillation brings back.


@dataclass(frozen=True, slots=True)
class Course:
    """What is learned from, and how.

    Attributes:
        learn: Samples to learn from; their labels are not looked at unless ``labels`` is more than 0.
        test: Samples to test on.
        epochs: Passes over the former.
        rate: See `Training`.
        features: Layers in between that count too.
        labels: Weight of the labels' cross entropy beside the teacher.
    """

    learn: int
    test: int
    epochs: int
    rate: float
    features: int
    labels: float


@dataclass(frozen=True, slots=True)
class Bench:
    """The model with samples to learn from and to test on."""

    model: Model
    learned: Dataset
    tested: Dataset
    context: Context

    def right(self, model: Model) -> NDArray[np.bool_]:
        """Whether the answer is right, per test sample."""
        session = self.context.compile(model)
        try:
            name = model.outputs[0].name
            answers = (
                (s.truth, session.run(s.feeds)[name]) for s in map(self.tested.__getitem__, range(len(self.tested)))
            )
            return np.array([int(np.argmax(scores)) == int(truth) for truth, scores in answers])
        finally:
            session.close()


def bench(out: Path, course: Course) -> Bench:
    """Fetch the model and draw the samples."""
    model = load_model(fetch(MODEL, default_cache()))
    files = []
    for what, count, seed in zip(("learn", "test"), (course.learn, course.test), SEEDS, strict=True):
        folder = out / f"{DATA}-{what}-{count}"
        if not (folder / "data.yaml").is_file():
            write_data(DATA, default_cache(), folder, count, seed)
        files.append(folder / "data.yaml")
    learned, tested = (open_dataset(load_spec(str(f)), model) for f in files)
    place = find_target("onnxruntime:cpu", {"threads": 1})
    feeds = range(min(64, len(learned)))
    context = Context(lambda m: compile_for(place, m), lambda: (learned[i].feeds for i in feeds), len(feeds), place)
    return Bench(model, learned, tested, context)


def taught(b: Bench, student: Model, teacher: Model, course: Course, folder: Path) -> tuple[Model, list[Any]]:
    """Distil, with batch norms trained where there are any."""
    terms = [Term("mse", name, 1 - course.labels) for name in heads(student, teacher)]
    terms += [Term("mse", name, 0.25) for name in features(student, teacher, course.features)]
    labels = None
    if course.labels:
        ends = heads(student, teacher)
        terms.append(Term("cross_entropy", ends[-1], course.labels))
        labels = [int(b.learned[i].truth) for i in range(len(b.learned))]
    training = Training(
        terms=tuple(terms), rate=course.rate, epochs=course.epochs, batch=BATCH, norms="trained", threads=1
    )
    feeds = (b.learned[i].feeds for i in range(len(b.learned)))
    return train(student, teacher, feeds, training, engine_name="torch", labels=labels, folder=folder)


def scored(base: NDArray[np.bool_], found: NDArray[np.bool_]) -> dict[str, Any]:
    """Accuracy with its 95 % interval, and the drop from the original, paired by sample."""
    n, right = len(found), int(found.sum())
    lost, gained = int((base & ~found).sum()), int((~base & found).sum())
    drop = tango_bounds(lost, gained, n, 0.025, 0.025)
    return {
        "n": n,
        "accuracy": right / n,
        "interval": proportion_bounds(right, n, 0.025, 0.025),
        "drop": (lost - gained) / n,
        "drop_interval": drop,
    }


def told(name: str, score: Mapping[str, Any]) -> str:
    """A row of a table."""
    (low, high), (least, most) = score["interval"], score["drop_interval"]
    drop = f"{100 * score['drop']:+.1f} [{100 * least:+.1f}, {100 * most:+.1f}]"
    return f"| {name} | {score['accuracy']:.3f} [{low:.3f}, {high:.3f}] | {drop} |"


def recovery(out: Path, kind: str, course: Course, keep: float, shape: str) -> None:
    """Break the model, teach it, and test all three."""
    kept = out / f"{kind}.json"
    if kept.is_file() and read_json(kept)["course"] == asdict(course):
        show(read_json(kept))
        return
    b = bench(out, course)
    if kind == "prune":
        teacher = b.model
        change = PruneChannels(keep, round_to=16)(teacher, b.context)
    else:
        teacher = Simplify()(b.model, b.context).model
        change = WeightOnly(4, ops="Conv,MatMul,Gemm", least=0)(teacher, b.context)
    made, epochs = taught(b, change.model, teacher, course, out / f"{kind}-job")
    models = {"original": b.model, "broken": change.model, "taught": made}
    paths = {name: save_model(m, out / f"{kind}-{name}.onnx") for name, m in models.items()}
    right = {name: b.right(m) for name, m in models.items()}
    result: dict[str, Any] = {
        "kind": kind,
        "course": asdict(course),
        "scores": {name: scored(right["original"], r) for name, r in right.items()},
        "bytes": {name: size_bytes(p) for name, p in paths.items()},
        "epochs": [asdict(e) for e in epochs],
        "facts": {k: change.facts[k] for k in ("macs", "parameters") if k in change.facts},
        "declined": len(change.declined),
    }
    fixed = [FixShapes(shape)(models[n], b.context).model for n in ("original", "taught")]
    sessions = [b.context.compile(m) for m in fixed]
    name, sizes = shape.split("=")
    drawn = np.random.default_rng(0).standard_normal([int(s) for s in sizes.split(",")]).astype(np.float32)
    result["milliseconds"] = interleaved(sessions, [{name: drawn}], ROUNDS)
    write_json(kept, result)
    show(result)


def show(result: Mapping[str, Any]) -> None:
    """The table."""
    course = result["course"]
    print(f"\n{MODEL}, {DATA}: {course}, {result['epochs'][-1]['seconds']:.0f} s\n")
    print("| model | top-1 | points lost |\n|---|---|---|")
    for name, score in result["scores"].items():
        print(told(name, score))
    before, after = result["milliseconds"]
    less = 1 - median(b / a for a, b in zip(before, after, strict=True))
    print(
        f"\n{result['facts']} {result['bytes']} CPU ms {median(before):.2f} → {median(after):.2f}, "
        f"{ratio(before, after)} × faster, latency {less:.0%} less ({len(before)} rounds)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    one = commands.add_parser("step")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--rounds", type=int, default=40)
    inner = commands.add_parser("memory")
    inner.add_argument("network", choices=NETWORKS)
    inner.add_argument("leg", choices=LEGS)
    inner.add_argument("path", type=Path)
    for kind, epochs, rate in (("prune", 20, 1e-2), ("int4", 8, 3e-3)):
        two = commands.add_parser(kind)
        two.add_argument("--out", type=Path, required=True)
        two.add_argument("--learn", type=int, default=2000)
        two.add_argument("--test", type=int, default=600)
        two.add_argument("--epochs", type=int, default=epochs)
        two.add_argument("--rate", type=float, default=rate)
        two.add_argument("--features", type=int, default=0)
        two.add_argument("--labels", type=float, default=0.0)
    args = parser.parse_args()
    if args.what == "memory":
        memory(args.network, args.leg, args.path)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    if args.what == "step":
        steps(args.out, args.rounds)
    else:
        course = Course(args.learn, args.test, args.epochs, args.rate, args.features, args.labels)
        recovery(args.out, args.what, course, 0.5, SHAPE)


if __name__ == "__main__":
    main()
