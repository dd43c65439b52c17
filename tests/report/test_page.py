from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_builder import RunBuilder, edit

from edgeproof.errors import InputError
from edgeproof.measurement import LegRun
from edgeproof.report import render, write_report
from edgeproof.workspace import Workspace

VOID = {"meta", "br", "hr", "col", "link", "img", "input"}
HOSTILE = "x\"'><script>alert(1)</script><img src=//e.invalid onerror=alert(2)>\u202e&amp;"


class Page(HTMLParser):
    """Checks balance while it collects what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.files: dict[str, str] = {}
        self.values: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        got = dict(attrs)
        assert len(got) == len(attrs), f"an attribute twice in <{tag}>"
        self.tags.append((tag, got))
        if "id" in got:
            self.ids.append(str(got["id"]))
        if tag == "data":
            self.values.add(str(got["value"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a start"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            name = self.tags[-1][1].get("data-name")
            if name is not None:
                self.files[name] = self.files.get(name, "") + data
        elif not self.open or self.open[-1] != "style":
            self.text += data


def page(builder: RunBuilder) -> Page:
    return Page(render(builder.write()))


def test_the_page_is_well_formed_and_its_ids_are_unique(builder: RunBuilder) -> None:
    found = page(builder)
    assert len(found.ids) == len(set(found.ids))
    anchors = [a["href"] for t, a in found.tags if t == "a"]
    assert anchors
    assert {str(a).removeprefix("#") for a in anchors} <= set(found.ids)


def test_the_page_loads_nothing_from_anywhere(builder: RunBuilder) -> None:
    found = page(builder)
    addresses = [v for _, a in found.tags for k, v in a.items() if k in ("src", "href", "action", "data", "srcset")]
    assert all(str(v).startswith("#") for v in addresses)
    assert not {t for t, _ in found.tags} & {"link", "iframe", "object", "embed", "base", "img", "form"}
    style = next(re.finditer(r"<style>(.*?)</style>", render(builder.root), re.DOTALL)).group(1)
    assert "url(" not in style
    assert "@import" not in style


def test_the_security_policy_names_the_very_style_and_script(builder: RunBuilder) -> None:
    text = render(builder.write())
    policy = next(a["content"] for t, a in Page(text).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        content = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert len(content) == 1
        digest = base64.b64encode(hashlib.sha256(content[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_no_element_carries_a_style_or_a_handler(builder: RunBuilder) -> None:
    assert not [k for _, a in page(builder).tags for k in a if k == "style" or k.startswith("on")]


@pytest.mark.parametrize(("state", "words"), [("accept", "faster than the original"), ("reject", "No variant met"),
                                              ("hold", "not decided")])  # fmt: skip
def test_the_verdict_stands_first(builder: RunBuilder, state: str, words: str) -> None:
    builder.state = state
    text = page(builder).text
    assert text.index(state.upper()) < text.index(words) < text.index("Candidates", text.index(words))


def test_every_measured_number_is_on_the_page_exactly(builder: RunBuilder) -> None:
    found = page(builder)
    result = json.loads((builder.root / "result.json").read_text())
    rows = [m for r in result["candidates"] for m in r["measured"].values()]
    assert len(rows) == 10
    for m in rows:
        assert {repr(m[k]) for k in ("value", "low", "high") if m[k] is not None} <= found.values


def test_the_speedup_interval_is_the_t_interval_of_log_ratios(builder: RunBuilder) -> None:
    import numpy as np
    from scipy import stats

    from edgeproof.report.run import read_run

    run = read_run(builder.write())
    medians = {leg: [np.median(r.latency_ns) for r in run.rounds if r.leg == leg] for leg in ("original", builder.best)}
    logs = np.log(medians["original"]) - np.log(medians[builder.best])
    low, high = stats.t.interval(0.95, len(logs) - 1, logs.mean(), stats.sem(logs))
    assert run.speedup(builder.best) == pytest.approx(tuple(np.exp([logs.mean(), low, high])))


def test_saved_files_hold_the_very_raw_samples(builder: RunBuilder) -> None:
    files = page(builder).files
    assert json.loads(files["result.json"]) == json.loads((builder.root / "result.json").read_text())
    rows = list(csv.DictReader(io.StringIO(json.loads(files["latency-confirm.csv"]), newline="")))
    for index in range(builder.rounds):
        for value in json.loads((builder.root / f"confirm/round-{index:03d}.json").read_text()):
            leg = LegRun.from_json(value)
            column = [int(r[f"{leg.leg} (ns)"]) for r in rows if int(r["round"]) == index]
            assert tuple(column) == leg.latency_ns
    again = [LegRun.from_json(v) for v in json.loads(files["confirm-rounds.json"])]
    assert again[0].peak_rss_bytes == 120_000_000
    search = list(csv.DictReader(io.StringIO(json.loads(files["latency-search.csv"]), newline="")))
    float_runs = [int(r["latency_ns"]) for r in search if r["candidate"] == r["leg"] == "float"]
    assert float_runs == [14_000_000, 14_500_000, 12_100_000]


def test_every_button_has_its_file(builder: RunBuilder) -> None:
    found = page(builder)
    buttons = [a for t, a in found.tags if t == "button"]
    assert {a["data-name"] for a in buttons} == set(found.files)
    assert {a["data-source"] for a in buttons} <= set(found.ids)


def test_names_from_files_never_become_markup(builder: RunBuilder) -> None:
    builder.node = HOSTILE
    builder.screened[HOSTILE.replace("/", "_")] = (9.0, 0.96, HOSTILE)
    root = builder.write()
    edit(root / "request.json", model_name=HOSTILE, edgeproof=HOSTILE)
    edit(root / "environment.json", **{HOSTILE: {HOSTILE: [HOSTILE]}})
    edit(root / "control.json", problems=[HOSTILE], warnings=[HOSTILE])
    finding = {"kind": HOSTILE, "subject": HOSTILE, "problem": HOSTILE, "hint": HOSTILE}
    layer = {"name": HOSTILE, "op": HOSTILE, "shape": [1, HOSTILE], "macs": 5, "parameters": HOSTILE}
    spec = {"name": HOSTILE, "dtype": HOSTILE, "shape": [HOSTILE]}
    inspection = {
        "inputs": [spec],
        "findings": [finding],
        "layers": [layer],
        "checks": [finding],
        "ops": {HOSTILE: HOSTILE},
    }
    Workspace.open(root).write("inspection.json", inspection)
    text = render(root)
    found = Page(text)
    assert [t for t, _ in found.tags].count("img") == 0
    scripts = [a for t, a in found.tags if t == "script"]
    assert [a for a in scripts if "data-name" not in a] == [{}]
    assert not [k for _, a in found.tags for k in a if k.startswith("on")]
    assert "alert(1)" in found.text
    assert "\u202e" not in text
    assert json.loads(found.files["inspection.json"])["inputs"][0]["name"] == HOSTILE


def test_a_policy_of_any_unit_and_direction_is_shown(builder: RunBuilder) -> None:
    root = builder.write()
    rules = [
        {"metric": "latency_p50", "op": "<=", "limit": "0.8", "unit": "ratio", "relative_to": "baseline"},
        {"metric": "quality", "op": ">=", "limit": "0.95", "unit": "1", "relative_to": ""},
        {"metric": "latency_p95", "op": "<=", "limit": "16.5", "unit": "ms", "relative_to": ""},
        {"metric": "power", "op": "<=", "limit": "8", "unit": "W", "relative_to": ""},
    ]
    edit(root / "request.json", policy={"name": "field", "rules": rules})
    text = Page(render(root)).text
    for words in ("latency p50 ≤ 0.8 × the original's", "quality ≥ 0.95", "power ≤ 8 W", "p95 limit 16.5 ms"):
        assert words in text
    assert "limit: quality ≥ 0.95" in text


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("environment.json", "no record of its machine"),
        ("confirm", "no latency samples of a confirmation"),
        ("best.json", "runtime settings"),
        ("ledger.jsonl", "no ledger to show"),
        ("candidates", "Raw numbers"),
        ("control.json", "control ÷ original"),
        ("inspection.json", "keeps no inspection"),
    ],
)
def test_a_missing_part_is_said_and_ends_nothing(builder: RunBuilder, name: str, sentence: str) -> None:
    path = builder.write() / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    assert sentence in Page(render(builder.root)).text


@pytest.mark.parametrize("name", ["environment.json", "control.json", "best.json", "confirm/round-001.json"])
@pytest.mark.parametrize("content", ["", "[1", "7", '"x"', "[[3]]", '{"a": null}', '[{"leg": "a"}]'])
def test_a_broken_part_never_ends_the_report(builder: RunBuilder, name: str, content: str) -> None:
    (builder.write() / name).write_text(content)
    Page(render(builder.root))


@pytest.mark.parametrize("key", ["state", "best", "metric", "samples", "control", "candidates"])
@pytest.mark.parametrize("value", [None, 3, "x", [], [None, 7, {}], {"a": {"b": None}}])
def test_a_result_of_another_shape_never_ends_the_report(builder: RunBuilder, key: str, value: object) -> None:
    edit(builder.write() / "result.json", **{key: value})
    Page(render(builder.root))


@pytest.mark.parametrize(
    "key", ["search", "measured", "verdict", "change", "layers", "fidelity", "recipe", "name", "why"]
)
@pytest.mark.parametrize(
    "value", [None, 3, "x", [[]], {"a": {"value": "x"}}, {"layers": [3], "steps": [3], "checks": [3]}]
)
def test_a_candidate_of_another_shape_never_ends_the_report(builder: RunBuilder, key: str, value: object) -> None:
    path = builder.write() / "result.json"
    result = json.loads(path.read_text())
    for row in result["candidates"][1:]:
        row[key] = value
    path.write_text(json.dumps(result))
    Page(render(builder.root))


def test_a_broken_ledger_is_said_at_the_top(builder: RunBuilder) -> None:
    path = builder.write() / "ledger.jsonl"
    path.write_text(
        path.read_text().replace("bench-confirm", "bench-forged").replace("quality-search", "quality-forged")
    )
    text = Page(render(builder.root)).text
    assert "Not everything could be read" in text
    assert "does not follow from the line before it" in text
    assert text.index("Not everything could be read") < text.index("ACCEPT", text.index("Raw numbers"))


def test_a_candidate_named_with_a_path_reads_nothing_outside_the_run(builder: RunBuilder) -> None:
    builder.screened["../../secret"] = (9.0, 0.96, "")
    root = builder.root
    (root.parent / "secret").mkdir()
    (root.parent / "secret" / "change.json").write_text('{"steps": [{"pass": "from outside"}]}')
    root.mkdir()
    builder.screened.pop("../../secret")
    builder.write()
    result = json.loads((root / "result.json").read_text())
    result["candidates"].append({"name": "../../secret", "state": "screened"})
    (root / "result.json").write_text(json.dumps(result))
    assert "from outside" not in render(root)


def test_a_run_without_any_candidate_but_the_original_is_shown(builder: RunBuilder) -> None:
    builder.state = "reject"
    builder.screened = {}
    path = builder.write() / "result.json"
    result = json.loads(path.read_text())
    edit(path, candidates=result["candidates"][:1])
    assert "No variant did well enough" in Page(render(builder.root)).text


def test_the_original_can_be_the_best(builder: RunBuilder) -> None:
    edit(builder.write() / "result.json", best="original")
    assert "The original meets the policy itself" in Page(render(builder.root)).text


def test_one_round_gives_a_speedup_without_interval(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", rounds=1)
    assert "one round, so no interval" in page(builder).text


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as e:
        render(tmp_path)
    assert e.value.code == "workspace.missing"


def test_an_unfinished_run_says_how_to_finish_it(builder: RunBuilder) -> None:
    (builder.write() / "result.json").unlink()
    with pytest.raises(InputError, match="no result yet") as e:
        render(builder.root)
    assert "same 'edgeproof optimize' command" in e.value.hint


def test_the_same_folder_gives_the_same_page(builder: RunBuilder) -> None:
    builder.write()
    assert render(builder.root) == render(builder.root)


def test_the_page_goes_where_it_is_asked_to_and_by_default_into_the_run(builder: RunBuilder, tmp_path: Path) -> None:
    builder.write()
    assert write_report(builder.root) == builder.root / "report.html"
    assert write_report(builder.root, tmp_path / "a" / "b.html").read_text() == render(builder.root)


def test_a_full_run_stays_under_three_megabytes(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", rounds=10, inferences=200)
    builder.speed["int8-b"], builder.quality["int8-b"], builder.sizes["int8-b"] = 8.6, 0.966, 5_600_000
    assert len(render(builder.write()).encode()) < 3_000_000
