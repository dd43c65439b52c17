"""The supervisor with real models in real processes."""

from __future__ import annotations

import json
import os
import resource
import signal
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from onnx import TensorProto, helper
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError

from device_kit import NOW, QUICK, Maker, model, put
from edgeproof.archive import open_archive, write_archive
from edgeproof.bundle.keys import load_public
from edgeproof.device.load import load
from edgeproof.device.receipts import PAYLOAD_TYPE, listed
from edgeproof.device.sensors import Sensors
from edgeproof.device.serving import Serving
from edgeproof.device.slots import recover
from edgeproof.device.supervisor import Supervisor
from edgeproof.device.trial import boot, mark_good
from edgeproof.digest import digest_file
from edgeproof.errors import EdgeproofError, InputError, TrustError, UnsupportedError
from edgeproof.manifest import HardLimit, Objective, Rollback, Sla
from edgeproof.telemetry.thermal import Thermal

ONES = {"x": np.ones((1, 4), np.float32)}


@pytest.fixture
def maker(tmp_path):
    return Maker(tmp_path / "maker")


@pytest.fixture
def home(maker, tmp_path):
    """Version 1 was kept and runs; it negates."""
    made = maker.device(tmp_path / "device")
    put(made, maker.bundle(1))
    return made


@pytest.fixture
def run(home):
    """Start supervisors; all are closed in the end."""
    started = []

    def start(**settings) -> Supervisor:
        settings.setdefault("sensors", Sensors({}))
        made = Supervisor(home, threads=1, **settings)
        started.append(made)
        made.start()
        return made

    yield start
    for made in started:
        made.close()


def receipt(home, number: int = -1) -> dict:
    """The payload of a receipt, verified with securesystemslib alone."""
    envelope = Envelope.from_dict(json.loads(listed(home)[number].read_bytes()))
    envelope.verify([load_public(home.key.with_suffix(".pub"))], 1)
    assert envelope.payload_type == PAYLOAD_TYPE
    return json.loads(envelope.payload)


def ask(supervisor: Supervisor, count: int = 1):
    for _ in range(count):
        answer = supervisor.infer(ONES)
    return answer


def test_the_model_of_the_current_slot_answers(run):
    assert ask(run()).outputs["y"].tolist() == [[-1.0] * 4]


def test_a_bundle_inside_its_sla_is_kept_by_itself_with_a_signed_receipt(home, maker, run):
    put(home, maker.bundle(2, model("Abs")), keep=False)
    supervisor = run()
    ask(supervisor, 5)
    assert home.state().b.phase == "trial"
    ask(supervisor)
    assert (home.state().b.phase, home.state().trial) == ("good", None)
    told = receipt(home)
    assert (told["event"], told["decision"]["code"], told["bundle_version"]) == ("kept", "sla.kept", 2)
    assert told["bundle"] == digest_file(home.bundle("b"))
    assert len(told["watched"]["samples"]["latency"]) == told["watched"]["inferences"] == 6
    assert told["providers"] == ["CPUExecutionProvider"]


def test_receipts_are_a_chain_and_a_changed_one_does_not_verify(home, maker, run):
    for version in (2, 3):
        put(home, maker.bundle(version), keep=False)
        ask(run(), 6)
    first, second = listed(home)
    assert receipt(home, 0)["previous"] == ""
    assert receipt(home, 1)["previous"] == digest_file(first)
    changed = json.loads(second.read_bytes())
    changed["payload"] = json.loads(first.read_bytes())["payload"]
    with pytest.raises(VerificationError):
        Envelope.from_dict(changed).verify([load_public(home.key.with_suffix(".pub"))], 1)


def test_a_nan_output_on_trial_goes_back_at_once_and_the_bundle_is_in_quarantine(home, maker, run):
    bundle = maker.bundle(2, model("Log", -1.0))
    put(home, bundle, keep=False)
    supervisor = run()
    assert np.isnan(ask(supervisor).outputs["y"]).all()
    state = home.state()
    assert (state.current, state.b.phase) == ("a", "bad")
    assert state.quarantined(digest_file(bundle)).reason.startswith("sla.hard: nan_outputs")
    assert ask(supervisor).outputs["y"].tolist() == [[-1.0] * 4]
    assert (receipt(home)["event"], receipt(home)["decision"]["code"]) == ("left", "sla.hard")


