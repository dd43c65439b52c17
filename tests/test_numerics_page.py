"""The page for learners is true: every snippet gives what it shows, and its example runs."""

from __future__ import annotations

import doctest
import importlib.util
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np

from edgeproof.model import Model
from small_nets import CPU, compiled, net, node, samples, weight

ROOT = Path(__file__).parents[1]


def test_every_snippet_gives_what_the_page_shows() -> None:
    result = doctest.testfile(str(ROOT / "docs/numerics.md"), module_relative=False)
    assert result.attempted > 30
    assert result.failed == 0


def test_the_table_of_formulas_is_the_formula() -> None:
    text = (ROOT / "docs/numerics.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| ([^|]+) \| [^|]+ \| 6\.02 b ?([+-] [\d.]+)? ?\| ([\d.]+) dB \|", text)
    ratios = (12**0.5, 2 * 2**0.5, 8.0, 32.0)
    assert len(rows) == len(ratios)
    for (_, constant, at_8), ratio in zip(rows, ratios, strict=True):
        want = 10 * np.log10(12) - 20 * np.log10(ratio)
        assert abs(float((constant or "0").replace(" ", "")) - want) < 0.05
        assert abs(float(at_8) - (20 * np.log10(2) * 8 + want)) < 0.06


def example():
    spec = importlib.util.spec_from_file_location("bits_on_mnist", ROOT / "examples/bits_on_mnist.py")
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def classifier() -> Model:
    return net(
        [
            node("Conv", ["x", "w1"], ["a"], name="c1", strides=[2, 2]),
            node("Relu", ["a"], ["r"]),
            node("GlobalAveragePool", ["r"], ["p"]),
            node("Flatten", ["p"], ["f"]),
            node("Gemm", ["f", "w2"], ["y"], name="fc", transB=1),
        ],
        [weight("w1", 8, 3, 3, 3), weight("w2", 10, 8)],
        ["n", 3, 16, 16],
    )


def test_the_example_draws_the_curve(tmp_path: Path) -> None:
    module = example()
    model = classifier()
    feeds = [{"x": f["x"][:1]} for f in samples(model, 40)]
    session = compiled(model)
    labels = [int(next(iter(session.run(f).values())).argmax()) for f in feeds]
    module.BITS = (16, 8, 4)
    plain, points = module.curve(model, CPU, feeds, labels)
    assert (plain.right, plain.n) == (20, 20)
    by_bits = {p.bits: p for p in points if p.made == "weights and activations"}
    assert by_bits[16].db > by_bits[8].db > by_bits[4].db
    # 8·27 + 10·8 weights of 4 bits, and a scale of 4 bytes for each of 18 channels.
    assert by_bits[4].bytes == 296 / 2 + 18 * 4
    assert "float32" in module.table(plain, points)
    assert ET.fromstring(module.picture(plain, points)) is not None
