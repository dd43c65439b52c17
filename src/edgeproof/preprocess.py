"""From a picture to a model input, and what is needed to map coordinates back.

One declaration, `Preprocess`, drives calibration, evaluation and the pipeline on a device. Resizing is Pillow's: every
filter but nearest averages over all source pixels that fall into one target pixel (antialiasing). OpenCV's bilinear
reads two taps only, so shrunk pictures differ from it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .dataset import Preprocess
from .errors import InputError, did_you_mean
from .model import TensorSpec

if TYPE_CHECKING:
    from PIL.Image import Image

DTYPES = ("float32", "float16", "float64", "uint8", "int8", "uint16", "int16", "int32", "int64")
"""Results that `apply` can produce."""

_EXAMPLES = {
    "size": "e.g. size: [224, 224]",
    "crop_fraction": "e.g. crop_fraction: 0.875",
    "pad_value": "e.g. pad_value: 114",
    "scale": "e.g. scale: 1/255",
    "mean": "e.g. mean: 0.5",
    "std": "e.g. std: 0.5",
}
"""For hints."""

_FILTERS = {"bilinear": "BILINEAR", "bicubic": "BICUBIC", "nearest": "NEAREST", "area": "BOX"}
_MODES = frozenset(("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "LAB", "HSV"))


def open_picture(path: Path) -> Image:
    """Decode a picture file, upright (its EXIF orientation applied), as 8-bit RGB or grey.

    An alpha channel is dropped, not composed onto a background.

    Raises:
        InputError: data.missing, data.picture.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            if opened.mode not in _MODES:
                raise InputError(
                    "data.picture",
                    str(path),
                    f"has pixels of mode {opened.mode}; expected 8 bits per channel",
                    "convert it to 8-bit PNG or JPEG, or give arrays as .npz",
                )
            upright = ImageOps.exif_transpose(opened)
            return upright.convert("L" if upright.mode in ("1", "L") else "RGB")
    except FileNotFoundError as e:
        raise InputError("data.missing", str(path), "no such picture", "check the path in the data set") from e
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as e:
        problem = " ".join(str(e).split()).replace(str(path), path.name)
        raise InputError(
            "data.picture",
            str(path),
            f"cannot be decoded as a picture: {problem}",
            "replace or remove the file",
        ) from e


