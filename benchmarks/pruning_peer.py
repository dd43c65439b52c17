"""The PyTorch side of the pruning benchmark: torchvision's networks as ONNX files, and Torch-Pruning on the same.

    python benchmarks/pruning_peer.py export FOLDER
    python benchmarks/pruning_peer.py prune --json FILE [--networks resnet18,vit_b_32]

Needs ``torch``, ``torchvision``, ``onnx``, ``onnxscript``, and for ``prune`` also ``torch-pruning``; not edgeproof. One
network of every classification family of torchvision, the smallest of it, with seeded random weights.

Torch-Pruning gets what its documentation asks for: group magnitude importance, the classifier's last layer left whole,
channels in multiples of 8, and the number of heads of every attention layer. Its ratio of channels is bisected, each
time on a fresh network, until about half of the multiply-accumulates are left; `seconds` is CPU time of building its
graph and pruning once, not of that search. Valid means: runs, output shape kept, fewer parameters.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

NETWORKS = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
    "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "regnet_y_400mf", "resnet18",
    "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11", "vit_b_32",
    "wide_resnet50_2",
)  # fmt: skip
CLASSES = 1000


def network(name: str) -> tuple[Any, Any]:
    """A network with seeded random weights in evaluation mode, and an input for it."""
    import torch
    import torchvision

    torch.manual_seed(0)
    more = {"init_weights": True, "aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    size = 299 if name == "inception_v3" else 224
    return torchvision.models.get_model(name, weights=None, **more).eval(), torch.randn(1, 3, size, size)


def export(folder: Path, names: tuple[str, ...]) -> None:
    """Write every network to ``folder/NAME.onnx``."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        model, x = network(name)
        path = str(folder / f"{name}.onnx")
        options: dict[str, Any] = {"opset_version": 18, "external_data": False, "verbose": False, "dynamo": True}
        torch.onnx.export(model, (x,), path, input_names=["x"], output_names=["y"], **options)
        print(path, flush=True)


def pruned(name: str, ratio: float) -> tuple[Any, Any, float]:
    """A network after Torch-Pruning took a ratio of its channels, its input, and CPU seconds."""
    import torch
    import torch_pruning as tp

    model, x = network(name)
    last = [m for m in model.modules() if getattr(m, "out_features", getattr(m, "out_channels", 0)) == CLASSES]
    heads = {}
    for module in model.modules():
        if isinstance(module, torch.nn.MultiheadAttention):
            heads[module] = module.num_heads
        elif "Attention" in type(module).__name__ and hasattr(module, "num_heads") and hasattr(module, "qkv"):
            heads[module.qkv] = module.num_heads
    started = time.process_time()
    pruner = tp.pruner.MagnitudePruner(
        model,
        x,
        importance=tp.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=ratio,
        ignored_layers=last,
        round_to=8,
        num_heads=heads,
    )
    pruner.step()
    return model, x, time.process_time() - started


def measured(name: str, bracket: tuple[float, float], halvings: int) -> dict[str, Any]:
    """One row: what Torch-Pruning made of a network."""
    import torch
    import torch_pruning as tp

    model, x = network(name)
    macs, parameters = tp.utils.count_ops_and_params(model, x)
    row: dict[str, Any] = {"network": name, "macs": macs, "parameters": parameters}
    low, high = bracket
    best: tuple[float, Any] | None = None
    try:
        for _ in range(halvings):
            ratio = (low + high) / 2
            result, x, seconds = pruned(name, ratio)
            with torch.no_grad():
                shape = list(result(x).shape)
            left, fewer = tp.utils.count_ops_and_params(result, x)
            facts = {"ratio": ratio, "left": left / macs, "parameters_left": fewer / parameters, "seconds": seconds}
            facts["valid"] = shape == [1, CLASSES] and fewer < parameters
            if best is None or abs(facts["left"] - 0.5) < abs(best[0] - 0.5):
                best = facts["left"], facts
            low, high = (ratio, high) if left / macs > 0.5 else (low, ratio)
    except Exception as e:
        row["failed"] = f"{type(e).__name__}: {' '.join(str(e).split())[:160]}"
    return {**row, **(best[1] if best else {})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("export", "prune"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("torchvision-onnx"))
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--bracket", type=float, nargs=2, default=(0.15, 0.45), help="ratios to search between")
    parser.add_argument("--halvings", type=int, default=5)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    names = tuple(args.networks.split(","))
    if args.what == "export":
        export(args.folder, names)
        return
    rows = []
    for name in names:
        rows.append(measured(name, tuple(args.bracket), args.halvings))
        print(json.dumps(rows[-1]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
