"""The catalogue of devices as a table, one device in full, and the page of the docs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ..hardware import GIB, Hardware, JetPack, catalogue, find, jetpacks, plan
from ..machine import detect, installed_jetpack
from .show import Show

INTRO = """\
# Devices

`edgeproof targets --hardware` lists them, `--hardware NAME` shows one with its sources, and a name serves as a target
where its runtime is installed: `--target orin-nx`, or `--target orin-nx:dla0` for a part of it. That sets the runtime,
the memory limit and the quantisation, and refuses what cannot work: a DLA on Orin Nano, FP8 on Ampere, an engine for
another compute capability, a TensorRT that comes with no JetPack of the module, a model larger than the memory.

This page is written by `scripts/hardware-page` from `src/edgeproof/hardware.yaml` (a test holds them equal). A dash
means *no* or *none*; an empty cell means that no source says, and what is unknown is not refused. Nothing here was
measured on these devices.

INT4 stands for weights of matrix products, 2:4 for structured sparsity, int8-dot for dot products of bytes.
"""


def show_hardware(name: str, show: Show) -> int:
    """List all devices, or show one.

    Args:
        name: Of the device, or of a part of it; ``all`` lists them, ``here`` is this machine.
        show: Where it goes.

    Raises:
        InputError: hardware.unknown.
        UnsupportedError: hardware.refused, for a part that it lacks.
    """
    if name == "all":
        rows = [_cells(row) for row in catalogue().values()]
        show.table(list(_COLUMNS), rows, optional=("parts", "GB/s", "kind", "capability"))
        show.text("in full, with sources: edgeproof targets --hardware DEVICE")
        show.result({"hardware": [asdict(row) for row in catalogue().values()]})
        return 0
    row = detect() if name == "here" else find(name)
    if row is None:
        show.text("this machine is not in the catalogue")
        show.result({"hardware": None})
        return 0
    if ":" in name:
        plan(name)
    pack = installed_jetpack() if name == "here" else None
    show.text(f"{row.name}: {row.title}")
    for label, value in _facts(row):
        if value:
            show.text(f"  {label:<12} {value}")
    if pack is not None:
        show.text(f"  {'installed':<12} {_pack_words(pack)}")
    for text in row.notes:
        show.text(f"  note         {text}")
    for text in row.sources:
        show.text(f"  source       {text}")
    show.result({"hardware": asdict(row), "installed": None if pack is None else asdict(pack)})
    return 0


def page() -> str:
    """The page ``docs/hardware.md``."""
    rows = list(catalogue().values())
    jetsons = [r for r in rows if r.kind == "jetson"]
    others = [r for r in rows if r.kind not in ("jetson", "gpu")]
    gpus = [r for r in rows if r.kind == "gpu"]
    number = {source: n for n, source in enumerate(dict.fromkeys(s for r in rows for s in r.sources), 1)}
    parts = [
        INTRO,
        "## Jetson modules\n",
        _markdown(
            ("name", "module", "SoC", "GPU", "memory", "GB/s", "DLA", "power modes, W", "JetPack"),
            [
                (
                    " ".join(f"`{n}`" for n in (r.name, *r.aliases)),
                    r.title,
                    r.soc,
                    f"{r.architecture}, {r.compute_capability}",
                    _memory(r),
                    _number(r.bandwidth),
                    _dla(r),
                    ", ".join(f"{p:g}" for p in r.power),
                    f"{r.jetpacks[0].version} to {r.jetpacks[-1].version}",
                )
                for r in jetsons
            ],
        ),
        "The memory is shared by processor, GPU and DLA, so that it limits model, images and system together.\n",
        "## What GPUs compute\n",
        _markdown(
            ("target", "architecture", "computes", "does not"),
            [
                (f"`{r.name}` ({r.compute_capability})", r.architecture, ", ".join(r.has), ", ".join(r.lacks) or "–")
                for r in gpus
            ],
        ),
        "## JetPack\n",
        _markdown(
            ("JetPack", "Jetson Linux", "CUDA", "TensorRT", "cuDNN"),
            [(p.version, ", ".join(p.l4t), p.cuda, p.tensorrt, p.cudnn) for p in jetpacks()],
        ),
        "## Boards, processors and phones\n",
        _markdown(
            ("name", "device", "chip", "accelerator", "memory", "computes", "does not", "parts"),
            [
                (
                    f"`{r.name}`",
                    r.title,
                    r.soc or r.cpu,
                    r.npu,
                    _memory(r),
                    ", ".join(r.has),
                    ", ".join(r.lacks),
                    ", ".join(f"`{p}`: {v[0]}:{v[1]}" for p, v in r.parts.items()),
                )
                for r in others
            ],
        ),
        "## Notes and sources\n",
        _markdown(
            ("device", "what else", "sources"),
            [
                (f"`{r.name}`", "; ".join(r.notes), ", ".join(map(str, sorted(number[s] for s in r.sources))))
                for r in rows
            ],
        ),
        *(f"{n}. {source}" for source, n in number.items()),
    ]
    return "\n".join(parts)


_COLUMNS = ("device", "kind", "memory", "GB/s", "DLA", "capability", "parts", "computes")


def _cells(row: Hardware) -> list[str]:
    return [
        row.name,
        row.kind,
        _memory(row),
        _number(row.bandwidth),
        _dla(row),
        row.compute_capability,
        " ".join(row.parts),
        " ".join(row.has),
    ]


def _facts(row: Hardware) -> list[tuple[str, str]]:
    shared = ", shared with the processor" if row.shared_memory else ""
    gpu = f"{row.architecture}, compute capability {row.compute_capability}" if row.compute_capability else ""
    return [
        ("also called", ", ".join(row.aliases)),
        ("chip", row.soc),
        ("processor", row.cpu),
        ("GPU", gpu),
        ("accelerator", row.npu),
        ("DLA", _dla(row)),
        ("memory", f"{_memory(row)}{shared}" if row.memory_bytes else ""),
        ("bandwidth", f"{row.bandwidth:g} GB/s" if row.bandwidth else ""),
        ("power modes", ", ".join(f"{p:g} W" for p in row.power)),
        ("computes", ", ".join(row.has)),
        ("does not", ", ".join(row.lacks)),
        ("targets", ", ".join(f"{row.name}:{p} ({v[0]})" for p, v in row.parts.items())),
        ("JetPack", "; ".join(_pack_words(p) for p in row.jetpacks[-3:])),
    ]


def _pack_words(pack: JetPack) -> str:
    inside = [f"{n} {v}" for n, v in (("CUDA", pack.cuda), ("TensorRT", pack.tensorrt), ("cuDNN", pack.cudnn)) if v]
    return f"{pack.version} ({', '.join(inside)})"


def _memory(row: Hardware) -> str:
    return f"{row.memory_bytes / GIB:g} GiB" if row.memory_bytes else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _dla(row: Hardware) -> str:
    if row.dla is None:
        return ""
    return f"{row.dla} × {row.dla_version}" if row.dla else "–"


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
