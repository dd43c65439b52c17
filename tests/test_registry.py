import pytest

from edgeproof import registry
from edgeproof.errors import InputError


def test_a_files_name_is_its_registration():
    assert "onnxruntime" in registry.names("backends")
    assert registry.load("backends", "onnxruntime").__name__ == "OnnxRuntime"


def test_private_files_are_no_plug_ins():
    assert not [n for n in registry.names("metrics") if n.startswith("_")]
    with pytest.raises(InputError):
        registry.load("metrics", "_runs")


@pytest.mark.parametrize("name", ["../errors", "onnxruntime.py", "", "nope"])
def test_an_unknown_name_is_refused_with_what_there_is(name):
    with pytest.raises(InputError, match="is not one of the backends"):
        registry.load("backends", name)


def test_a_near_miss_is_named():
    with pytest.raises(InputError, match="did you mean 'onnxruntime'"):
        registry.load("backends", "onxruntime")
