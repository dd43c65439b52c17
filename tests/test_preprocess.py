from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from edgeproof.dataset import Preprocess
from edgeproof.errors import InputError
from edgeproof.model import TensorSpec
from edgeproof.preprocess import apply, check, guess, open_picture


def picture(height: int = 6, width: int = 10) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).integers(0, 256, (height, width, 3), np.uint8)


def test_without_settings_the_pixels_come_out_channel_first() -> None:
    x = picture()
    got, meta = apply(x, Preprocess())
    np.testing.assert_array_equal(got, x.transpose(2, 0, 1).astype(np.float32))
    assert meta == {"size": (6, 10), "input": (6, 10), "scale": (1.0, 1.0), "pad": (0.0, 0.0)}


@pytest.mark.parametrize(
    ("name", "filter_"),
    [
        ("bilinear", Image.Resampling.BILINEAR),
        ("bicubic", Image.Resampling.BICUBIC),
        ("nearest", Image.Resampling.NEAREST),
        ("area", Image.Resampling.BOX),
    ],
)
def test_stretching_is_pillows_resize(name: Any, filter_: Image.Resampling) -> None:
    x = picture(31, 17)
    got, meta = apply(x, Preprocess(size=(8, 12), interpolation=name, layout="nhwc"))
    expected = np.asarray(Image.fromarray(x).resize((12, 8), filter_))
    np.testing.assert_array_equal(got, expected.astype(np.float32))
    assert meta["scale"] == (8 / 31, 12 / 17)


def test_area_averages_blocks_when_it_halves() -> None:
    x = np.array([[[0], [4], [8], [8]], [[4], [8], [8], [8]]], np.uint8)
    got, _ = apply(x, Preprocess(size=(1, 2), interpolation="area", colour="gray"))
    np.testing.assert_array_equal(got, [[[4.0, 8.0]]])


