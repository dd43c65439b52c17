import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import edgeproof.model
from edgeproof.digest import digest_file
from edgeproof.errors import EdgeproofError, InputError, TrustError, UnsupportedError
from edgeproof.model import Model, TensorSpec, file_digests, load_model, save_model, size_bytes


def linear(scale: float = 1.0, rows: int = 64) -> onnx.ModelProto:
    """y = x W + b with a weight large enough to be stored outside."""
    weight = numpy_helper.from_array(np.arange(rows * 16, dtype=np.float32).reshape(rows, 16) * scale, "w")
    bias = numpy_helper.from_array(np.ones(16, np.float32), "b")
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], alpha=0.1)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 16])],
        [weight, bias],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def branching(value: float) -> onnx.ModelProto:
    """An If whose branches hold a constant each."""

    def branch(name: str, number: float) -> onnx.GraphProto:
        tensor = numpy_helper.from_array(np.full(3, number, np.float32), "c")
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, [3])
        return helper.make_graph([helper.make_node("Add", ["x", "c"], [name])], name, [], [out], [tensor])

    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch("a", 1.0), else_branch=branch("b", value))
    inputs = [
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]),
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write(proto: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


def external(folder: Path, location: str, proto: onnx.ModelProto | None = None, **entries: str) -> Path:
    """A model whose weight is said to lie at ``location``; the file itself is left to the caller."""
    proto = proto or linear()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return write(proto, folder / "model.onnx")


def weight_file(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(linear().graph.initializer[0].raw_data)
    return path


def digest(proto: onnx.ModelProto) -> str:
    return Model.of(ir.from_proto(proto), "m").digest


def test_loading_gives_name_interface_and_digest(tmp_path: Path) -> None:
    model = load_model(write(linear(), tmp_path / "tiny.onnx"))
    assert model.name == "tiny"
    assert model.inputs == (TensorSpec("x", "float32", ("N", 64)),)
    assert model.outputs == (TensorSpec("y", "float32", ("N", 16)),)
    assert model.inputs[0].dynamic
    assert str(model.inputs[0]) == "x float32[N, 64]"
    assert model.digest.startswith("sha256:")


def test_initializers_listed_as_inputs_need_not_be_fed(tmp_path: Path) -> None:
    proto = linear()
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [64, 16]))
    assert [s.name for s in load_model(write(proto, tmp_path / "m.onnx")).inputs] == ["x"]


def test_a_negative_dimension_is_dynamic(tmp_path: Path) -> None:
    proto = linear()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert load_model(write(proto, tmp_path / "m.onnx")).inputs[0].shape == ("?", 64)


# --- what is no model -----------------------------------------------------------------------------------------------


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError) as e:
        load_model(tmp_path / "none.onnx")
    assert str(e.value) == (
        f"{tmp_path}/none.onnx: no such file\n  hint: give the path of an .onnx file  [model.missing]"
    )


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(InputError) as e:
        load_model(tmp_path)
    assert e.value.problem == "is a folder; expected a file"


