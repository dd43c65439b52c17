"""The rules of the house: layers, lean imports, and nothing undocumented."""

import subprocess
import sys
from pathlib import Path

import pytest

from edgeproof import registry
from edgeproof.cli import COMMANDS, main, module_of

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "onnxruntime", "onnx", "onnx_ir", "PIL", "numpy", "rich", "yaml", "pycocotools")


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(' '.join(m for m in sys.modules if '.' not in m))"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_importing_edgeproof_loads_nothing_heavy():
    assert not loaded_by("import edgeproof") & set(HEAVY)


def test_the_overview_loads_nothing_heavy():
    assert not loaded_by("from edgeproof.cli import main; main(['--help'])") & set(HEAVY)


@pytest.mark.parametrize("name", [n for n, _ in COMMANDS])
def test_a_commands_help_loads_no_model_library(name):
    code = f"from edgeproof.cli import main; assert main(['{name}', '--help']) == 0"
    assert not loaded_by(code) & {"onnxruntime", "onnx", "onnx_ir", "PIL", "rich", "pycocotools"}


@pytest.mark.parametrize("name", [n for n, _ in COMMANDS])
def test_every_command_is_a_file_with_a_docstring_and_stands_in_the_readme_or_docs(name):
    assert module_of(name).__doc__
    text = "".join(p.read_text(encoding="utf-8") for p in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    assert f"edgeproof {name}" in text


def test_every_command_file_is_in_the_list():
    files = {p.stem for p in (ROOT / "src/edgeproof/cli").glob("*.py")} - {"__init__", "show"}
    assert {f for f in files if not f.startswith("_")} == {n.replace("-", "_") for n, _ in COMMANDS}


@pytest.mark.parametrize("kind", ["passes", "backends", "metrics", "data", "telemetry", "search"])
def test_every_plug_in_says_what_it_is(kind):
    for name in registry.names(kind):
        implementation = registry.load(kind, name)
        assert sys.modules[implementation.__module__].__doc__, name
        assert implementation.__doc__, name


@pytest.mark.parametrize("name", registry.names("passes"))
def test_every_pass_is_documented(name):
    assert f"`{name}`" in (ROOT / "docs/passes.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", registry.names("metrics"))
def test_every_metric_is_documented(name):
    text = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs").glob("*.md"))
    assert f"`{name}`" in text


@pytest.mark.parametrize("arguments", [["nope"], ["optimise"], ["inspect"], ["gate", "--nope"]])
def test_a_wrong_command_line_ends_with_2(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err


def test_a_mistyped_command_is_guessed(capsys):
    main(["optimise"])
    assert "did you mean 'optimize'?" in capsys.readouterr().err