def test_while_the_disk_refuses_a_rollback_the_bad_bundle_does_not_run_and_the_rollback_follows(home, maker, run):
    put(home, maker.bundle(2, model("Log", -1.0)), keep=False)
    supervisor = run()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        ask(supervisor)
        supervisor.tick()
        assert home.state().b.phase == "trial"
        assert (supervisor.health()["serving"], "cannot be left" in supervisor.health()["alarm"]) == (False, True)
        with pytest.raises(UnsupportedError):
            ask(supervisor)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    supervisor.tick()
    assert home.state().b.phase == "bad"
    assert ask(supervisor).outputs["y"].tolist() == [[-1.0] * 4]


def test_an_input_with_a_nan_is_refused_before_it_is_held_against_the_model(home, maker, run):
    put(home, maker.bundle(2), keep=False)
    with pytest.raises(EdgeproofError) as caught:
        run().infer({"x": np.full((1, 4), np.nan, np.float32)})
    assert caught.value.code == "serve.input_nan"


def test_an_infinite_input_is_refused_before_it_is_held_against_the_model(home, maker, run):
    put(home, maker.bundle(2), keep=False)
    supervisor = run()
    with pytest.raises(EdgeproofError) as caught:
        supervisor.infer({"x": np.full((1, 4), np.inf, np.float32)})
    assert caught.value.code == "serve.input_infinite"
    assert supervisor.health()["phase"] == "trial"
    assert home.state().b.phase == "trial"


def test_a_crash_on_trial_goes_back_at_once(home, maker, run):
    put(home, maker.bundle(2), keep=False)
    supervisor = run()
    os.kill(supervisor.health()["pid"], signal.SIGKILL)
    with pytest.raises(UnsupportedError) as caught:
        ask(supervisor)
    assert caught.value.code == "serve.crashed"
    assert home.state().b.reason.startswith("sla.hard: crashes")
    assert supervisor.health()["bundle_version"] == 1
    ask(supervisor)


def test_a_kept_bundle_is_started_again_after_a_crash_but_not_without_end(home, maker, run):
    put(home, maker.bundle(2))
    supervisor = run(restarts=2)
    for _ in range(2):
        os.kill(supervisor.health()["pid"], signal.SIGKILL)
        with pytest.raises(UnsupportedError):
            ask(supervisor)
        assert supervisor.health()["bundle_version"] == 2
        ask(supervisor)
    os.kill(supervisor.health()["pid"], signal.SIGKILL)
    with pytest.raises(UnsupportedError):
        ask(supervisor)
    assert supervisor.health()["bundle_version"] == 1
    assert home.state().b.reason.startswith("device.crashes")


def test_a_process_that_does_not_answer_counts_as_crashed(home, maker, run):
    put(home, maker.bundle(2), keep=False)
    supervisor = run(timeout_s=0.2)
    os.kill(supervisor.health()["pid"], signal.SIGSTOP)
    with pytest.raises(UnsupportedError) as caught:
        ask(supervisor)
    assert caught.value.code == "serve.crashed"
    assert home.state().b.phase == "bad"


SLOW = Sla((Objective("latency", "p95", "<=", Decimal("0.000001"), window=2, k=2, n=3),), ())


def test_a_bundle_outside_its_sla_goes_back_after_k_windows(home, maker, run):
    put(home, maker.bundle(2, sla=SLOW), keep=False)
    supervisor = run()
    ask(supervisor, 3)
    assert home.state().b.phase == "trial"
    ask(supervisor)
    assert home.state().b.reason.startswith("sla.broken: p95 of latency")
    assert home.state().current == "a"


def test_a_kept_bundle_that_breaks_its_sla_is_left_for_the_other_slot(home, maker, run):
    put(home, maker.bundle(2, sla=SLOW))
    ask(run(), 4)
    assert (home.state().current, home.state().b.phase, home.state().quarantine) == ("a", "bad", ())


