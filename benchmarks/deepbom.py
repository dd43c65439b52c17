"""What DEEPBOM and edgeproof report on the same pairs of models, beside what differs by the files' own bytes.

    python -m benchmarks.deepbom [MODEL …]

Three pairs a model: the original and its INT8; that INT8 and one of the same graph with other scales and weights; the
original and itself with one weight changed. DEEPBOM comes from PyPI, into an environment of its own. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from benchmarks.peers.environments import installed, python_of
from benchmarks.zoo.catalogue import fetch, write_data
from benchmarks.zoo.packages import default_cache
from onnx import numpy_helper

from edgeproof import __version__
from edgeproof.cli import main as edgeproof_main

DATA = {"mnist_cnn": "mnist", "ppocr_cls": "turned", "ppocr_rec": "lines_easy", "ppocr_det": "pages"}
ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "evidence-1-top1.zip"
FIXTURES = ROOT / "tests" / "structure" / "fixtures"
TIME = "2026-12-01T09:30:00Z"
REQUANTISED = ("--method", "percentile", "--percentile", "99", "--rounding", "gptq")
BIG_MIB = 600
Row = tuple[str, str, str]


@dataclass(frozen=True)
class Ran:
    """A program that ended."""

    code: int
    out: bytes
    last: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(DATA)}; default: the first two")
    parser.add_argument("--samples", type=int, default=64, help="to calibrate on (default: 64)")
    args = parser.parse_args()
    python_of("deepbom")
    print(f"DEEPBOM {version()}, edgeproof {__version__}, onnx {onnx.__version__}\n")
    with tempfile.TemporaryDirectory(prefix="edgeproof-deepbom-") as name:
        folder = Path(name)
        for model in args.models or list(DATA)[:2]:
            for title, before, after in pairs(model, folder / model, args.samples):
                show(f"{model}: {title}", compared(before, after))
        show("In general", list(general(folder, fetch("mnist_cnn", default_cache()))))


def version() -> str:
    found: Any = installed("deepbom")["installed"]
    return next(line.partition("==")[2] for line in found if line.startswith("deepbom=="))


def pairs(model: str, folder: Path, samples: int) -> Iterator[tuple[str, Path, Path]]:
    """Title, before, after."""
    cache = default_cache()
    original = fetch(model, cache)
    data = str(write_data(DATA[model], cache, folder / "data", samples))
    made = {}
    for name, flags in (("int8", ()), ("requantised", REQUANTISED)):
        made[name] = folder / f"{name}.onnx"
        done = edgeproof("apply", "int8", str(original), "--data", data, *flags, "--out", str(made[name]))
        if done.code:
            raise RuntimeError(f"{model}: {done.last}")
    yield "original → INT8", original, made["int8"]
    yield "INT8 → re-quantised, the same graph", made["int8"], made["requantised"]
    yield "original → one weight changed", original, nudged(original, folder / "nudged.onnx")


def nudged(model: Path, out: Path) -> Path:
    """The model with one number of its largest stored tensor changed."""
    proto = onnx.load(model)
    stored = max(_stored(proto), key=lambda t: int(np.prod(t.dims)))
    values = numpy_helper.to_array(stored).copy()
    values.flat[0] += 1
    stored.CopyFrom(numpy_helper.from_array(values, stored.name))
    onnx.save(proto, out)
    return out


def compared(before: Path, after: Path) -> list[Row]:
    """What each reports, and what differs by a third reading: that of the onnx package."""
    theirs = deepbom("diff", before, after, "--json").json
    ours = edgeproof("compare", str(before), str(after), "--json").json["comparison"]
    graph, storage, scales = (theirs[f"{k}_delta"] for k in ("graph", "storage", "quantization"))
    ports = Counter(p["state"] for p in ours["interface"])
    interface = graph["input_contract_changed"] or graph["output_contract_changed"]
    same = theirs["baseline"]["sha256"] == theirs["candidate"]["sha256"]
    return [
        ("the file", "same SHA-256" if same else "other SHA-256", "same" if ours["identical"] else "other digest"),
        ("interface", "changed" if interface else "unchanged", _counted(ports)),
        ("operators", _statuses(graph["operator_alignment"]), _operators(ours)),
        ("stored tensors", _statuses(storage["object_alignment"]), _tensors(ours)),
        ("… by the files' bytes", *(_by_bytes(before, after),) * 2),
        ("how far weights moved", "not reported", _distance(ours)),
        ("quantisation", _statuses(scales["record_alignment"]), _quantisation(ours)),
        ("to be done again", _required(theirs), "measured: what the policy of a review asks for"),
        ("findings before → after", f"{_findings(before)} → {_findings(after)}", _our_findings(ours)),
    ]


def general(folder: Path, model: Path) -> Iterator[Row]:
    """What does not depend on the pair."""
    theirs = _bom(deepbom("audit", model, "--output-format", "cyclonedx", "--timestamp", TIME).out)
    path = folder / "ours.cdx.json"
    edgeproof("export", str(GOLDEN), "--as", "cyclonedx", "--out", str(path))
    ours = _bom(path.read_bytes())
    yield "ML-BOM", *(f"CycloneDX {b['specVersion']}" for b in (theirs, ours))
    yield "… measured figures in it, with intervals", *map(_figures, (theirs, ours))
    yield "raw samples kept", "none: nothing is run", "every one, in the evidence"
    in_bom = ["in the BOM" if "signature" in bom else "none in the BOM" for bom in (theirs, ours)]
    yield "signature", in_bom[0], f"{in_bom[1]}; DSSE over an in-toto Statement in the evidence that it names"
    yield "same BOM twice", _twice(model), _ours_twice(folder)
    big = large(folder / "big.onnx")
    done, mine = deepbom("diff", big, big, "--json"), edgeproof("compare", str(big), str(big), "--json")
    yield f"a {BIG_MIB} MiB ONNX file", _end(done), _end(mine)
    tflite = FIXTURES / "fc_int8.tflite"
    done, mine = deepbom("audit", tflite, "--json"), edgeproof("inspect", str(tflite), "--json")
    yield "a TFLite file", _end(done), _end(mine)
    mixed = (FIXTURES / "conv.onnx", FIXTURES / "conv.xml")
    done, mine = deepbom("diff", *mixed, "--json"), edgeproof("compare", *map(str, mixed), "--json")
    yield "ONNX against OpenVINO IR", _end(done), _end(mine)
    mixed = (FIXTURES / "conv.onnx", weights(folder / "w.safetensors"))
    done, mine = deepbom("diff", *mixed, "--json"), edgeproof("compare", *map(str, mixed), "--json")
    yield "ONNX against SafeTensors", _end(done), _end(mine)


def show(title: str, rows: Sequence[Row]) -> None:
    print(f"**{title}**\n\n| | DEEPBOM | edgeproof |\n|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print(flush=True)


def deepbom(command: str, *arguments: Path | str) -> Ran:
    return ran([str(python_of("deepbom").parent / "deepbom"), command, *map(str, arguments)])


def edgeproof(*arguments: str) -> Ran:
    return ran([sys.executable, "-m", edgeproof_main.__module__.partition(".")[0], *arguments])


def ran(command: Sequence[str]) -> Ran:
    environment = {k: v for k, v in os.environ.items() if k != "SOURCE_DATE_EPOCH"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    lines = done.stderr.decode().strip().splitlines()
    return Ran(done.returncode, done.stdout, lines[0] if lines else "")


def large(path: Path) -> Path:
    """One matrix product with 150 million weights."""
    columns = BIG_MIB * 2**20 // 4 // 1024
    weights = np.random.default_rng(0).standard_normal((1024, columns), dtype=np.float32)
    ports = [onnx.helper.make_tensor_value_info(n, 1, [1, k]) for n, k in (("x", 1024), ("y", columns))]
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", ports[:1], ports[1:], [numpy_helper.from_array(weights, "w")])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    return path


def weights(path: Path) -> Path:
    """A SafeTensors file with one tensor of four zeros."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    return path