@pytest.mark.parametrize(
    ("content", "problem", "hint"),
    [
        (b"", "is empty (0 bytes)", "export or download it again"),
        (
            b"\x80\x02}q\x00X\x01\x00\x00\x00wq\x01K\x01s.",
            "is a Python pickle, which can run code when opened; expected ONNX",
            "export the model to ONNX where it was trained",
        ),
        (
            b"\x80\x05\x95\x0a\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01w\x94K\x01s.",
            "is a Python pickle, which can run code when opened; expected ONNX",
            "export the model to ONNX where it was trained",
        ),
        (b"\x89PNG\r\n\x1a\n", "is a PNG picture; expected ONNX", "give the path of an .onnx file"),
        (b"\xff\xd8\xff\xe0JFIF", "is a JPEG picture; expected ONNX", "give the path of an .onnx file"),
        (
            b"\x1c\x00\x00\x00TFL3",
            "is a TensorFlow Lite model; expected ONNX",
            "convert it to ONNX first, e.g. with tf2onnx",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "is a Git LFS pointer, not the model",
            "run git lfs pull",
        ),
    ],
    ids=["empty", "pickle-2", "pickle-5", "png", "jpeg", "tflite", "lfs"],
)
def test_other_formats_are_named(tmp_path: Path, content: bytes, problem: str, hint: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(InputError) as e:
        load_model(path)
    assert str(e.value) == f"{path}: {problem}\n  hint: {hint}  [model.wrong_format]"


def test_a_torch_checkpoint_is_a_zip(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("data.pkl", "x")
    with pytest.raises(InputError) as e:
        load_model(path)
    assert str(e.value) == (
        f"{path}: is a ZIP archive (a PyTorch checkpoint or TorchScript file?); expected ONNX\n"
        "  hint: export it with torch.onnx.export  [model.wrong_format]"
    )


def test_text_is_not_onnx(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello, this is no model")
    with pytest.raises(InputError) as e:
        load_model(path)
    assert str(e.value) == (
        f"{path}: is not a complete ONNX protobuf (23 bytes)\n"
        "  hint: the file may be truncated or of another format; download or export it again  [model.not_onnx]"
    )


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = linear().SerializeToString()
    path = tmp_path / "model.onnx"
    for length in (*range(0, 200, 7), len(data) // 2, len(data) - 100, len(data) - 20):
        path.write_bytes(data[:length])
        with pytest.raises(InputError) as e:
            load_model(path)
        assert e.value.code in ("model.wrong_format", "model.not_onnx", "model.no_graph")


def test_half_a_model_says_how_much_is_there(tmp_path: Path) -> None:
    data = linear().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data[:2000])
    with pytest.raises(InputError) as e:
        load_model(path)
    assert str(e.value) == (
        f"{path}: is not a complete ONNX protobuf (2,000 bytes)\n"
        "  hint: the file may be truncated or of another format; download or export it again  [model.not_onnx]"
    )


def test_a_protobuf_without_graph_is_refused(tmp_path: Path) -> None:
    path = write(onnx.ModelProto(ir_version=8, producer_name="x"), tmp_path / "model.onnx")
    with pytest.raises(InputError) as e:
        load_model(path)
    assert str(e.value) == (
        f"{path}: holds no ONNX graph (5 bytes)\n"
        "  hint: the file may be empty, truncated or of another format; export it again  [model.no_graph]"
    )


def test_the_name_of_the_file_does_not_matter(tmp_path: Path) -> None:
    assert load_model(write(linear(), tmp_path / "model.bin")).digest == digest(linear())


def test_sparse_initializers_are_refused_by_name(tmp_path: Path) -> None:
    proto = linear()
    values = numpy_helper.from_array(np.ones(1, np.float32), "s")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "s_indices")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [8]))
    path = write(proto, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError) as e:
        load_model(path)
    assert str(e.value) == (
        f"{path}: tensor 's': is a sparse initializer, which the graph library cannot hold\n"
        "  hint: export the model with dense weights  [model.sparse]"
    )


# --- external data --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("location", ["../w.bin", "a/../../w.bin", "/etc/hostname", "", "..\\w.bin"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    weight_file(tmp_path / "w.bin")
    path = external(folder, location)
    with pytest.raises(TrustError) as e:
        load_model(path)
    assert str(e.value) == (
        f"{path}: tensor 'w': keeps its data at {location!r}, outside the model's folder\n"
        "  hint: put the weight file beside the model and save it with a plain relative name  [model.external_data]"
    )


def test_external_data_behind_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "w.bin").symlink_to(weight_file(tmp_path / "secret"))
    path = external(tmp_path / "m", "w.bin")
    with pytest.raises(TrustError) as e:
        load_model(path)
    assert str(e.value) == (
        f"{path}: tensor 'w': keeps its data behind the symbolic link 'w.bin'\n"
        "  hint: replace the link by the file itself  [model.external_data]"
    )


def test_external_data_behind_a_linked_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    weight_file(tmp_path / "elsewhere" / "w.bin")
    (tmp_path / "m" / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TrustError) as e:
        load_model(external(tmp_path / "m", "sub/w.bin"))
    assert e.value.problem == "keeps its data behind the symbolic link 'sub'"


def test_external_data_with_a_second_hard_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    os.link(weight_file(tmp_path / "secret"), tmp_path / "m" / "w.bin")
    path = external(tmp_path / "m", "w.bin")
    with pytest.raises(TrustError) as e:
        load_model(path)
    assert str(e.value) == (
        f"{path}: tensor 'w': keeps its data in 'w.bin', which has 2 hard links\n"
        "  hint: copy the file, so that it belongs to this folder alone  [model.external_data]"
    )


