from edgeproof.errors import EdgeproofError, InputError, InternalError, TrustError, UnsupportedError, did_you_mean


def test_an_error_reads_as_subject_problem_and_hint():
    error = InputError("quant.scale", "conv_12.weight", "scale is 0.0 for 3 of 64 channels; expected > 0", "drop them")
    assert str(error) == (
        "conv_12.weight: scale is 0.0 for 3 of 64 channels; expected > 0\n  hint: drop them  [quant.scale]"
    )


def test_an_error_without_a_hint_is_one_line():
    assert str(InputError("a.b", "x", "is wrong")) == "x: is wrong  [a.b]"


def test_exit_codes_are_those_of_the_manual():
    codes = [c.exit_code for c in (InputError, UnsupportedError, TrustError, InternalError)]
    assert codes == [2, 3, 4, 70]


def test_json_carries_every_part():
    value = TrustError("t.c", "s", "p", "h").to_json()
    assert value == {"code": "t.c", "subject": "s", "problem": "p", "hint": "h", "exit_code": 4}


def test_a_near_miss_is_named_and_a_far_one_lists_what_there_is():
    assert did_you_mean("latncy_p95", ["latency_p95", "size"]) == "did you mean 'latency_p95'?"
    assert did_you_mean("zzz", ["b", "a"]) == "known: a, b"
    assert did_you_mean("zzz", []) == "there is none"


def test_every_error_is_an_edgeproof_error():
    assert all(issubclass(c, EdgeproofError) for c in (InputError, UnsupportedError, TrustError, InternalError))