def test_letterbox_centres_the_picture_between_padding() -> None:
    # 6×10 into 20×20: ratio 2, so 12×20 with 4 rows of padding above and below.
    got, meta = apply(picture(), Preprocess(size=(20, 20), resize="letterbox", pad_value=127.5))
    assert meta == {"size": (6, 10), "input": (20, 20), "scale": (2.0, 2.0), "pad": (4.0, 0.0)}
    assert (got[:, :4] == 127.5).all()
    assert (got[:, 16:] == 127.5).all()
    inner = np.asarray(Image.fromarray(picture()).resize((20, 12), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(got[:, 4:16], inner.transpose(2, 0, 1).astype(np.float32))


def test_an_odd_row_of_padding_goes_below() -> None:
    _, meta = apply(picture(5, 10), Preprocess(size=(10, 10), resize="letterbox"))
    assert meta["pad"] == (2.0, 0.0)


def test_crop_takes_the_centre_of_the_resized_shorter_side() -> None:
    # ImageNet's 256 → 224: the shorter side 100 becomes 256, of which 224 are kept.
    x = picture(100, 200)
    got, meta = apply(x, Preprocess(size=(224, 224), resize="crop", crop_fraction=0.875))
    resized = np.asarray(Image.fromarray(x).resize((512, 256), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(got, resized[16:240, 144:368].transpose(2, 0, 1).astype(np.float32))
    assert meta["pad"] == (-16.0, -144.0)


def test_pad_right_keeps_the_height_and_pads_after_the_text() -> None:
    # PaddleOCR: width = ceil(48 × 33 / 20) = 80, the rest is padding.
    got, meta = apply(picture(20, 33), Preprocess(size=(48, 320), resize="pad_right", pad_value=0))
    assert got.shape == (3, 48, 320)
    assert (got[:, :, 80:] == 0).all()
    assert meta["scale"] == (48 / 20, 80 / 33)


def test_pad_right_squeezes_what_is_too_wide() -> None:
    got, meta = apply(picture(10, 200), Preprocess(size=(48, 320), resize="pad_right"))
    assert got.shape == (3, 48, 320)
    assert meta["scale"] == (4.8, 1.6)


def test_scale_mean_and_std_apply_in_this_order_and_in_the_order_of_the_colours() -> None:
    x = np.array([[[255, 0, 51]]], np.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    got, _ = apply(x, Preprocess(scale=1 / 255, mean=mean, std=std, colour="bgr"))
    expected = [(0.2 - 0.1) / 0.5, (0.0 - 0.2) / 0.25, (1.0 - 0.3) / 2.0]
    np.testing.assert_allclose(got[:, 0, 0], expected, rtol=1e-6)


def test_grey_follows_the_luma_of_itu_r_601() -> None:
    x = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]], np.uint8)
    got, _ = apply(x, Preprocess(colour="gray"))
    np.testing.assert_array_equal(got[0, 0], [76, 150, 29])  # round(255 × (0.299, 0.587, 0.114))


def test_integer_results_round_half_to_even_and_saturate() -> None:
    x = np.array([[[1, 3, 255]]], np.uint8)
    got, _ = apply(x, Preprocess(scale=0.5, mean=(0.0,), dtype="int8", layout="nhwc"))
    assert got.dtype == np.int8
    np.testing.assert_array_equal(got[0, 0], [0, 2, 127])


@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.sampled_from(["stretch", "letterbox", "crop", "pad_right", "none"]),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_scale_and_pad_map_corners_of_the_picture_onto_its_resized_place(
    height: int, width: int, resize: Any, u: float, v: float
) -> None:
    got, meta = apply(picture(height, width), Preprocess(size=(24, 32), resize=resize))
    (sy, sx), (py, px) = meta["scale"], meta["pad"]
    y, x = u * height * sy + py, v * width * sx + px
    assert ((y - py) / sy, (x - px) / sx) == pytest.approx((u * height, v * width), abs=1e-9)
    if resize != "none":
        assert got.shape == (3, 24, 32)
    if resize in ("letterbox", "pad_right", "stretch"):
        assert -1e-9 <= y <= 24 + 1e-9
        assert -1e-9 <= x <= 32 + 1e-9


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            Preprocess(dtype="floot32"),
            "preprocess.dtype: is 'floot32'\n  hint: did you mean 'float32'?  [preprocess.value]",
        ),
        (
            Preprocess(size=(0, 4)),
            "preprocess.size: is [0, 4]; expected two whole numbers of at least 1: [height, width]\n"
            "  hint: e.g. size: [224, 224]  [preprocess.value]",
        ),
        (
            Preprocess(mean=(1.0, 2.0)),
            "preprocess.mean: is [1.0, 2.0]; expected 1 or 3 values for colour 'rgb'\n"
            "  hint: e.g. mean: 0.5  [preprocess.value]",
        ),
        (
            Preprocess(std=(0.0,)),
            "preprocess.std: is [0.0]; expected values above 0\n  hint: e.g. std: 0.5  [preprocess.value]",
        ),
        (
            Preprocess(pad_value=256),
            "preprocess.pad_value: is 256; expected 0..255, a pixel value before scale, mean and std\n"
            "  hint: e.g. pad_value: 114  [preprocess.value]",
        ),
        (
            Preprocess(crop_fraction=1.5),
            "preprocess.crop_fraction: is 1.5; expected above 0, at most 1\n"
            "  hint: e.g. crop_fraction: 0.875  [preprocess.value]",
        ),
        (
            Preprocess(scale=0.0),
            "preprocess.scale: is 0.0; expected a finite number other than 0\n"
            "  hint: e.g. scale: 1/255  [preprocess.value]",
        ),
    ],
)
def test_a_bad_setting_is_named(spec: Preprocess, message: str) -> None:
    with pytest.raises(InputError) as e:
        check(spec)
    assert str(e.value) == message


def test_an_array_that_is_no_picture_is_refused() -> None:
    with pytest.raises(InputError, match=r"is float32\[4, 4, 3\]; preprocessing expects uint8"):
        apply(np.zeros((4, 4, 3), np.float32), Preprocess())  # type: ignore[arg-type]