def test_a_kept_bundle_without_another_runs_on_with_an_alarm(maker, tmp_path):
    home = maker.device(tmp_path / "alone")
    put(home, maker.bundle(1, sla=SLOW))
    supervisor = Supervisor(home, threads=1, sensors=Sensors({}))
    supervisor.start()
    try:
        ask(supervisor, 4)
        assert supervisor.health()["alarm"].startswith("sla.broken")
        assert home.state().a.phase == "good"
        ask(supervisor)
    finally:
        supervisor.close()


def test_a_critical_temperature_goes_back_at_once_and_a_missing_one_keeps_nothing(home, maker, run, tmp_path):
    zone = tmp_path / "thermal" / "thermal_zone0"
    zone.mkdir(parents=True)
    hot = Sla(QUICK.objectives, (HardLimit("temperature", "<=", Decimal(90)),))
    put(home, maker.bundle(2, sla=hot), keep=False)
    silent = run(sensors=Sensors({"thermal": Thermal(tmp_path / "thermal")}))
    ask(silent, 20)
    silent.tick()
    assert home.state().b.phase == "trial"
    assert "nothing measures temperature" in silent.health()["trial"]["why"]
    silent.close()
    (zone / "temp").write_text("89000", encoding="ascii")
    supervisor = run(sensors=Sensors({"thermal": Thermal(tmp_path / "thermal")}))
    supervisor.tick()
    (zone / "temp").write_text("91000", encoding="ascii")
    assert home.state().b.phase == "trial"
    supervisor.tick()
    assert home.state().b.reason == "sla.hard: temperature <= 90 does not hold: 91"
    assert receipt(home)["watched"]["samples"]["temperature"] == [89.0, 91.0]


def test_by_hand_the_last_word_is_mark_goods(home, maker, run):
    put(home, maker.bundle(2), keep=False)
    supervisor = run(by_hand=True, save_s=1e9)
    ask(supervisor, 5)
    assert home.state().trial.decision == "go_on"
    ask(supervisor)
    assert (home.state().b.phase, home.state().trial.decision) == ("trial", "commit")
    mark_good(home, NOW)
    supervisor.tick()
    assert supervisor.health()["phase"] == "good"


def test_what_is_no_longer_so_cannot_be_marked_good(home, maker, run):
    tight = Sla((Objective("throughput", "min", ">=", Decimal("0.0001"), window=1, k=9, n=9),), ())
    put(home, maker.bundle(2, sla=tight, rollback=Rollback(600, 3, 9)), keep=False)
    supervisor = run(by_hand=True, save_s=1e9)
    ask(supervisor, 9)
    assert home.state().trial.decision == "commit"
    with pytest.raises(EdgeproofError):
        supervisor.infer({"x": np.ones((1, 4), np.float32).astype(np.float64)})
    assert home.state().trial.decision == "commit"  # a caller's mistake says nothing about the bundle
    boot(home, NOW)  # somebody else's restart
    with pytest.raises(InputError):
        mark_good(home, NOW)


def test_what_others_do_to_the_slots_is_followed(home, maker, run):
    supervisor = run()
    put(home, maker.bundle(2, model("Abs")), keep=False)
    supervisor.tick()
    assert ask(supervisor).outputs["y"].tolist() == [[1.0] * 4]


def test_a_model_that_the_runtime_refuses_is_left_and_never_taken_again(home, maker, run):
    put(home, maker.bundle(2, b"no model at all"), keep=False)
    supervisor = run()
    assert supervisor.health()["bundle_version"] == 1
    assert home.state().b.reason.startswith("device.refused")
    assert len(home.state().quarantine) == 1


def test_a_golden_bundle_that_cannot_be_loaded_stops_and_is_not_tried_without_end(maker, tmp_path):
    home = maker.device(tmp_path / "alone", golden=maker.bundle(1, b"no model at all"))
    supervisor = Supervisor(home, threads=1, sensors=Sensors({}))
    supervisor.start()
    assert not supervisor.health()["serving"]
    receipts = listed(home)
    supervisor.tick()
    supervisor.tick()
    assert listed(home) == receipts
    assert "device.refused" in supervisor.health()["why"]
    put(home, maker.bundle(2), keep=False)
    supervisor.tick()
    assert ask(supervisor).outputs["y"].tolist() == [[-1.0] * 4]
    supervisor.close()