def apply(
    picture: Image | NDArray[np.uint8], spec: Preprocess, subject: str = "picture"
) -> tuple[NDArray[Any], dict[str, Any]]:
    """Make a model input, without a batch dimension.

    Args:
        picture: A Pillow image, or uint8 [H, W, 3] RGB, [H, W, 1] or [H, W]; channels may come first where that is
            plain from the shape: [3, H, W] or [1, H, W] with a W of neither 1 nor 3.
        spec: The steps.
        subject: What errors call the picture.

    Returns:
        The array, [C, H, W] or [H, W, C], and ``meta``: ``size`` of the picture, ``input`` size (both height, width),
        ``scale`` and ``pad`` (both y, x) with input coordinate = picture coordinate × scale + pad, in pixels. ``pad``
        is negative where the picture was cropped.

    Raises:
        InputError: preprocess.value (settings), data.mismatch (not a uint8 picture).
    """
    check(spec)
    image = _image(picture, subject).convert("L" if spec.colour == "gray" else "RGB")
    width, height = image.size
    pixels, scale, pad = _resized(image, spec)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if spec.colour == "bgr":
        pixels = pixels[:, :, ::-1]
    meta = {"size": (height, width), "input": pixels.shape[:2], "scale": scale, "pad": pad}
    values: NDArray[Any] = pixels.astype(np.float32) * np.float32(spec.scale)
    values = (values - np.asarray(spec.mean, np.float32)) / np.asarray(spec.std, np.float32)
    dtype = np.dtype(spec.dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = np.clip(np.rint(values.astype(np.float64)), limits.min, limits.max)
    if spec.layout == "nchw":
        values = values.transpose(2, 0, 1)
    return np.ascontiguousarray(values.astype(dtype)), meta


def check(spec: Preprocess, subject: str = "preprocess") -> None:
    """Refuse settings that make no sense.

    Args:
        spec: The settings.
        subject: What errors call them.

    Raises:
        InputError: preprocess.value.
    """

    def bad(key: str, value: Any, expected: str) -> InputError:
        shown = list(value) if isinstance(value, tuple) else value
        return InputError("preprocess.value", f"{subject}.{key}", f"is {shown}; expected {expected}", _EXAMPLES[key])

    if spec.dtype not in DTYPES:
        raise InputError("preprocess.value", f"{subject}.dtype", f"is {spec.dtype!r}", did_you_mean(spec.dtype, DTYPES))
    if spec.size is not None and min(spec.size) < 1:
        raise bad("size", spec.size, "two whole numbers of at least 1: [height, width]")
    if not 0 < spec.crop_fraction <= 1:
        raise bad("crop_fraction", spec.crop_fraction, "above 0, at most 1")
    if not 0 <= spec.pad_value <= 255:
        raise bad("pad_value", spec.pad_value, "0..255, a pixel value before scale, mean and std")
    if not math.isfinite(spec.scale) or spec.scale == 0:
        raise bad("scale", spec.scale, "a finite number other than 0")
    channels = 1 if spec.colour == "gray" else 3
    for key, values in (("mean", spec.mean), ("std", spec.std)):
        if len(values) not in (1, channels):
            raise bad(key, values, f"1 or {channels} values for colour {spec.colour!r}")
    if any(s <= 0 or not math.isfinite(s) for s in spec.std):
        raise bad("std", spec.std, "values above 0")


def guess(
    spec: Preprocess | None, model_input: TensorSpec, resize: str = "stretch", left_out: Collection[str] = ()
) -> Preprocess:
    """Fill in what the model's input tells: layout, size, channels and dtype.

    Where nothing was declared, float inputs get pixels / 255 and integer inputs the pixels themselves. That is the most
    common convention, not a fact about the model: show the result to the user. Given fields win. ``scale``, ``mean``
    and ``std`` belong together: where one of them is given, the others are 1, 0 and 1.

    Args:
        spec: What was declared; a missing ``size`` is always filled in.
        model_input: The model's picture input, rank 3 or 4.
        resize: How to resize where that is left open.
        left_out: Fields of ``spec`` that were not declared.

    Raises:
        InputError: preprocess.guess, when nothing was declared and the input does not look like a picture.
    """
    shape = model_input.shape or ()
    spatial, channels, layout = _picture_axes(shape, "" if spec is None or "layout" in left_out else spec.layout)
    size: tuple[int, int] | None = None
    height, width = (shape[i] for i in spatial) if spatial else ("?", "?")
    if isinstance(height, int) and isinstance(width, int):
        size = (height, width)
    if spec is None and not spatial:
        raise InputError(
            "preprocess.guess",
            f"input {model_input}",
            "does not look like a picture; expected 1 or 3 channels, height and width",
            "declare it in a data file, e.g.  preprocess: {size: [224, 224], colour: rgb, scale: 1/255}",
        )
    integer = model_input.dtype in ("uint8", "int8")
    dtype = model_input.dtype if integer else "float32"
    if spec is None:
        return settings_for(resize, size, channels, layout, dtype, integer)
    if "dtype" not in left_out:
        dtype, integer = spec.dtype, np.dtype(spec.dtype).kind in "iu" if spec.dtype in DTYPES else False
    guessed = settings_for(resize, spec.size or size, channels, layout, dtype, integer)
    values = {"scale", "mean", "std"}
    wanted = {"resize", "dtype"} | ({"colour", "layout"} if spatial else set())
    wanted |= values if values <= set(left_out) else set()
    spec = replace(spec, **{name: getattr(guessed, name) for name in wanted & set(left_out)})
    return replace(spec, size=size) if spec.size is None and spec.resize != "none" and size else spec


def settings_for(
    resize: str, size: tuple[int, int] | None, channels: int, layout: str, dtype: str, integer: bool
) -> Preprocess:
    """The most common convention for a picture input: pixels / 255 for floats, pixels for integers."""
    fields: Mapping[str, Any] = {"resize": resize if size else "none", "layout": layout, "dtype": dtype}
    mean = (128.0,) if dtype == "int8" else (0.0,)
    colour: Any = "gray" if channels == 1 else "rgb"
    return Preprocess(size=size, colour=colour, scale=1.0 if integer else 1 / 255, mean=mean, **fields)


def _picture_axes(shape: tuple[int | str, ...], given: str = "") -> tuple[tuple[int, int] | None, int, str]:
    """(height axis, width axis), channels and layout; None when no axis has 1 or 3 channels, or not in that layout."""
    first = len(shape) - 3
    if first in (0, 1):
        for axis, spatial, layout in (
            (first, (first + 1, first + 2), "nchw"),
            (first + 2, (first, first + 1), "nhwc"),
        ):
            channels = shape[axis]
            if isinstance(channels, int) and channels in (1, 3) and given in ("", layout):
                return spatial, channels, layout
    return None, 0, "nchw"


def _image(picture: Image | NDArray[np.uint8], subject: str) -> Image:
    from PIL import Image

    if isinstance(picture, Image.Image):
        return picture
    array = np.asarray(picture)
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    grey = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 1)
    if array.dtype != np.uint8 or not (grey or (array.ndim == 3 and array.shape[2] == 3)) or array.size == 0:
        raise InputError(
            "data.mismatch",
            subject,
            f"is {array.dtype}{list(np.shape(picture))}; preprocessing expects uint8 [H, W, 3], [H, W, 1] or [H, W]",
            "leave preprocess out for arrays that are model inputs already",
        )
    return Image.fromarray(array.reshape(array.shape[:2]) if grey else np.ascontiguousarray(array))