def _stored(proto: onnx.ModelProto) -> list[Any]:
    constants = (a.t for n in proto.graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value")
    return [t for t in (*proto.graph.initializer, *constants) if t.data_type == onnx.TensorProto.FLOAT and t.dims]


def _by_bytes(before: Path, after: Path) -> str:
    first, second = (_contents(path) for path in (before, after))
    shared = first.keys() & second.keys()
    changed = sum(first[n] != second[n] for n in shared)
    removed, added = len(first.keys() - second.keys()), len(second.keys() - first.keys())
    return _counted({"equal": len(shared) - changed, "changed": changed, "removed": removed, "added": added})


def _contents(path: Path) -> dict[str, tuple[int, tuple[int, ...], bytes]]:
    """Type, shape and values of every stored tensor, of initializers and of constants."""
    graph = onnx.load(path).graph
    stored = [(t.name, t) for t in graph.initializer]
    stored += [
        (n.output[0], a.t) for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"
    ]
    return {name: (t.data_type, tuple(t.dims), numpy_helper.to_array(t).tobytes()) for name, t in stored}


def _counted(counts: Any) -> str:
    return ", ".join(f"{n} {state}" for state, n in sorted(counts.items()) if n) or "none"


def _statuses(rows: Sequence[Any]) -> str:
    return _counted(Counter(r["status"] for r in rows))


def _operators(ours: Any) -> str:
    changed = ", ".join(f"{op} {a} → {b}" for op, (a, b) in ours["operators"].items())
    return f"graph {ours['graph']}" + (f"; {changed}" if changed else "")


def _tensors(ours: Any) -> str:
    return _counted(Counter({"equal": ours["equal_tensors"]}) + Counter(t["state"] for t in ours["tensors"]))


def _quantisation(ours: Any) -> str:
    states = Counter(q["state"] for q in ours["quantisation"])
    return _counted(Counter({"equal": ours["equal_quantisation"]}) + states)


def _distance(ours: Any) -> str:
    known = [(t["distance"], t["name"]) for t in ours["tensors"] if t["distance"] is not None]
    return "{:.2g} of its norm, {}".format(*max(known)) if known else "no tensor of the same name"


def _required(theirs: Any) -> str:
    wanted = [c for c in theirs["change_impact"]["categories"] if c["required"]]
    return "; ".join(f"{c['id']} ({', '.join(c['reasons'])})" for c in wanted) or "nothing"


def _findings(path: Path) -> str:
    found = deepbom("audit", path, "--section", "findings").json["sections"]["findings"]
    return _counted({k.replace("_", " "): len(v) for k, v in found.items() if isinstance(v, list)})


def _our_findings(ours: Any) -> str:
    found = ours["findings"]
    kinds = {k: Counter(f["kind"] for f in found[k]) for k in ("new", "gone", "kept")}
    return "; ".join(f"{k}: {_counted(v)}" for k, v in kinds.items())


def _bom(data: bytes) -> Any:
    return json.loads(data)


def _figures(bom: Any) -> str:
    card = bom["metadata"]["component"].get("modelCard", {})
    figures = card.get("quantitativeAnalysis", {}).get("performanceMetrics", [])
    return f"{len(figures)}, {sum('confidenceInterval' in f for f in figures)} with an interval"


def _twice(model: Path) -> str:
    told: list[Callable[[], bytes]] = [
        lambda: deepbom("audit", model, "--output-format", "cyclonedx").out,
        lambda: deepbom("audit", model, "--output-format", "cyclonedx", "--timestamp", TIME).out,
    ]
    plain, timed = (_same(make) for make in told)
    return f"{plain}; {timed} with --timestamp"


def _ours_twice(folder: Path) -> str:
    def make() -> bytes:
        path = folder / "again.cdx.json"
        edgeproof("export", str(GOLDEN), "--as", "cyclonedx", "--out", str(path))
        return path.read_bytes()

    return _same(make)


def _same(make: Callable[[], bytes]) -> str:
    first = make()
    subprocess.run(["sleep", "1"], check=True)  # so that a clock in it shows
    return "same bytes" if first == make() else "other bytes"


def _end(done: Ran) -> str:
    return "read" if done.code == 0 else f"refused: {done.last.removeprefix('deepbom: ')}"


if __name__ == "__main__":
    main()
