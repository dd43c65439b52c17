import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import edgeproof
from edgeproof.errors import InputError
from edgeproof.policy import BUILT_IN, Policy, Rule, default_policy, load_policy, policy_from

METRICS = {
    "latency_p50": "ms",
    "latency_p95": "ms",
    "throughput": "1/s",
    "size": "bytes",
    "power": "W",
    "temperature": "°C",
}
SCHEMA = json.loads((Path(edgeproof.__file__).parent / "policy.schema.json").read_text())
RULE = "{metric: latency_p95, op: '<=', limit: 80}"

GOOD = {
    "one rule": f"rules: [{RULE}]",
    "all keys": f"name: edge\nalpha: 0.01\nruns: 20\ninferences: 500\nlooks: 3\nrules: [{RULE}]",
    "unit given": "rules: [{metric: latency_p95, op: '<=', limit: 80, unit: ms}]",
    "quality drop": "rules: [{metric: quality, op: '<=', limit: 0.01, relative_to: baseline}]",
    "drop said": "rules: [{metric: quality, op: '<=', limit: 0.01, unit: drop, relative_to: baseline}]",
    "ratio": "rules: [{metric: size, op: '<=', limit: 0.5, unit: ratio, relative_to: baseline}]",
    "quality absolute": "rules: [{metric: quality, op: '>=', limit: .9}]",
    "negative": "rules: [{metric: quality, op: '<=', limit: -0.01, relative_to: baseline}]",
    "quoted": "alpha: '0.05'\nrules: [{metric: size, op: '<=', limit: '1e6'}]",
    "json": '{"rules": [{"metric": "size", "op": "<=", "limit": 1.5e+6}]}',
}
BAD = {
    "empty": "",
    "no mapping": "- 1",
    "no rules": "name: x",
    "empty rules": "rules: []",
    "rules no list": "rules: {a: 1}",
    "rule no mapping": "rules: [fast]",
    "key typo": f"rulez: [{RULE}]",
    "rule key typo": "rules: [{metric: size, op: '<=', limit: 1, limits: 2}]",
    "no limit": "rules: [{metric: size, op: '<='}]",
    "no op": "rules: [{metric: size, limit: 1}]",
    "op": "rules: [{metric: size, op: '<', limit: 1}]",
    "limit text": "rules: [{metric: size, op: '<=', limit: 1%}]",
    "limit yes": "rules: [{metric: size, op: '<=', limit: yes}]",
    "limit none": "rules: [{metric: size, op: '<=', limit: }]",
    "limit list": "rules: [{metric: size, op: '<=', limit: [1]}]",
    "relative": "rules: [{metric: size, op: '<=', limit: 1, relative_to: original}]",
    "relative unit": "rules: [{metric: size, op: '<=', limit: 1, unit: bytes, relative_to: baseline}]",
    "drop alone": "rules: [{metric: quality, op: '<=', limit: 0.01, unit: drop}]",
    "alpha zero": f"alpha: 0\nrules: [{RULE}]",
    "alpha half": f"alpha: 0.5\nrules: [{RULE}]",
    "runs one": f"runs: 1\nrules: [{RULE}]",
    "runs part": f"runs: 2.5\nrules: [{RULE}]",
    "looks zero": f"looks: 0\nrules: [{RULE}]",
    "inferences negative": f"inferences: -1\nrules: [{RULE}]",
}


