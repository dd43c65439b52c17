"""Evidence that was tampered with, or that never held, is refused; each case by a code of its own."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from statistics import geometric_mean, median

import pytest
from securesystemslib.signer import CryptoSigner

from edgeproof.archive import write_archive
from edgeproof.digest import canonical_json, digest_json
from edgeproof.errors import InputError, TrustError
from edgeproof.evidence.seal import seal_members
from edgeproof.evidence.verify import verify
from edgeproof.policy import Rule
from edgeproof.strictjson import loads
from evidence_files import POLICY, chained, digest, ledger, read, reentered, structure, tamper, values, write

SIGNER = CryptoSigner.generate_ed25519()
KEYS = [SIGNER.public_key]
NOW = datetime(2026, 12, 24, tzinfo=UTC)


@pytest.fixture
def file(tmp_path):
    """Signed evidence of an accept."""
    write(values(), tmp_path / "e.zip", [SIGNER])
    return tmp_path / "e.zip"


def codes(path, **options) -> set[str]:
    """Codes of everything that differs; what differs is never accepted."""
    found = verify(path, keys=KEYS, now=NOW, **options)
    assert not found.accepted
    return {d.code for d in found.differences}


def refused(path) -> str:
    with pytest.raises(TrustError) as e:
        verify(path, keys=KEYS, now=NOW)
    return e.value.code


def receipt(found, role, kind="runs"):
    return found[f"receipt-{role}-{kind}.json"]


def test_an_accept_that_holds_is_accepted_and_says_of_what(file):
    found = verify(file, keys=KEYS, now=NOW)
    assert found.accepted
    assert (found.state, found.trusted, found.differences) == ("accept", True, ())
    assert found.signed_by == (SIGNER.public_key.keyid,)
    candidate = structure("int8", 12_000, "int8")
    assert (found.candidate, found.candidate_model) == (candidate.files[0].digest, candidate.digest)
    assert found.baseline == structure("net", 40_000, "float").files[0].digest
    assert found.policy == POLICY.digest
    assert [c.state for c in found.verdict.checks] == ["pass", "pass", "pass"]


def test_the_speed_up_is_that_of_the_medians_of_the_rounds(file):
    # A second derivation, from the raw nanoseconds: the geometric mean of the ratio of medians.
    members = {n: loads(d, n) for n, d in read(file).items()}
    sides = [
        [median(r["latency_ns"]) for r in members[f"receipt-{s}-runs.json"]["runs"]] for s in ("baseline", "candidate")
    ]
    expected = geometric_mean(b / c for b, c in zip(*sides, strict=True))
    assert members["decision.json"]["speedup"][0] == pytest.approx(expected, rel=1e-9)


# Signatures and expiry


def test_a_whole_file_rewritten_by_someone_without_the_key_is_not_trusted(file):
    def rewrite(found):
        receipt(found, "candidate")["runs"] = [
            {**r, "latency_ns": [t // 2 for t in r["latency_ns"]]} for r in receipt(found, "candidate")["runs"]
        ]
        found["ledger.json"]["lines"] = ledger(found)
        del found["attestation.json"]

    tamper(file, rewrite, decide=True)
    found = verify(file, keys=KEYS, now=NOW)
    assert (found.state, found.differences, found.trusted, found.accepted) == ("accept", (), False, False)
    assert found.untrusted[0] == "evidence.unsigned"


def test_a_rewritten_file_that_keeps_the_old_signature_is_not_trusted(file):
    tamper(file, lambda found: found["request.json"].update(change="nothing to see"))
    found = verify(file, keys=KEYS, now=NOW)
    assert found.untrusted[0] == "evidence.statement"
    assert not found.accepted


def test_without_a_key_to_check_with_nothing_is_trusted(file):
    found = verify(file, now=NOW)
    assert (found.trusted, found.untrusted[0], found.accepted) == (False, "evidence.no_key", False)


def test_the_signature_of_another_key_is_not_trusted(file):
    found = verify(file, keys=[CryptoSigner.generate_ed25519().public_key], now=NOW)
    assert (found.trusted, found.untrusted[0]) == (False, "evidence.signature")


def test_an_accept_that_has_expired_is_not_accepted_any_more(file):
    before, after = datetime(2027, 12, 1, 9, 29, 59, tzinfo=UTC), datetime(2027, 12, 1, 9, 30, tzinfo=UTC)
    assert verify(file, keys=KEYS, now=before).accepted
    found = verify(file, keys=KEYS, now=after)
    assert (found.expired, found.accepted, found.state) == (True, False, "accept")
    assert verify(file, keys=KEYS).accepted  # nothing depends on the clock unless a time is given


# Members


def test_a_member_that_the_manifest_does_not_list_differs(file):
    members = read(file)
    write_archive(file, {**members, "card.md": b"# trust me"})
    assert codes(file) == {"evidence.extra_member"}


def test_a_listed_member_that_is_missing_differs(tmp_path):
    write(values(), tmp_path / "e.zip", [SIGNER], **{"card.md": b"# a model"})
    members = read(tmp_path / "e.zip")
    write_archive(tmp_path / "e.zip", {n: d for n, d in members.items() if n != "card.md"})
    assert codes(tmp_path / "e.zip") == {"evidence.missing_member"}


@pytest.mark.parametrize("name", ["policy.json", "request.json", "ledger.json", "decision.json", "manifest.json"])
def test_a_needed_member_that_is_missing_is_refused(file, name):
    write_archive(file, {n: d for n, d in read(file).items() if n != name})
    assert refused(file) == "evidence.missing"


def test_a_member_without_a_place_is_refused(file):
    write_archive(file, {**read(file), "model.pkl": b"x"})
    assert refused(file) == "archive.not_allowed"


def test_a_changed_member_differs_from_the_manifest(file):
    tamper(file, lambda found: found["request.json"].update(change="other words"), hashes=False)
    assert codes(file) == {"evidence.member_digest"}


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("policy.json", b'{"a":1,"a":2}', "json.duplicate_key"),
        ("receipt-candidate-runs.json", b"[NaN]", "json.not_finite"),
        ("ledger.json", b"[1e400]", "json.not_finite"),
        ("analysis-candidate.json", b"[" * 100 + b"]" * 100, "json.too_deep"),
        ("request.json", b"[9007199254740993]", "json.integer"),
        ("dataset.json", b'{ "a": 1 }', "json.not_canonical"),
        ("policy.json", b"{} {}", "json.trailing"),
        ("policy.json", b'"\xff"', "json.not_utf8"),
        ("evaluator.json", b'"\\ud800"', "json.surrogate"),
    ],
)
def test_json_with_two_meanings_is_refused_as_evidence(file, name, data, code):
    write_archive(file, {**read(file), name: data})
    assert refused(file) == code


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v["request.json"].update(by="me"),
        lambda v: v["request.json"].update(frozen=[]),
        lambda v: v["request.json"].update(change=1),
        lambda v: v["request.json"]["quality"].update(kind="exact"),
        lambda v: v["ledger.json"].update(lines=[1]),
        lambda v: v["dataset.json"].update(search=["1"]),
        lambda v: v["environment.json"].update(digest=1),
        lambda v: v["analysis-candidate.json"].update(files=[]),
        lambda v: v["analysis-candidate.json"].update(weights=[{"name": "w"}]),
        lambda v: v["analysis-candidate.json"]["files"][0].update(size=-1),
    ],
)
def test_a_member_that_is_not_what_its_name_says_is_refused(file, change):
    tamper(file, change)
    assert refused(file) == "evidence.value"


def test_an_unknown_key_anywhere_in_the_closed_sets_is_refused(file):
    for name in ("request.json", "ledger.json", "dataset.json", "evaluator.json", "receipt-candidate-runs.json"):
        write(values(), file, [SIGNER])
        tamper(file, lambda v, name=name: v[name].update(note="hello"))
        assert refused(file) == "json.unknown_key"
    write(values(), file, [SIGNER])
    tamper(file, lambda v: v["policy.json"].update(note="hello"))
    assert refused(file) == "policy.key"
    write(values(), file, [SIGNER])
    tamper(file, lambda v: v["manifest.json"].update(note="hello"), hashes=False)
    assert refused(file) == "evidence.manifest"


@pytest.mark.parametrize("name", ["manifest.json", "request.json", "ledger.json", "receipt-candidate-runs.json"])
def test_a_schema_that_this_version_does_not_know_is_refused(file, name):
    tamper(file, lambda v: v[name].update(schema="edgeproof.future/9"), hashes=name != "manifest.json")
    assert refused(file) in {"evidence.schema", "receipt.schema"}


# What the samples say


def test_a_decision_flipped_with_the_hashes_fixed_up_differs(tmp_path):
    strict = replace(POLICY, rules=(Rule("size", "<=", Decimal(100), "bytes"),))
    write(values(strict), tmp_path / "e.zip", [SIGNER])
    assert verify(tmp_path / "e.zip", keys=KEYS).state == "reject"

    def flip(found):
        found["decision.json"]["state"] = "accept"
        found["decision.json"]["checks"][0]["state"] = "pass"

    tamper(tmp_path / "e.zip", flip)
    assert codes(tmp_path / "e.zip") == {"evidence.recomputed"}
    found = verify(tmp_path / "e.zip", keys=KEYS)
    assert found.state == "reject"
    assert [d.what for d in found.differences] == ["checks[0].state", "state"]


def test_a_derived_number_that_is_not_that_of_the_samples_differs(file):
    tamper(file, lambda v: v["decision.json"]["candidate"]["latency_p95"].update(value=0.5))
    assert codes(file) == {"evidence.recomputed"}
    (difference,) = verify(file, keys=KEYS).differences
    assert (difference.member, difference.what) == ("decision.json", "candidate.latency_p95.value")
    assert difference.got == 0.5
    assert difference.expected == pytest.approx(1.27, abs=0.1)


def test_a_metric_that_is_not_that_of_the_raw_scores_differs(file):
    tamper(file, lambda v: v["decision.json"]["candidate"]["top1"].update(value=0.99))
    assert codes(file) == {"evidence.recomputed"}


def test_numbers_are_compared_to_nine_digits_and_no_further(file):
    value = verify(file, keys=KEYS).verdict.checks[1].got
    tamper(file, lambda v: v["decision.json"]["checks"][1].update(got=value * (1 + 5e-10)))
    assert {d.code for d in verify(file, keys=KEYS).differences} == set()
    tamper(file, lambda v: v["decision.json"]["checks"][1].update(got=value * (1 + 5e-9)))
    assert codes(file) == {"evidence.recomputed"}


def test_a_policy_swapped_after_measuring_differs(file):
    lenient = replace(POLICY, rules=(Rule("size", "<=", Decimal(10**9), "bytes"),))

    def swap(found):
        found["policy.json"] = lenient.to_json()

    tamper(file, swap, decide=True)
    assert {"evidence.frozen_policy", "evidence.ledger_policy", "evidence.other_policy"} <= codes(file)


def test_a_policy_swapped_in_the_request_too_breaks_the_ledger(file):
    lenient = replace(POLICY, rules=(Rule("size", "<=", Decimal(10**9), "bytes"),))

    def swap(found):
        found["policy.json"] = lenient.to_json()
        found["request.json"]["frozen"]["policy"] = lenient.to_json()
        for name in list(found):
            if name.startswith("receipt"):
                found[name]["policy"] = lenient.digest

    tamper(file, swap, decide=True)
    assert codes(file) == {"evidence.ledger", "evidence.ledger_policy"}


def test_the_receipt_of_another_model_differs(file):
    tamper(file, lambda v: receipt(v, "candidate").update(model=digest("another")), decide=True)
    assert codes(file) == {"evidence.other_model", "evidence.ledger_entry"}


def test_a_receipt_of_other_files_differs(file):
    tamper(file, lambda v: receipt(v, "candidate").update(files={"int8.onnx": digest("another")}), decide=True)
    assert codes(file) == {"evidence.other_files"}


@pytest.mark.parametrize(
    ("kind", "key", "code"),
    [
        ("runs", "environment", "evidence.other_environment"),
        ("quality", "evaluator", "evidence.other_evaluator"),
        ("quality", "dataset", "evidence.other_dataset"),
        ("quality", "policy", "evidence.other_policy"),
    ],
)
def test_a_run_measured_under_other_conditions_than_were_frozen_differs(file, kind, key, code):
    tamper(
        file, lambda v: [receipt(v, r, kind).update({key: digest("x")}) for r in ("baseline", "candidate")], decide=True
    )
    assert code in codes(file)


def test_slow_samples_removed_from_a_process_hold_and_differ_from_the_ledger(file):
    def drop(found):
        for run in receipt(found, "candidate")["runs"]:
            run["latency_ns"] = sorted(run["latency_ns"])[:-1]

    tamper(file, drop, decide=True)
    assert codes(file) == {"evidence.ledger_entry"}
    found = verify(file, keys=KEYS)
    assert found.state == "hold"
    assert "timed 19 inferences" in found.verdict.why


def test_a_slow_process_removed_holds_and_differs_from_the_ledger(file):
    def drop(found):
        found["receipt-candidate-runs.json"]["runs"].pop(3)

    tamper(file, drop, decide=True)
    assert codes(file) == {"evidence.ledger_entry"}
    assert verify(file, keys=KEYS).state == "hold"


def test_slow_processes_removed_on_every_side_hold_by_their_number(tmp_path):
    found = values()
    for role in ("baseline", "control", "candidate"):
        found[f"receipt-{role}-runs.json"]["runs"].pop(3)
    write(reentered(found), tmp_path / "e.zip", [SIGNER])
    result = verify(tmp_path / "e.zip", keys=KEYS)
    assert (result.state, result.differences) == ("hold", ())
    assert "9 runs of the 10" in result.verdict.why


def test_a_replayed_receipt_differs(tmp_path):
    # The candidate's samples are the control's, slowed down by nobody: the same model measured once.
    found = values()
    found["receipt-control-runs.json"]["runs"] = [
        {**r, "leg": "control"} for r in found["receipt-baseline-runs.json"]["runs"]
    ]
    write(reentered(found), tmp_path / "e.zip", [SIGNER])
    assert codes(tmp_path / "e.zip") == {"evidence.replayed"}


def test_one_process_handed_in_twice_differs(tmp_path):
    found = values()
    runs = found["receipt-candidate-runs.json"]["runs"]
    runs[9]["latency_ns"] = runs[0]["latency_ns"]
    write(reentered(found), tmp_path / "e.zip", [SIGNER])
    assert codes(tmp_path / "e.zip") == {"evidence.replayed"}


def test_a_receipt_of_an_earlier_run_of_the_same_model_differs_from_the_ledger(file):
    def replay(found):
        for run in receipt(found, "candidate")["runs"]:
            run["latency_ns"] = [t - 1000 for t in run["latency_ns"]]

    tamper(file, replay, decide=True)
    assert codes(file) == {"evidence.ledger_entry"}


def test_two_rounds_of_one_number_or_several_legs_in_one_receipt_are_refused(file):
    tamper(file, lambda v: receipt(v, "candidate")["runs"][1].update(round=0))
    assert refused(file) == "evidence.receipt"
    write(values(), file, [SIGNER])
    tamper(file, lambda v: receipt(v, "candidate")["runs"][1].update(leg="other"))
    assert refused(file) == "evidence.receipt"


def test_a_receipt_of_another_kind_than_its_name_says_is_refused(file):
    tamper(file, lambda v: receipt(v, "candidate").update(kind="pipeline"))
    assert refused(file) == "evidence.receipt"


@pytest.mark.parametrize("samples", [["right"], [0.5] * 300, [None], [[1, 2]], [2] * 300])
def test_scores_that_their_metric_cannot_read_are_refused(file, samples):
    tamper(file, lambda v: receipt(v, "candidate", "quality")["scores"][0].update(samples=samples))
    assert refused(file) == "evidence.scores"


def test_scores_that_would_cost_without_bound_are_refused(file):
    tamper(file, lambda v: receipt(v, "candidate", "quality")["scores"][0].update(samples=[1] * 200_001))
    assert refused(file) == "evidence.receipt"
    huge = [[[], [[1, 10**12]]]] * 5
    tamper(file, lambda v: receipt(v, "candidate", "quality")["scores"][0].update(samples=huge, metric="map"))
    assert refused(file) == "evidence.scores"


def test_a_policy_that_would_cost_without_bound_is_refused(file):
    rule = POLICY.to_json()["rules"][0]
    for rules in ([rule] * 9, [POLICY.to_json()["rules"][2]] * 65):
        tamper(file, lambda v, rules=rules: v["policy.json"].update(rules=rules))
        assert refused(file) == "evidence.value"


# The ledger


def test_a_ledger_line_removed_or_changed_differs(file):
    tamper(file, lambda v: v["ledger.json"]["lines"].pop(1))
    assert codes(file) == {"evidence.ledger"}
    write(values(), file, [SIGNER])
    tamper(file, lambda v: v["ledger.json"]["lines"][0].update(candidate="other"))
    assert codes(file) == {"evidence.ledger"}


def test_a_ledger_without_a_confirmation_says_which_is_missing(tmp_path):
    found = values()
    lines = found["ledger.json"]["lines"]
    kept = [v for v in lines if (v["kind"], v["candidate"]) != ("bench-confirm", "int8")]
    found["ledger.json"]["lines"] = rechained(found, kept)
    write(found, tmp_path / "e.zip", [SIGNER])
    assert codes(tmp_path / "e.zip") == {"evidence.ledger_entry"}
    (difference,) = verify(tmp_path / "e.zip", keys=KEYS).differences
    assert difference.what == "line of bench-confirm of int8"


def test_an_empty_ledger_says_of_every_receipt_that_it_is_missing(tmp_path):
    found = values()
    found["ledger.json"]["lines"] = []
    write(found, tmp_path / "e.zip", [SIGNER])
    result = verify(tmp_path / "e.zip", keys=KEYS)
    assert [d.code for d in result.differences] == ["evidence.ledger_entry"] * 5


def test_trying_again_until_it_is_accepted_holds(tmp_path):
    # The ledger shows an earlier confirmation of the same candidate; the policy declared one look.
    found = values()
    lines = found["ledger.json"]["lines"]
    earlier = {**lines[-2], "result": digest("the run before, which was no accept")}
    found["ledger.json"]["lines"] = rechained(found, [*lines[:2], earlier, *lines[2:]])
    write(found, tmp_path / "e.zip", [SIGNER])
    result = verify(tmp_path / "e.zip", keys=KEYS)
    assert (result.state, result.differences) == ("hold", ())
    assert "2 confirmations were made, and the policy declared 1" in result.verdict.why


def test_confirming_ever_new_candidates_holds_beyond_the_declared_looks(tmp_path):
    found = values()
    lines = found["ledger.json"]["lines"]
    other = {**lines[-2], "candidate": "int8-percentile", "result": digest("another candidate")}
    found["ledger.json"]["lines"] = rechained(found, [*lines, other])
    write(found, tmp_path / "e.zip", [SIGNER])
    assert verify(tmp_path / "e.zip", keys=KEYS).state == "hold"


def test_looks_that_were_declared_may_be_taken(tmp_path):
    found = values(replace(POLICY, looks=2))
    lines = found["ledger.json"]["lines"]
    other = {**lines[-2], "candidate": "int8-percentile", "result": digest("another candidate")}
    found["ledger.json"]["lines"] = rechained(found, [*lines, other])
    write(found, tmp_path / "e.zip", [SIGNER])
    assert verify(tmp_path / "e.zip", keys=KEYS).accepted


def test_samples_that_were_searched_on_cannot_confirm(tmp_path):
    found = values()
    data = found["dataset.json"]
    data["search"] = [*data["search"], data["confirm"][0]]
    parts = [data[p] for p in ("calibration", "search", "confirm")]
    found["request.json"]["frozen"]["split"] = digest_json(parts)
    write(reentered(found), tmp_path / "e.zip", [SIGNER])
    assert codes(tmp_path / "e.zip") == {"evidence.shared_samples"}


def test_indices_beyond_the_data_set_differ(tmp_path):
    found = values()
    found["dataset.json"]["count"] = 400
    write(found, tmp_path / "e.zip", [SIGNER])
    assert codes(tmp_path / "e.zip") == {"evidence.samples"}


def test_a_search_on_other_samples_than_declared_differs(tmp_path):
    found = values()
    lines = found["ledger.json"]["lines"]
    changed = [{**lines[0], "samples": lines[-1]["samples"]}, *lines[1:]]
    found["ledger.json"]["lines"] = rechained(found, changed)
    write(found, tmp_path / "e.zip", [SIGNER])
    assert codes(tmp_path / "e.zip") == {"evidence.shared_samples"}


def test_another_split_than_was_frozen_differs(file):
    tamper(file, lambda v: v["dataset.json"]["search"].pop())
    assert {"evidence.frozen_split"} <= codes(file)


@pytest.mark.parametrize(
    ("member", "key", "code"),
    [
        ("dataset.json", "digest", "evidence.frozen_dataset"),
        ("evaluator.json", "source", "evidence.frozen_evaluator"),
        ("environment.json", "cpu", "evidence.frozen_machine"),
        ("analysis-baseline.json", "digest", "evidence.frozen_model"),
        ("analysis-baseline.json", "files", "evidence.frozen_files"),
        ("request.json", "metric", "evidence.frozen_metric"),
    ],
)
def test_a_member_that_is_not_what_was_frozen_differs(file, member, key, code):
    def change(found):
        value = "top5" if key == "metric" else digest("x")
        if key == "files":
            found[member][key][0]["digest"] = value
        else:
            found[member][key] = value

    tamper(file, change)
    assert code in codes(file)


def test_a_machines_record_that_is_not_behind_its_digest_differs(file):
    tamper(file, lambda v: v["environment.json"].update(cores=64))
    assert {"evidence.environment", "evidence.frozen_machine"} <= codes(file)


@pytest.mark.parametrize("name", ["dataset.json", "evaluator.json", "environment.json"])
def test_a_run_without_what_its_digests_stand_for_differs(tmp_path, name):
    found = {k: v for k, v in values().items() if k != name}
    write(found, tmp_path / "e.zip", [SIGNER])
    assert "evidence.unbound" in codes(tmp_path / "e.zip")


# Model bytes


def test_a_model_file_that_is_not_the_sealed_one_differs(file, tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"another model")
    assert codes(file, models=[tmp_path / "m.onnx"]) == {"evidence.model_bytes"}


def test_a_damaged_time_or_order_of_times_is_not_sealed(tmp_path):
    members = {n: canonical_json(v) for n, v in values().items()}
    for timestamp, expires in [
        ("2026-12-01", None),
        ("2026-12-01T09:30:00+00:00", None),
        ("2026-12-01T09:30:00Z", "2026-12-01T09:30:00Z"),
        ("2026-12-01T9:30:00Z", None),
    ]:
        with pytest.raises(InputError) as e:
            seal_members(members, tmp_path / "e.zip", signers=[], timestamp=timestamp, expires=expires)
        assert e.value.code == "evidence.time"
    assert not (tmp_path / "e.zip").exists()


def test_a_member_without_a_place_or_too_large_is_not_sealed(tmp_path):
    for extra, code in [({"model.pkl": b"x"}, "evidence.member"), ({"card.md": b"x" * 2**21}, "evidence.too_large")]:
        with pytest.raises(InputError) as e:
            write(values(), tmp_path / "e.zip", **extra)
        assert e.value.code == code


def rechained(found, lines):
    return chained(
        found["request.json"]["frozen"],
        [{k: v for k, v in line.items() if k not in ("n", "previous")} for line in lines],
    )
