"""The operators that packages are computed with, against examples of coremltools' reference and plain arithmetic."""

from importlib import import_module

import numpy as np
import pytest

from edgeproof.backends._mil_operators import OPERATORS

torch = import_module("torch")


def tensor(values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


def test_tables_per_group_are_looked_up_as_in_the_reference():
    indices = tensor([[2, 3], [3, 0], [1, 0], [3, 0], [2, 1], [0, 3]], torch.int64)
    lut = tensor([1.0, 5.0, 9.0, 13.0, 2.0, 10.0, 18.0, 26.0]).reshape(2, 1, 4, 1)
    got = OPERATORS["constexpr_lut_to_dense"](torch, {"indices": indices, "lut": lut})
    want = [[9, 13], [13, 1], [5, 1], [26, 2], [18, 10], [2, 26]]
    np.testing.assert_array_equal(got.numpy(), want)


def test_packed_tables_count_from_the_least_significant_bit():
    packed = np.array([0b01101100, 0b11], np.uint8)  # elements 0, 3, 2, 1 and 3 of two bits each
    got = OPERATORS["constexpr_lut_to_dense"](
        torch, {"indices": torch.from_numpy(packed.astype(np.int64)), "lut": tensor([1.0, 2.0, 3.0, 4.0]), "shape": [5]}
    )
    np.testing.assert_array_equal(got.numpy(), [1, 4, 3, 2, 4])


def test_sparse_blocks_are_scaled_as_in_the_reference():
    mask = tensor([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 0, 0]], torch.int64)
    arguments = {
        "data_mask": mask,
        "nonzero_data": tensor([10, 11, 3, 4, 5, 6, 7, 8, 9], torch.int64),
        "scale": tensor([[0.1, 0.2, 0.3, 0.4]]),
        "offset": tensor([[1, 2, 3, 4]], torch.int64),
    }
    same, data = OPERATORS["constexpr_sparse_blockwise_shift_scale"](torch, arguments)
    np.testing.assert_allclose(data.numpy(), [0.9, 1.8, 0.2, 0.4, 0.6, 0.9, 1.2, 0.7, 1.4], rtol=1e-6)
    dense = OPERATORS["constexpr_sparse_to_dense"](torch, {"mask": same, "nonzero_data": data})
    np.testing.assert_allclose(dense.numpy()[3], [0.7, 1.4, 0, 0], rtol=1e-6)


def test_quantise_rounds_half_to_even_and_saturates():
    got = OPERATORS["quantize"](
        torch, {"input": tensor([0.5, 1.5, -0.5, 300.0]), "scale": np.float32(1), "output_dtype": "int8"}
    )
    np.testing.assert_array_equal(got.numpy(), [0, 2, 0, 127])


@pytest.mark.parametrize(
    ("mode", "want"),
    [
        ("STRICT_ALIGN_CORNERS", [0, 1 / 3, 2 / 3, 1]),
        ("DEFAULT", [0, 0.5, 1, 1]),
        ("UNALIGN_CORNERS", [0, 0.25, 0.75, 1]),
        ("OFFSET_CORNERS", [0.125, 0.375, 0.625, 0.875]),
    ],
)
def test_bilinear_samples_lie_where_each_convention_puts_them(mode, want):
    x = tensor([[0.0, 1.0], [0.0, 1.0]]).reshape(1, 1, 2, 2)
    got = OPERATORS["resize_bilinear"](
        torch, {"x": x, "target_size_height": 2, "target_size_width": 4, "sampling_mode": mode}
    )
    np.testing.assert_allclose(got.numpy()[0, 0, 0], want, atol=1e-6)


def test_averages_leave_out_padding_when_asked():
    x = torch.ones(1, 1, 2, 2)
    arguments = {"x": x, "kernel_sizes": [2, 2], "strides": [2, 2], "pad_type": "custom", "pad": [1, 1, 1, 1]}
    with_padding = OPERATORS["avg_pool"](torch, {**arguments, "exclude_padding_from_average": False})
    without = OPERATORS["avg_pool"](torch, {**arguments, "exclude_padding_from_average": True})
    np.testing.assert_allclose(with_padding.numpy(), np.full((1, 1, 2, 2), 0.25))
    np.testing.assert_allclose(without.numpy(), np.ones((1, 1, 2, 2)))