def test_a_format_that_is_not_served_here_is_not_the_bundles_fault(home, maker, run):
    put(home, maker.bundle(2, format="tensorrt"), keep=False)
    with pytest.raises(UnsupportedError) as caught:
        run()
    assert caught.value.code == "device.format"
    assert home.state().b.phase == "trial"


def test_undecided_at_the_deadline_goes_back_while_serving(home, maker, run):
    put(home, maker.bundle(2, rollback=Rollback(trial_seconds=1, boots=3, samples=10**6)), keep=False)
    home.change(lambda s: replace(s, trial=replace(s.trial, served_s=0.9999)))
    supervisor = run()
    ask(supervisor)
    while home.state().b.phase == "trial":
        supervisor.tick()
    assert home.state().b.reason.startswith("sla.undecided")
    assert not home.state().quarantine


def swapped(maker, home, name: str) -> None:
    """Another sound and signed bundle in the place of a slot's, behind the state's back."""
    home.bundle(name).write_bytes(maker.bundle(99, model("Abs")).read_bytes())


def test_a_bundle_that_is_swapped_after_the_check_is_not_served(home, maker):
    boot = recover(home, NOW)  # hashed here …
    swapped(maker, home, "a")  # … and exchanged before it is loaded
    with pytest.raises(TrustError) as caught:
        Serving(boot.path, boot.slot, 1)
    assert caught.value.code == "device.swapped"


def test_a_model_that_is_exchanged_under_its_signed_manifest_is_not_served(home):
    boot = recover(home, NOW)
    with open_archive(home.bundle("a"), allowed=lambda _: 1 << 30, max_total=1 << 30) as archive:
        members = {name: archive.read(name) for name in archive.names}
    members["model/model.onnx"] = model("Abs")  # as long as the one that was signed, in a sound archive
    write_archive(home.bundle("a"), members)
    with pytest.raises(TrustError) as caught:
        Serving(boot.path, boot.slot, 1)
    assert caught.value.code == "bundle.digest"


def test_what_was_loaded_is_used_even_when_the_file_is_exchanged_afterwards(home, maker, run):
    supervisor = run()
    swapped(maker, home, "a")
    assert ask(supervisor).outputs["y"].tolist() == [[-1.0] * 4]


def test_the_bytes_that_are_handed_on_are_the_bytes_that_were_hashed(home):
    slot = home.state().a
    loaded = load(home.bundle("a"), slot)
    home.bundle("a").write_bytes(b"")
    assert loaded.model == model()


def test_a_swap_that_a_supervisor_meets_is_quarantined_and_the_other_slot_runs(home, maker, run):
    put(home, maker.bundle(2, model("Abs")))
    swapped(maker, home, "b")
    supervisor = run()
    assert ask(supervisor).outputs["y"].tolist() == [[-1.0] * 4]
    assert home.state().quarantine[0].reason.startswith("device.rot")


def test_weights_beside_the_model_are_read_from_the_bundle_too(home, maker, run):
    value, weights = helper.make_tensor_value_info, np.arange(4, dtype=np.float32)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", "model.onnx.data"), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=text)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "external",
        [value("x", TensorProto.FLOAT, [1, 4])],
        [value("y", TensorProto.FLOAT, [1, 4])],
        [tensor],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    bundle = maker.bundle(2, proto.SerializeToString(), beside={"model/model.onnx.data": weights.tobytes()})
    put(home, bundle, keep=False)
    assert ask(run()).outputs["y"].tolist() == [[1.0, 2.0, 3.0, 4.0]]


@pytest.mark.parametrize(
    "feeds", [{"x": np.ones((2, 3), np.float32)}, {"z": ONES["x"]}, {"x": ONES["x"].astype(np.float64)}, {}]
)
def test_inputs_that_do_not_fit_are_the_callers_fault(home, maker, run, feeds):
    put(home, maker.bundle(2), keep=False)
    supervisor = run()
    with pytest.raises(EdgeproofError) as caught:
        supervisor.infer(feeds)
    assert caught.value.code == "serve.refused"
    ask(supervisor, 6)
    assert home.state().b.phase == "good"