def load(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return load_policy(path, METRICS)


def accepted_by_schema(text: str) -> bool:
    return bool(jsonschema.Draft202012Validator(SCHEMA).is_valid(yaml.safe_load(text)))


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", GOOD)
def test_what_is_a_policy_is_one_by_the_schema_too(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, GOOD[name]).rules
    assert accepted_by_schema(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_policy_is_none_by_the_schema_either(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, BAD[name])
    assert caught.value.hint
    assert not accepted_by_schema(BAD[name])


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_policies_satisfy_the_schema(name: str) -> None:
    text = (Path(edgeproof.__file__).parent / "policies" / f"{name}.yaml").read_text()
    assert accepted_by_schema(text)
    assert load_policy(name, METRICS).name == name


def test_the_default_policy_is_what_the_documentation_says() -> None:
    assert default_policy() == Policy(
        "default",
        (
            Rule("quality", "<=", Decimal("0.01"), "drop", "baseline"),
            Rule("latency_p95", "<=", Decimal(80), "ms"),
            Rule("throughput", ">=", Decimal(20), "1/s"),
        ),
        Decimal("0.05"),
        10,
        200,
        2,
    )


def test_the_power_policy_adds_eight_watts_and_seventy_five_degrees() -> None:
    assert [str(r) for r in load_policy("default-power", METRICS).rules[3:]] == ["power <= 8 W", "temperature <= 75 °C"]


def test_limits_stay_the_decimals_that_were_written(tmp_path: Path) -> None:
    policy = load(tmp_path, "rules: [{metric: quality, op: '<=', limit: 0.10, relative_to: baseline}]")
    assert policy.rules[0].limit == Decimal("0.1")
    assert str(policy.rules[0].limit) == "0.10"


def test_a_policy_survives_json() -> None:
    policy = load_policy("default-power", METRICS)
    assert policy_from(policy.to_json(), "x", METRICS) == policy


def test_any_change_of_a_policy_changes_its_digest(tmp_path: Path) -> None:
    texts = [GOOD["one rule"], GOOD["all keys"], GOOD["one rule"].replace("80", "81"), "looks: 2\n" + GOOD["one rule"]]
    assert len({load(tmp_path, t).digest for t in texts}) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "rules: [{metric: latncy_p95, op: '<=', limit: 80}]",
            "unknown metric 'latncy_p95'\n  hint: did you mean 'latency_p95'?",
        ),
        ("rules: [{metric: qualty, op: '<=', limit: 80}]", "unknown metric 'qualty'\n  hint: did you mean 'quality'?"),
        ("rules: [{metric: size, op: '<=', limt: 80}]", "unknown key 'limt'\n  hint: did you mean 'limit'?"),
        (f"infrences: 3\nrules: [{RULE}]", "unknown key 'infrences'\n  hint: did you mean 'inferences'?"),
        (
            "rules: [{metric: latency_p95, op: '<=', limit: 0.08, unit: s}]",
            "unit is 's'; latency_p95 is measured in 'ms'",
        ),
        (f"runs: 3\nruns: 5\nrules: [{RULE}]", "key 'runs' is written twice (line 2)"),
        ("a: &a [1]\nb: *a\nrules: *a", "uses a YAML alias (line 1)"),
        ("rules: [", "is not valid YAML"),
        (
            "rules: [{metric: size, op: '<=', limit: 1%}]",
            "limit: is '1%'; expected a number\n  hint: write it as 0.01, not 1%",
        ),
        ("rules: [{metric: size, op: '<=', limit: .nan}]", "limit: is '.nan'; expected a number"),
    ],
)
def test_a_mistake_in_a_policy_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "policy.yaml"))


def test_the_rule_at_fault_is_numbered(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rule 2: op is '=='"):
        load(tmp_path, f"rules: [{RULE}, {{metric: size, op: '==', limit: 1}}]")


def test_a_policy_that_is_not_there_suggests_a_built_in_one() -> None:
    with pytest.raises(InputError, match="did you mean 'default-power'") as caught:
        load_policy("default_power", METRICS)
    assert caught.value.code == "policy.missing"


def test_a_policy_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        load_policy(path, METRICS)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, "rules: " + "[" * 5000)
    assert caught.value.code == "policy.not_yaml"


@pytest.mark.parametrize("value", [None, [], {"rules": None}, {"rules": "x"}])
def test_json_that_is_no_policy_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="has no list of rules"):
        policy_from(value, "x", METRICS)


DOCUMENT = Path(__file__).parents[1] / "docs" / "policy.md"


def test_every_example_in_the_documentation_is_a_policy(tmp_path: Path) -> None:
    from edgeproof.evaluate import metric_units

    examples = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(examples) == 3
    for i, text in enumerate(examples):
        path = tmp_path / f"{i}.yaml"
        path.write_text(text)
        assert load_policy(path, metric_units()).rules
        assert accepted_by_schema(text)
    assert load_policy(tmp_path / "0.yaml", METRICS).rules == default_policy().rules


def test_every_key_is_documented() -> None:
    text = DOCUMENT.read_text()
    rule = SCHEMA["properties"]["rules"]["items"]["properties"]
    for key in (*SCHEMA["properties"], *rule):
        assert f"| `{key}` |" in text
    for name in BUILT_IN:
        assert f"`{name}`" in text


def test_a_count_too_long_to_read_is_refused() -> None:
    with pytest.raises(InputError, match="expected a whole number of at least 2"):
        policy_from({"runs": "9" * 5000, "rules": [{"metric": "size", "op": "<=", "limit": "1"}]}, "p", METRICS)
