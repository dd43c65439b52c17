from __future__ import annotations

import re
from itertools import combinations

import pytest
from run_builder import RunBuilder

from edgeproof.report import axes, pareto
from edgeproof.report.run import read_run
from edgeproof.report.units import show, text


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.9612, 0.9688), (3, 9000), (-40.0, 3.5), (1e-6, 2e-6)])
@pytest.mark.parametrize("log", [False, True])
def test_ticks_are_round_lie_inside_and_differ_in_text(low: float, high: float, log: bool) -> None:
    if log and low <= 0:
        low = 0.1
    axis = axes.Axis(low, high, 0, 500, log=log)
    ticks = axis.ticks(6)
    assert 2 <= len(ticks) <= 14
    assert all(low - 1e-9 <= t <= high + 1e-9 for t in ticks)
    if low > 1e-5:
        assert len({axes.tick_text(t, ticks) for t in ticks}) == len(ticks)


def test_a_log_axis_gives_equal_ratios_equal_lengths() -> None:
    axis = axes.Axis(1, 100, 0, 200, log=True)
    assert [axis.at(v) for v in (1, 10, 100, 1000)] == pytest.approx([0, 100, 200, 200])


def test_the_frontier_holds_whom_no_other_beats_in_both() -> None:
    def point(name: str, x: float, y: float) -> pareto.Point:
        return pareto.Point(name, 1, x, y, None, None, "screened")

    points = [point("a", 1, 0.5), point("b", 2, 0.9), point("c", 3, 0.8), point("d", 4, 0.95), point("e", 1.5, 0.4)]

    def beaten(p: pareto.Point) -> bool:
        return any(q.x <= p.x and q.y >= p.y and q is not p for q in points)

    assert [p.name for p in pareto.frontier(points, lower=False)] == [p.name for p in points if not beaten(p)]
    assert [p.name for p in pareto.frontier(points, lower=True)] == ["a", "e"]


@pytest.mark.parametrize("width", [axes.WIDE, axes.NARROW])
def test_labels_of_the_pareto_plot_do_not_overlap(builder: RunBuilder, width: float) -> None:
    for i in range(9):
        builder.screened[f"int8-percentile-{i}-threads"] = (8.4 + 0.02 * i, 0.9655 - 0.0002 * i, "")
    run = read_run(builder.write())
    found = pareto.points(run)
    drawing = pareto._draw(run, found, pareto.limits(run), width)
    labels = re.findall(r'<text x="([\d.-]+)" y="([\d.-]+)" text-anchor="start" class="label[^"]*">([^<]*)<', drawing)
    assert len(labels) >= 6
    boxes = [(float(x), float(y) - 12, float(x) + axes.text_width(t), float(y)) for x, y, t in labels]
    assert not [pair for pair in combinations(boxes, 2) if axes.overlaps(*pair)]
    assert all(box[0] >= 0 and box[2] <= width for box in boxes)


def test_an_error_rate_puts_the_limit_above_the_original(builder: RunBuilder) -> None:
    root = builder.write()
    run = read_run(root)
    for row in run.rows:
        if row["measured"]:
            row["measured"]["top1"]["better"] = "lower"
    (limit,) = pareto.limits(run)
    assert limit.value == pytest.approx(0.967 + 0.01)


def test_far_outliers_of_the_search_do_not_squeeze_the_rest(builder: RunBuilder) -> None:
    run = read_run(builder.write())
    low, _ = pareto._domain_y(pareto.points(run), pareto.limits(run), lower=False)
    assert low > 0.9
    assert "int8-minmax 0.401 ↓" in pareto.section(run)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (8.4249, "ms", "8.42 ms"), (0.0421, "ms", "42.1 µs"), (15_300, "ms", "15.3 s"), (0, "ms", "0 ms"),
        (999, "bytes", "999 B"), (5_560_001, "bytes", "5.56 MB"), (0.967, "1", "0.9670"), (119.34, "1/s", "119 /s"),
        (-3.25, "dB", "-3.25 dB"), (45.5, "°C", "45.5 °C"),
    ],
)  # fmt: skip
def test_numbers_come_with_their_unit(value: float, unit: str, shown: str) -> None:
    assert text(value, unit).replace("\u00a0", " ") == shown


def test_the_ends_of_an_interval_differ_as_shown() -> None:
    shown = show(119.1, "ms", 119.021, 119.024)
    assert ">119.021<" in shown
    assert ">119.024<" in shown
