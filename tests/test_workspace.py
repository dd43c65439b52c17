import json

import pytest

from edgeproof.digest import digest_file, digest_json
from edgeproof.errors import InputError, TrustError
from edgeproof.workspace import Workspace, confirmations

REQUEST = {"model": "sha256:a", "policy": {"name": "p"}}


def test_the_same_request_goes_on_and_another_is_refused(tmp_path):
    Workspace.create(tmp_path / "run", REQUEST)
    assert Workspace.create(tmp_path / "run", REQUEST).request["model"] == "sha256:a"
    with pytest.raises(InputError, match="holds a run with another model: sha256:a; now sha256:b"):
        Workspace.create(tmp_path / "run", {**REQUEST, "model": "sha256:b"})


def test_the_very_place_of_a_difference_is_named(tmp_path):
    rules = [{"metric": "size", "limit": "1"}, {"metric": "quality", "limit": "0.02"}]
    Workspace.create(tmp_path / "run", {"policy": {"rules": rules}})
    changed = [rules[0], {"metric": "quality", "limit": "0.03"}]
    with pytest.raises(InputError, match=r"another policy.rules\[1\].limit: 0.02; now 0.03"):
        Workspace.create(tmp_path / "run", {"policy": {"rules": changed}})


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(InputError, match="is a folder with other things in it"):
        Workspace.create(tmp_path, REQUEST)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(InputError, match="is no run of edgeproof"):
        Workspace.open(tmp_path)


def test_a_value_is_made_once(tmp_path):
    workspace = Workspace.create(tmp_path / "run", REQUEST)
    made = []

    def make():
        made.append(1)
        return {"x": 1.5}

    assert workspace.once("a/b.json", make) == {"x": 1.5}
    assert workspace.once("a/b.json", make) == {"x": 1.5}
    assert made == [1]


def test_a_second_process_is_kept_out(tmp_path):
    workspace = Workspace.create(tmp_path / "run", REQUEST)
    with (
        workspace.locked(),
        pytest.raises(InputError, match="another edgeproof is working on this run"),
        Workspace.open(tmp_path / "run").locked(),
    ):
        pass


def test_each_line_of_the_ledger_carries_the_digest_of_the_one_before(tmp_path):
    workspace = Workspace.create(tmp_path / "run", REQUEST)
    workspace.record({"kind": "bench", "candidate": "a"})
    workspace.record({"kind": "bench", "candidate": "b"})
    workspace.record({"kind": "bench", "candidate": "a"})
    first, second = workspace.ledger()
    assert first["previous"] == digest_json(workspace.request)
    assert second["previous"] == digest_json(first)
    assert second["candidate"] == "b"


@pytest.mark.parametrize("change", ["edit", "remove", "swap"])
def test_a_ledger_changed_by_hand_is_found(tmp_path, change):
    workspace = Workspace.create(tmp_path / "run", REQUEST)
    for name in "abc":
        workspace.record({"kind": "bench", "candidate": name})
    path = tmp_path / "run" / "ledger.jsonl"
    lines = path.read_text().splitlines()
    if change == "edit":
        lines[0] = json.dumps({**json.loads(lines[0]), "candidate": "z"})
    elif change == "remove":
        del lines[1]
    else:
        lines[0], lines[1] = lines[1], lines[0]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(TrustError, match="does not follow from the line before it"):
        workspace.ledger()


@pytest.mark.parametrize("line", ["[1]", "null", "[" * 100_000])
def test_a_line_of_the_ledger_that_is_no_entry_is_found(tmp_path, line):
    workspace = Workspace.create(tmp_path / "run", REQUEST)
    (tmp_path / "run" / "ledger.jsonl").write_text(f"{line}\n")
    with pytest.raises(TrustError, match=r"ledger\.jsonl"):
        workspace.ledger()


@pytest.mark.parametrize("text", ["[1]", "null", "{}"])
def test_a_request_of_another_shape_is_refused(tmp_path, text):
    Workspace.create(tmp_path / "run", REQUEST)
    (tmp_path / "run" / "request.json").write_text(text)
    with pytest.raises(InputError, match="was written in format None"):
        Workspace.create(tmp_path / "run", REQUEST)


def test_an_index_changed_by_hand_is_found(tmp_path):
    workspace = Workspace.create(tmp_path / "run", REQUEST)
    value = workspace.write("a.json", {"p50_ms": 2.0})
    value.write_text(json.dumps({"p50_ms": 1.0}))
    index = tmp_path / "run" / "index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "a.json": digest_file(value)}))
    with pytest.raises(TrustError, match="is not what was written here"):
        Workspace.open(tmp_path / "run")


def test_a_process_killed_while_it_replaces_a_value_leaves_none_that_looks_changed(tmp_path, monkeypatch):
    workspace = Workspace.create(tmp_path / "run", REQUEST)
    workspace.write("a.json", 1)

    def killed(_path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("edgeproof.workspace.digest_file", killed)
        with pytest.raises(KeyboardInterrupt):
            workspace.write("a.json", 2)
    assert Workspace.open(tmp_path / "run").read("a.json") is None


def test_what_another_process_wrote_before_the_lock_was_free_is_seen(tmp_path):
    ours = Workspace.create(tmp_path / "run", REQUEST)
    Workspace.open(tmp_path / "run").write("a.json", 1)
    with ours.locked():
        assert ours.read("a.json") == 1


def entered(tmp_path, lines=3):
    workspace = Workspace.create(tmp_path / "run", REQUEST)
    for i in range(lines):
        workspace.record({"kind": "quality-search", "result": f"sha256:{i}"})
    return tmp_path / "run" / "ledger.jsonl"


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_ledger_that_lost_its_last_lines_is_found_before_anything_is_added(tmp_path, left):
    path = entered(tmp_path)
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:left]))
    with pytest.raises(TrustError) as e:
        Workspace.open(tmp_path / "run").record({"kind": "bench-confirm"})
    assert e.value.code == "workspace.ledger"
    assert f"{left} lines are left" in e.value.problem
    assert len(path.read_text().splitlines()) == left


def test_a_deleted_ledger_is_not_begun_anew(tmp_path):
    path = entered(tmp_path)
    path.unlink()
    with pytest.raises(TrustError, match="lines were removed"):
        Workspace.open(tmp_path / "run").record({"kind": "bench-confirm"})
    assert not path.exists()


def test_a_line_written_just_before_the_process_was_killed_is_kept(tmp_path):
    # The ledger is written before the index, so it may be one line ahead.
    path = entered(tmp_path)
    index = (tmp_path / "run" / "index.json").read_bytes()
    Workspace.open(tmp_path / "run").record({"kind": "quality-search", "result": "sha256:killed"})
    (tmp_path / "run" / "index.json").write_bytes(index)
    workspace = Workspace.open(tmp_path / "run")
    assert len(workspace.ledger()) == 4
    workspace.record({"kind": "quality-search", "result": "sha256:next"})
    assert len(path.read_text().splitlines()) == 5


def test_confirmations_count_candidates_and_repetitions_and_not_the_original():
    def line(candidate, kind):
        return {"candidate": candidate, "kind": kind}

    first = [line(c, k) for c in ("original", "int8") for k in ("bench-confirm", "quality-confirm")]
    assert confirmations([line("int8", "quality-search"), line("control", "bench-confirm"), *first]) == 1
    assert confirmations([*first, line("int8", "bench-confirm")]) == 2
    assert confirmations([*first, line("float", "quality-confirm")]) == 2
    assert confirmations([]) == 0
