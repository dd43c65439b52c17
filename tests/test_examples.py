import importlib.util
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_example_in_python_runs_to_a_verdict(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("from_python", EXAMPLES / "from_python.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = module.main(tmp_path, runs=3, inferences=5)
    assert result["state"] in ("accept", "reject", "hold")
    # 16·27·32² + 32·144·16² + 64·288·8² + 64·10 multiply-accumulates, by hand.
    shown = capsys.readouterr()
    assert shown.out.startswith("2802304 multiply-accumulates")
    # The plan comes first, then a line for every candidate that is tried.
    assert "policy      example: quality drop <= 0.01" in shown.err
    progress = [line for line in shown.err.splitlines() if line.startswith("[")]
    assert all(any(f"] {row['name']}" in line for line in progress) for row in result["candidates"])