def test_external_data_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").mkdir()
    with pytest.raises(TrustError) as e:
        load_model(external(tmp_path, "w.bin"))
    assert e.value.problem == "keeps its data in 'w.bin', which is no plain file"


def test_external_data_inside_a_subgraph_or_a_constant_is_checked_too(tmp_path: Path) -> None:
    proto = branching(2.0)
    tensor = proto.graph.node[0].attribute[0].g.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../w.bin")
    with pytest.raises(TrustError):
        load_model(write(proto, tmp_path / "a.onnx"))

    value = TensorProto(data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    value.external_data.add(key="location", value="/etc/hostname")
    proto = linear()
    proto.graph.node.append(helper.make_node("Constant", [], ["c"], value=value))
    with pytest.raises(TrustError):
        load_model(write(proto, tmp_path / "b.onnx"))


def test_a_missing_weight_file_is_named(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin")
    with pytest.raises(InputError) as e:
        load_model(path)
    assert str(e.value) == (
        f"{path}: tensor 'w': needs the weight file 'w.bin', which is not there\n"
        "  hint: copy the weight file beside the model  [model.external_missing]"
    )


def test_a_short_weight_file_is_named_with_its_size(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 1000)
    path = external(tmp_path, "w.bin", offset="0", length="4096")
    with pytest.raises(InputError) as e:
        load_model(path)
    assert str(e.value) == (
        f"{path}: tensor 'w': reads 4,096 bytes at 0 of 'w.bin', which has 1,000\n"
        "  hint: the weight file is truncated; download or export it again  [model.external_short]"
    )


def test_a_short_weight_file_is_found_without_a_declared_length(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 1000)
    with pytest.raises(InputError, match="reads 4,096 bytes at 0"):
        load_model(external(tmp_path, "w.bin"))


def test_a_length_that_does_not_fit_the_shape_is_refused(tmp_path: Path) -> None:
    weight_file(tmp_path / "w.bin")
    with pytest.raises(InputError) as e:
        load_model(external(tmp_path, "w.bin", length="400"))
    assert e.value.problem == "reads 400 bytes of 'w.bin'; its dtype and shape need 4,096"


@pytest.mark.parametrize("offset", ["-4", "many"])
def test_a_nonsense_offset_is_refused(tmp_path: Path, offset: str) -> None:
    weight_file(tmp_path / "w.bin")
    with pytest.raises(InputError, match=r"model\.external_short"):
        load_model(external(tmp_path, "w.bin", offset=offset))


def test_size_on_disk_counts_weight_files(tmp_path: Path) -> None:
    weight_file(tmp_path / "w.bin")
    path = external(tmp_path, "w.bin")
    assert size_bytes(path) == path.stat().st_size + 4096


def test_files_of_a_model_are_digested_with_its_weight_files(tmp_path: Path) -> None:
    weight_file(tmp_path / "w.bin")
    path = external(tmp_path, "w.bin")
    assert file_digests(path) == {path.name: digest_file(path), "w.bin": digest_file(tmp_path / "w.bin")}
    assert next(iter(file_digests(path))) == path.name


# --- digest ---------------------------------------------------------------------------------------------------------


def test_digest_changes_with_any_weight() -> None:
    changed = linear()
    data = bytearray(changed.graph.initializer[0].raw_data)
    data[-1] ^= 1
    changed.graph.initializer[0].raw_data = bytes(data)
    assert digest(changed) != digest(linear())


def test_digest_changes_with_a_weight_in_a_subgraph() -> None:
    assert digest(branching(2.0)) != digest(branching(3.0))


def test_digest_changes_with_attribute_node_opset_and_metadata() -> None:
    attribute = linear()
    attribute.graph.node[0].attribute[0].f = 0.2
    node = linear()
    node.graph.node.append(helper.make_node("Relu", ["y"], ["z"]))
    opset = linear()
    opset.opset_import[0].version = 18
    metadata = linear()
    metadata.metadata_props.add(key="character", value="abc")
    interface = linear()
    interface.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    digests = [digest(m) for m in (linear(), attribute, node, opset, metadata, interface)]
    assert len(set(digests)) == 6


def test_digest_changes_with_a_function_default_and_its_opset() -> None:
    def model(alpha: float, version: int) -> onnx.ModelProto:
        body = helper.make_node("LeakyRelu", ["a"], ["b"])
        body.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT))
        function = helper.make_function(
            "own",
            "F",
            ["a"],
            ["b"],
            [body],
            [helper.make_opsetid("", version)],
            attribute_protos=[helper.make_attribute("alpha", alpha)],
        )
        value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
        graph = helper.make_graph([helper.make_node("F", ["x"], ["y"], domain="own")], "g", value[:1], value[1:])
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        return helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=8)

    assert len({digest(model(0.1, 17)), digest(model(0.2, 17)), digest(model(0.1, 16))}) == 3


