"""The card has the evidence's figures, and text of others stays text in it."""

import json
import re

import pytest

from edgeproof.evidence.verify import verify
from edgeproof.standards import export, read_verified
from evidence_files import read
from standards.sealing import GOLDEN, KEY, NO_SENSOR, TOO_SMALL, sealed


def card(path, keys=(KEY,)) -> str:
    return export(read_verified(path, keys), "model_card", keys).decode()


def test_it_states_verdict_policy_and_every_rule(tmp_path):
    text = card(sealed(tmp_path / "e.zip", TOO_SMALL, NO_SENSOR))
    assert "**reject** under the policy small: a rule fails." in text
    assert "| size \\<= 1000 bytes | fail |" in text
    assert "| power \\<= 10 W | missing |" in text
    assert "| size \\<= 12000 bytes | pass |" in text


def test_a_figure_has_its_unit_and_interval_on_both_sides():
    decision = json.loads(read(GOLDEN)["decision.json"])
    row = next(line for line in card(GOLDEN).splitlines() if line.startswith("| latency\\_p95 \\[ms"))
    numbers = [float(x) for x in re.findall(r"\d+\.\d+", row)]
    want = [decision[side]["latency_p95"][k] for side in ("baseline", "candidate") for k in ("value", "low", "high")]
    assert numbers == pytest.approx(want, rel=1e-5)


def test_it_names_data_device_control_recipe_and_how_to_verify():
    text = card(GOLDEN)
    for part in (
        "Samples: 450, 60 to calibrate, 90 to search, 300 to confirm",
        '`{"module":"test","os":"Linux"}`',
        "fit to measure on",
        'Recipe: `{"name":"int8"}`',
        "edgeproof verify EVIDENCE --key PUBLIC_KEY",
        verify(GOLDEN).candidate,
        verify(GOLDEN).baseline,
        verify(GOLDEN).digest,
        f"signed by the key {KEY.keyid}",
    ):
        assert part in text


def test_findings_and_unassessed_checks_are_limits(tmp_path):
    text = card(sealed(tmp_path / "e.zip", analysed=True))
    assert "- defect: conv\\_1.scale: is 0.0 in {3} of \\[64\\] channels" in text
    assert "- not assessed in full: Does it say where it comes from? no metadata" in text


def test_it_says_when_the_signature_was_not_checked_and_when_there_is_none(tmp_path):
    assert "the signature was not checked" in card(GOLDEN, ())
    assert "; not signed" in card(sealed(tmp_path / "e.zip", signed=False), ())


def test_what_the_evidence_cannot_say_is_left_to_who_trained_it():
    assert "Intended use, licence, training data and fairness are not part of the evidence" in card(GOLDEN)


def test_a_models_name_is_text_and_not_markup(tmp_path):
    text = card(sealed(tmp_path / "e.zip", name="a|b<script>_x_[y](z)`"), ())
    assert text.splitlines()[0] == "# a\\|b\\<script\\>\\_x\\_\\[y\\](z)\\`.onnx"
    assert not re.search(r"(?<!\\)<script", text)


def test_tables_have_one_width(tmp_path):
    text = card(sealed(tmp_path / "e.zip", name="a|b", analysed=True), ())
    blocks = [b.splitlines() for b in re.findall(r"(?:^\|.*\n)+", text, re.M)]
    assert len(blocks) == 3
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block}) == 1