def test_pictures_are_turned_upright_by_their_exif_orientation(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # stored sideways: 90° clockwise shows it upright
    Image.fromarray(picture(4, 8)).save(tmp_path / "x.png", exif=exif)
    assert open_picture(tmp_path / "x.png").size == (4, 8)


def test_a_truncated_picture_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    Image.fromarray(picture(64, 64)).save(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError) as e:
        open_picture(path)
    assert e.value.code == "data.picture"
    assert e.value.subject == str(path)
    assert str(e.value).startswith(f"{path}: cannot be decoded as a picture: ")


def test_text_in_a_picture_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cat.jpg"
    path.write_text("hello")
    with pytest.raises(InputError) as e:
        open_picture(path)
    assert str(e.value) == (
        f"{path}: cannot be decoded as a picture: cannot identify image file 'cat.jpg'\n"
        "  hint: replace or remove the file  [data.picture]"
    )


def test_sixteen_bit_pictures_are_refused_since_pillow_would_clip_them(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((4, 4), 40000, np.uint16)).save(path)
    with pytest.raises(InputError, match="has pixels of mode I;16; expected 8 bits per channel"):
        open_picture(path)


def test_a_float_input_gets_pixels_over_255_and_its_own_size() -> None:
    spec = guess(None, TensorSpec("x", "float32", ("n", 3, 32, 48)))
    assert spec == Preprocess(size=(32, 48), scale=1 / 255)


def test_a_uint8_channel_last_grey_input_gets_the_pixels() -> None:
    spec = guess(None, TensorSpec("x", "uint8", (1, 28, 28, 1)), "letterbox")
    assert spec == Preprocess(size=(28, 28), resize="letterbox", colour="gray", layout="nhwc", dtype="uint8")


def test_an_open_size_keeps_the_pictures_own() -> None:
    assert guess(None, TensorSpec("x", "float32", (1, 3, "h", "w"))).resize == "none"


def test_a_declared_preprocessing_only_gets_the_missing_size() -> None:
    spec = guess(Preprocess(mean=(0.5,)), TensorSpec("x", "float32", (1, 3, 32, 48)))
    assert spec == Preprocess(size=(32, 48), mean=(0.5,))
    assert guess(Preprocess(size=(8, 8)), TensorSpec("x", "float32", (1, 3, 32, 48))).size == (8, 8)


def test_an_input_that_is_no_picture_cannot_be_guessed() -> None:
    with pytest.raises(InputError, match=r"input x float32\[1, 10\]: does not look like a picture"):
        guess(None, TensorSpec("x", "float32", (1, 10)))


GREY = TensorSpec("x", "float32", ("n", 1, 28, 28))
CONVENTION = ("scale", "mean", "std")


@pytest.mark.parametrize(
    ("tensor", "given", "expected"),
    [
        # Channels, size and layout come from the model's shape; pixels / 255 is the convention for floats.
        (GREY, {}, Preprocess((28, 28), "stretch", colour="gray", scale=1 / 255)),
        (GREY, {"scale": 1 / 255}, Preprocess((28, 28), "stretch", colour="gray", scale=1 / 255)),
        (GREY, {"mean": (127.5,)}, Preprocess((28, 28), "stretch", colour="gray", mean=(127.5,))),
        (GREY, {"colour": "rgb"}, Preprocess((28, 28), "stretch", colour="rgb", scale=1 / 255)),
        (GREY, {"size": (8, 8)}, Preprocess((8, 8), "stretch", colour="gray", scale=1 / 255)),
        (GREY, {"dtype": "uint8"}, Preprocess((28, 28), "stretch", colour="gray", dtype="uint8")),
        (
            TensorSpec("x", "uint8", (1, 8, 6, 3)),
            {"colour": "bgr"},
            Preprocess((8, 6), "stretch", colour="bgr", layout="nhwc", dtype="uint8"),
        ),
        (
            TensorSpec("x", "int8", (1, 3, 8, 6)),
            {"resize": "crop"},
            Preprocess((8, 6), "crop", mean=(128.0,), dtype="int8"),
        ),
        # Both readings are possible here, and the given layout tells which is meant.
        (
            TensorSpec("x", "float32", (1, 3, 3, 1)),
            {"layout": "nhwc"},
            Preprocess((3, 3), "stretch", colour="gray", scale=1 / 255, layout="nhwc"),
        ),
        (TensorSpec("x", "float32", (1, 3, "h", "w")), {}, Preprocess(None, "none", scale=1 / 255)),
    ],
)
def test_what_is_left_out_comes_from_the_model_and_what_is_given_wins(
    tensor: TensorSpec, given: dict[str, Any], expected: Preprocess
) -> None:
    left_out = {f.name for f in fields(Preprocess)} - set(given)
    assert guess(Preprocess(**given), tensor, left_out=left_out) == expected


@pytest.mark.parametrize("shape", [(3, 6, 10), (1, 6, 10), (3, 3, 5)])
def test_channels_may_come_first_where_the_shape_leaves_no_doubt(shape: tuple[int, int, int]) -> None:
    x = np.random.default_rng(5).integers(0, 256, shape, np.uint8)
    colour: Any = "gray" if shape[0] == 1 else "rgb"
    got, meta = apply(x, Preprocess(colour=colour))
    np.testing.assert_array_equal(got, x.astype(np.float32))
    assert meta["size"] == shape[1:]


def test_channels_are_last_where_both_readings_are_possible() -> None:
    x = np.random.default_rng(5).integers(0, 256, (3, 6, 3), np.uint8)
    assert apply(x, Preprocess())[1]["size"] == (3, 6)