def test_digest_is_blind_to_doc_strings_and_producer() -> None:
    proto = linear()
    proto.producer_name, proto.producer_version, proto.doc_string = "other", "9", "text"
    proto.graph.doc_string = proto.graph.node[0].doc_string = "text"
    assert digest(proto) == digest(linear())


def test_digest_survives_saving_and_loading(tmp_path: Path) -> None:
    for i, proto in enumerate((linear(), branching(2.0))):
        model = load_model(write(proto, tmp_path / f"{i}.onnx"))
        assert load_model(save_model(model, tmp_path / "again.onnx")).digest == model.digest


def test_an_attribute_set_in_memory_has_the_digest_that_it_has_in_the_file(tmp_path: Path) -> None:
    graph = ir.from_proto(linear())
    graph.graph.node(0).attributes["alpha"] = ir.AttrFloat32("alpha", 0.3)  # no 32-bit float
    model = Model.of(graph, "m")
    assert load_model(save_model(model, tmp_path / "m.onnx")).digest == model.digest


def test_external_and_embedded_weights_have_the_same_digest(tmp_path: Path) -> None:
    weight_file(tmp_path / "w.bin")
    outside = load_model(external(tmp_path, "w.bin"))
    assert outside.digest == digest(linear())
    inside = load_model(save_model(outside, tmp_path / "copy" / "inside.onnx"))
    assert inside.digest == outside.digest
    assert [p.name for p in (tmp_path / "copy").iterdir()] == ["inside.onnx"]


# --- saving with external data --------------------------------------------------------------------------------------


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edgeproof.model, "PROTO_LIMIT_BYTES", 2000)


@pytest.mark.usefixtures("small_limit")
def test_weights_beyond_the_limit_go_to_a_file_named_by_the_digest(tmp_path: Path) -> None:
    model = Model.of(ir.from_proto(linear()), "m")
    path = save_model(model, tmp_path / "big.onnx")
    name = f"big.{model.digest.removeprefix('sha256:')[:16]}.data"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["big.onnx", name])
    again = load_model(path)
    assert again.digest == model.digest
    # Read by a library of its own: small tensors are in the graph, the large one is not.
    proto = onnx.load(path, load_external_data=False)
    where = {t.name: t.data_location == TensorProto.EXTERNAL for t in proto.graph.initializer}
    assert where == {"w": True, "b": False}
    whole = onnx.load(path)
    np.testing.assert_array_equal(numpy_helper.to_array(whole.graph.initializer[0]), np.arange(1024).reshape(64, 16))


@pytest.mark.usefixtures("small_limit")
def test_a_model_with_external_data_can_be_saved_over_itself(tmp_path: Path) -> None:
    path = save_model(Model.of(ir.from_proto(linear()), "m"), tmp_path / "big.onnx")
    model = load_model(path)
    assert load_model(save_model(model, path)).digest == model.digest
    other = Model.of(ir.from_proto(linear(2.0)), "m")
    save_model(other, path)
    assert load_model(path).digest == other.digest
    assert model.graph.graph.initializers["w"].const_value.numpy()[0, 1] == 1.0  # the old weights are still readable


@pytest.mark.usefixtures("small_limit")
def test_an_interrupted_save_leaves_the_old_model_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Model.of(ir.from_proto(linear()), "m")
    path = save_model(old, tmp_path / "big.onnx")
    before = sorted(p.name for p in tmp_path.iterdir())

    def full(path: Path, data: bytes) -> None:
        raise InputError("files.disk_full", str(path), "no space left on the disk")

    monkeypatch.setattr(edgeproof.model, "write_bytes", full)
    with pytest.raises(EdgeproofError, match="no space left"):
        save_model(Model.of(ir.from_proto(linear(2.0)), "m"), path)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert load_model(path).digest == old.digest


