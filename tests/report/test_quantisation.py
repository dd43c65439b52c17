"""The report's quantisation section: every layer with its numbers, every float node with its reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

from run_builder import RunBuilder

from edgeproof.quant.explain import LayerRow
from edgeproof.report.page import render

ROWS = [
    LayerRow(
        "conv_1", "Conv", "uint8×int8", True, "x", -1.5, 3.25, 0.0186, 81, 0.00125, "measured", 41.5, 30.25,
        "w", 64, 1e-3, 2e-3, 44.0, "float weight", 0.9, 0.4,
    ),
    LayerRow(
        "fc", "Gemm", "uint8×int8→float", True, "f", 0.0, 6.0, 0.02, 0, 0.0, "calibration", None, None,
        "w2", 1, 1e-3, 1e-3, 38.0, "estimated", 0.1, 0.2,
    ),
    LayerRow("soft", "Softmax", "float", False, reason="the target has no integer kernel of <Softmax>"),
]  # fmt: skip


def page(tmp_path: Path, rows: list[LayerRow]) -> str:
    builder = RunBuilder(tmp_path)
    plain = builder.layers
    builder.layers = lambda leg: {  # type: ignore[method-assign]
        **plain(leg), "quantised": [] if leg == "original" else [r.to_json() for r in rows]
    }  # fmt: skip
    return render(builder.write())


def section(html: str) -> str:
    found = re.search(r'<section id="quantisation".*?</section>', html, re.S)
    assert found
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", found[0])).replace("\xa0", " ")


def test_layers_have_range_clipping_errors_and_times(tmp_path: Path) -> None:
    html = page(tmp_path, ROWS)
    text = section(html)
    assert "2 of 3 nodes can run in integers. Of 2 layers with times, 1 became faster and 1 slower." in text
    assert "conv_1 Conv uint8×int8 −1.50 … 3.25 0.125 % 41.5 dB 30.2 dB 44.0 dB" in text
    assert "none in calibration – – 38.0 dB estimated" in text
    assert '<a href="#quantisation">' in html


def test_reasons_are_shown_as_text(tmp_path: Path) -> None:
    html = page(tmp_path, ROWS)
    assert "the target has no integer kernel of &lt;Softmax&gt;" in html
    assert "<Softmax>" not in html


def test_a_run_without_quantised_candidates_has_no_such_section(tmp_path: Path) -> None:
    html = page(tmp_path, [])
    assert 'id="quantisation"' not in html
    assert '<a href="#quantisation">' not in html


def test_rows_that_are_damaged_do_not_end_the_report(tmp_path: Path) -> None:
    page(tmp_path, ROWS)
    result = json.loads((tmp_path / "result.json").read_text())
    for row in result["candidates"]:
        if isinstance(row.get("layers"), dict):
            row["layers"]["quantised"] = [None, 3, {"name": "odd", "low": "x", "clipped_share": None}, {"name": "n"}]
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert "odd" in section(render(tmp_path))
