"""Names of targets: this machine's runtimes, and devices of the catalogue."""

import pytest

from edgeproof import hardware, runtimes
from edgeproof.errors import InputError, UnsupportedError


def test_a_device_of_the_catalogue_is_a_target_to_build_for():
    target = runtimes.find_target("orin-nx:gpu", {"cuda_graph": False}, run=False)
    assert (target.backend, target.device) == ("tensorrt", "gpu")
    assert target.hardware == hardware.find("orin-nx")
    assert target.memory_bytes == hardware.find("orin-nx").memory_bytes
    assert target.settings == {"cuda_graph": False}


def test_nothing_is_measured_here_in_the_place_of_another_device():
    with pytest.raises(UnsupportedError, match=r"(?s)this machine is not a Jetson Orin NX .*target\.not_here"):
        runtimes.find_target("orin-nx", {})


def test_a_part_that_a_device_lacks_is_refused_with_the_reason():
    with pytest.raises(UnsupportedError, match="has no DLA"):
        runtimes.find_target("orin-nano:dla0", {}, run=False)


def test_a_misspelt_device_is_named_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'orin-n"):
        runtimes.find_target("orin-nyx", {})


def test_ranges_are_measured_on_this_processor_for_a_device_elsewhere():
    planned = runtimes.find_target("orin-nx:gpu", {}, run=False)
    assert runtimes.observer(planned).name == "onnxruntime:cpu"
    here = runtimes.find_target("reference:cpu", {})
    assert runtimes.observer(here) == here