@pytest.mark.usefixtures("small_limit")
def test_large_constants_inside_nodes_and_branches_are_unloaded_too(tmp_path: Path) -> None:
    proto = linear()
    big = numpy_helper.from_array(np.arange(512, dtype=np.float32), "k")
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["c"], value=big))
    model = Model.of(ir.from_proto(proto), "m")
    path = save_model(model, tmp_path / "m.onnx")
    assert load_model(path).digest == model.digest
    stored = onnx.load(path, load_external_data=False)
    assert stored.graph.node[0].attribute[0].t.data_location == TensorProto.EXTERNAL


@pytest.mark.usefixtures("small_limit")
def test_one_message_is_refused_when_the_weights_do_not_fit() -> None:
    with pytest.raises(InputError) as e:
        Model.of(ir.from_proto(linear()), "m").to_bytes()
    assert str(e.value) == (
        "m: weights of 4,160 bytes do not fit one protobuf message\n"
        "  hint: save it with external data first  [model.too_large]"
    )


def test_embedding_external_weights_leaves_arrays_that_were_read_before_alive(tmp_path: Path) -> None:
    weight_file(tmp_path / "w.bin")
    model = load_model(external(tmp_path, "w.bin"))
    array = model.graph.graph.initializers["w"].const_value.numpy()
    proto = onnx.ModelProto.FromString(model.to_bytes())
    np.testing.assert_array_equal(numpy_helper.to_array(proto.graph.initializer[0]), array)
    assert array[1, 1] == 17.0
    assert model.graph.graph.initializers["w"].const_value.numpy()[1, 1] == 17.0


# --- malformed graphs -----------------------------------------------------------------------------------------------


def reads_nothing(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].input[0] = "missing"


def makes_nothing(proto: onnx.ModelProto) -> None:
    proto.graph.output[0].name = "z"


def makes_twice(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(proto.graph.node[0])


def unnamed_weight(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[1].name = ""


def unnamed_input(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].name = ""


def short_weight(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[1].raw_data = b"\0" * 8


def unknown_type(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[1].data_type = 99


def untyped_attribute(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].attribute[0].ClearField("type")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (reads_nothing, "node 'Gemm' reads 'missing', which nothing makes"),
        (makes_nothing, "output 'z' of graph 'g' is made by no node"),
        (makes_twice, "value 'y' is made by two nodes"),
        (unnamed_weight, "initializer 1 of graph 'g' has no name"),
        (unnamed_input, "input 0 of graph 'g' has no name"),
        (short_weight, "tensor 'b' holds 8 bytes; its shape [16] needs 64"),
        (unknown_type, "tensor 'b' has no data type that ONNX knows: 99"),
        (untyped_attribute, "attribute 'alpha' of node 'Gemm' has no type"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_a_malformed_graph_is_refused_by_name(
    tmp_path: Path, spoil: Callable[[onnx.ModelProto], None], problem: str
) -> None:
    proto = linear()
    spoil(proto)
    path = write(proto, tmp_path / "m.onnx")
    with pytest.raises(InputError) as e:
        load_model(path)
    assert str(e.value) == (f"{path}: {problem}\n  hint: run onnx.checker on it and export it again  [model.malformed]")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    proto = linear()
    proto.producer_name = "tool"
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString().replace(b"tool", b"to\xff\xfe"))
    with pytest.raises(InputError, match=r"onnx\.ModelProto\.producer_name is not UTF-8"):
        load_model(path)


def test_a_branch_may_read_what_lies_outside_but_not_what_nothing_makes(tmp_path: Path) -> None:
    assert load_model(write(branching(2.0), tmp_path / "good.onnx"))
    proto = branching(2.0)
    proto.graph.node[0].attribute[0].g.node[0].input[0] = "nowhere"
    with pytest.raises(InputError, match="reads 'nowhere', which nothing makes"):
        load_model(write(proto, tmp_path / "bad.onnx"))


def test_nodes_in_any_order_are_sorted_but_a_cycle_is_refused(tmp_path: Path) -> None:
    proto = linear()
    proto.graph.node.add().CopyFrom(helper.make_node("Relu", ["y"], ["z"]))
    proto.graph.output[0].name = "z"
    straight = load_model(write(proto, tmp_path / "a.onnx"))
    proto.graph.node.reverse()
    assert load_model(write(proto, tmp_path / "b.onnx")).digest == straight.digest

    proto.graph.node[0].input[0] = "z"
    with pytest.raises(InputError, match="its graph is inconsistent"):
        load_model(write(proto, tmp_path / "c.onnx"))