def _resized(image: Image, spec: Preprocess) -> tuple[NDArray[Any], tuple[float, float], tuple[float, float]]:
    """Pixels at the target size, with scale and pad as (y, x)."""
    width, height = image.size
    if spec.size is None or spec.resize == "none":
        return np.asarray(image), (1.0, 1.0), (0.0, 0.0)
    target_h, target_w = spec.size
    new_h, new_w = _new_size(height, width, spec)
    from PIL import Image

    image = image.resize((new_w, new_h), Image.Resampling[_FILTERS[spec.interpolation]])
    pixels = np.asarray(image)
    scale = (new_h / height, new_w / width)
    if spec.resize == "stretch":
        return pixels, scale, (0.0, 0.0)
    if spec.resize == "crop":
        top, left = (new_h - target_h) // 2, (new_w - target_w) // 2
        return pixels[top : top + target_h, left : left + target_w], scale, (-float(top), -float(left))
    top, left = (0, 0) if spec.resize == "pad_right" else ((target_h - new_h) // 2, (target_w - new_w) // 2)
    canvas = np.full((target_h, target_w, *pixels.shape[2:]), spec.pad_value, np.float32)
    canvas[top : top + new_h, left : left + new_w] = pixels
    return canvas, scale, (float(top), float(left))


def _new_size(height: int, width: int, spec: Preprocess) -> tuple[int, int]:
    """(height, width) that the picture is resized to, before padding or cropping."""
    assert spec.size is not None
    target_h, target_w = spec.size
    if spec.resize == "letterbox":
        ratio = min(target_h / height, target_w / width)
        return max(1, min(target_h, round(height * ratio))), max(1, min(target_w, round(width * ratio)))
    if spec.resize == "crop":
        ratio = max(target_h / height, target_w / width) / spec.crop_fraction
        return max(target_h, round(height * ratio)), max(target_w, round(width * ratio))
    if spec.resize == "pad_right":
        return target_h, max(1, min(target_w, math.ceil(width * target_h / height)))
    return target_h, target_w
