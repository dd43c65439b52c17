"""What a LiteRT file cannot say is refused by name, before anything is written."""

import onnx_ir as ir
import pytest

from edgeproof.errors import UnsupportedError
from edgeproof.model import Model
from edgeproof.tflite.convert import convert


def test_an_input_that_is_an_output_too_is_refused_by_its_name():
    text = (
        '<ir_version: 8, opset_import: ["" : 17]>\ng (float[1, 3] x) => (float[1, 3] x, float[1, 3] y) { y = Relu(x) }'
    )
    with pytest.raises(UnsupportedError, match="x: is an input that is handed out as it is"):
        convert(Model.of(ir.from_onnx_text(text), "m"))
