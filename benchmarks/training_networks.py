"""Networks written by hand in PyTorch, as people write them, for `benchmarks.training`: 3 × 64 × 64 → 10 classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.macs import MOBILENET_V2

CLASSES = 10
SIZE = 64
OPSET = 17


def made(name: str, seed: int = 0) -> Any:
    """A network with random weights and random statistics in its batch norms, so that no two tensors are alike."""
    import torch

    torch.manual_seed(seed)
    module = {"mobilenet_v2": mobilenet_v2, "resnet18": resnet18}[name]()
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                part.weight.uniform_(0.8, 1.2)
                part.bias.uniform_(-0.1, 0.1)
                part.running_mean.uniform_(-0.1, 0.1)
                part.running_var.uniform_(0.8, 1.2)
    return module


def export(module: Any, path: Path) -> None:
    """Write a network as ONNX, batch norms and names kept, with an open batch."""
    import warnings

    import torch

    module.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.zeros(2, 3, SIZE, SIZE),),
            str(path),
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            input_names=["x"],
            output_names=["logits"],
            dynamic_axes={"x": {0: "N"}, "logits": {0: "N"}},
            opset_version=OPSET,
        )


def mobilenet_v2() -> Any:
    """MobileNetV2 (Sandler et al. 2018, table 2) with the stride of the stem left out."""
    from torch import nn

    def layer(i: int, o: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[Any]:
        conv = nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [conv, nn.BatchNorm2d(o), nn.ReLU6(inplace=True)]

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, i: int, o: int, stride: int, expand: int) -> None:
            super().__init__()
            wide = i * expand
            parts = layer(i, wide) if expand != 1 else []
            parts += layer(wide, wide, 3, stride, wide)
            self.body = nn.Sequential(*parts, nn.Conv2d(wide, o, 1, bias=False), nn.BatchNorm2d(o))
            self.same = stride == 1 and i == o

        def forward(self, x: Any) -> Any:
            return x + self.body(x) if self.same else self.body(x)

    blocks, channels = [], 32
    for expand, out, count, stride in MOBILENET_V2:
        for i in range(count):
            blocks.append(Block(channels, out, stride if i == 0 else 1, expand))
            channels = out
    return nn.Sequential(
        *layer(3, 32, 3, 1),
        *blocks,
        *layer(channels, 1280),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1280, CLASSES),
    )


def resnet18() -> Any:
    """ResNet-18 (He et al. 2016, table 1), with the 3 × 3 stem that small pictures get."""
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, i: int, o: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(i, o, 3, stride, 1, bias=False),
                nn.BatchNorm2d(o),
                nn.ReLU(inplace=True),
                nn.Conv2d(o, o, 3, 1, 1, bias=False),
                nn.BatchNorm2d(o),
            )
            down = [nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)]
            self.short = nn.Sequential(*down) if stride != 1 or i != o else nn.Identity()
            self.end = nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            return self.end(self.body(x) + self.short(x))

    parts: list[Any] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    channels = 64
    for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        parts += [Block(channels, out, stride), Block(out, out, 1)]
        channels = out
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))
