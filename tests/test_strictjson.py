import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproof.errors import InputError
from edgeproof.strictjson import canonical, keys, loads


def refused(data: bytes, **options) -> str:
    with pytest.raises(InputError) as e:
        loads(data, "member", **options)
    assert e.value.subject == "member"
    return e.value.code


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-1e15, 1e15, allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_what_is_written_canonically_reads_back_equal(value):
    assert loads(canonical(value), "member", canonical=True) == value


@given(JSON)
def test_json_of_any_spacing_reads_as_the_standard_library_reads_it(value):
    text = json.dumps(value, indent=2).encode()
    assert loads(text, "member") == json.loads(text)


@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:\\u0dD8eE+-.1NaInfty ', max_size=80).map(str.encode))
def test_any_bytes_are_read_or_refused_with_a_json_code(data):
    try:
        assert loads(canonical(loads(data, "member")), "member", canonical=True) == loads(data, "member")
    except InputError as error:
        code = error.code
    else:
        return
    assert code.startswith("json.")


def test_a_key_twice_is_refused_at_any_depth():
    assert refused(b'{"a":1,"b":2,"a":3}') == "json.duplicate_key"
    assert refused(b'[{"x":{"a":1,"\\u0061":1}}]') == "json.duplicate_key"


@pytest.mark.parametrize("text", [b"NaN", b"[Infinity]", b'{"x":-Infinity}', b"1e400", b"[-1e400]"])
def test_numbers_that_are_not_finite_are_refused(text):
    assert refused(text) == "json.not_finite"


@pytest.mark.parametrize("text", [b"9007199254740992", b"-9007199254740992", b"[1" + b"0" * 5000 + b"]"])
def test_an_integer_that_a_double_cannot_hold_exactly_is_refused(text):
    assert refused(text) == "json.integer"


def test_the_largest_exact_integer_is_read():
    assert loads(b"[9007199254740991,-9007199254740991]", "member") == [2**53 - 1, 1 - 2**53]


def test_nesting_beyond_the_limit_is_refused_whatever_strings_hold():
    assert loads(b"[" * 64 + b"]" * 64, "member")
    assert refused(b"[" * 65 + b"]" * 65) == "json.too_deep"
    assert refused(b'{"a":' * 65 + b"1" + b"}" * 65) == "json.too_deep"
    assert refused(b"[" * 500_000) == "json.too_deep"
    assert loads(b'["' + b"[" * 99 + b'\\"[[", "\\\\", []]', "member", depth=2)


def test_a_text_longer_than_the_limit_is_refused_before_it_is_parsed():
    assert refused(b"[0]", limit_bytes=2) == "json.too_large"


def test_a_text_of_very_many_containers_is_refused_before_it_is_parsed():
    assert refused(b"[" + b"[]," * 1_000_000 + b"[]]") == "json.too_many"


def test_a_text_of_escaped_quotes_costs_time_in_proportion_to_its_length():
    # At this length a reader whose time grows with the square would need hours.
    assert loads(b'"' + b'\\"' * 2_000_000 + b'"', "member")
    assert refused(b'["' + b'\\"' * 2_000_000) == "json.syntax"


@pytest.mark.parametrize("text", [b'"\xff"', b'{"a":"\xc3"}', b'"\xed\xa0\x80"', b'"\xc0\xaf"'])
def test_bytes_that_are_no_utf8_are_refused(text):
    assert refused(text) == "json.not_utf8"


@pytest.mark.parametrize("text", [b'"\\ud800"', b'["\\uDC00"]', b'{"\\ud800":1}', b'"\\ud800\\u0041"'])
def test_half_of_a_surrogate_pair_is_refused(text):
    assert refused(text) == "json.surrogate"


def test_a_whole_surrogate_pair_and_an_escaped_backslash_are_read():
    assert loads(b'["\\ud83d\\ude00","\\\\ud800"]', "member") == ["\U0001f600", "\\ud800"]


@pytest.mark.parametrize("text", [b"{} {}", b"1 2", b"01", b"[]x", b"[]\x00"])
def test_anything_after_the_value_is_refused(text):
    assert refused(text) == "json.trailing"


@pytest.mark.parametrize("text", [b"", b"{", b"[1,]", b"{'a':1}", b"+1", b"\xef\xbb\xbf[]", b'"\n"', b"nan"])
def test_what_is_not_json_is_refused(text):
    assert refused(text) == "json.syntax"


@pytest.mark.parametrize("text", [b'{"a": 1}', b'{"b":1,"a":2}', b"[1.0]", b'"\\u0041"', b"[-0]", b"[1]\n"])
def test_a_text_that_is_not_in_its_canonical_form_is_refused_where_that_is_asked(text):
    loads(text, "member")
    assert refused(text, canonical=True) == "json.not_canonical"


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**53, "\ud800", {1: 2}, object()])
def test_a_value_without_canonical_form_is_not_written(value):
    with pytest.raises(InputError) as e:
        canonical([value])
    assert e.value.code == "json.not_canonical"


def test_a_closed_set_of_keys_names_what_is_missing_and_what_is_unknown():
    value = {"a": 1, "b": 2}
    assert keys(value, ["a"], ["b", "c"]) is value
    with pytest.raises(InputError) as e:
        keys(value, ["a", "digest"], ["b"], "receipt")
    assert (e.value.code, e.value.subject) == ("json.missing_key", "receipt")
    assert "'digest'" in e.value.problem
    with pytest.raises(InputError) as e:
        keys({"digset": 1}, [], ["digest"])
    assert (e.value.code, e.value.hint) == ("json.unknown_key", "did you mean 'digest'?")
    with pytest.raises(InputError) as e:
        keys([1], [])
    assert e.value.code == "json.not_object"


@pytest.mark.parametrize("value", [2.74476222383e17, -(2.0**60), 9.9e20])
def test_a_large_double_that_is_written_without_a_point_is_read_back(value):
    """RFC 8785, section 3.2.2.3, after ECMAScript: numbers below 1e21 have no exponent."""
    text = canonical(value)
    assert b"." not in text
    assert b"e" not in text
    assert loads(text, "x") == value
    assert isinstance(loads(text, "x"), float)
