"""Messages between the supervisor and the model's process."""

from __future__ import annotations

import os

import numpy as np
import pytest

from edgeproof.errors import InputError
from edgeproof.frames import EndedError, Frame, receive, send


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read, write
    for fd in (read, write):
        try:
            os.close(fd)
        except OSError:
            continue


def framed(head: bytes, rest: bytes = b"") -> bytes:
    return len(head).to_bytes(4, "big") + head + rest


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool", ">f4"])
def test_arrays_arrive_as_they_were_sent(pipe, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    send(pipe[1], Frame({"n": 1}, {"a": array, "empty": array[:0], "scalar": array[0, 0]}))
    got = receive(pipe[0], 5.0)
    assert got.head == {"n": 1}
    np.testing.assert_array_equal(got.arrays["a"], array)
    assert (got.arrays["empty"].shape, got.arrays["scalar"].shape) == ((0, 3), ())


def test_objects_are_never_sent(pipe):
    with pytest.raises(InputError) as caught:
        send(pipe[1], Frame({}, {"a": np.array([{}], dtype=object)}))
    assert caught.value.code == "serve.dtype"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        b"\xff\xff\xff\xff",
        framed(b"no json"),
        framed(b"[]"),
        framed(b'{"head":{}}'),
        framed(b'{"head":{},"arrays":[{"name":"a","dtype":"|O","shape":[1]}]}', bytes(8)),
        framed(b'{"head":{},"arrays":[{"name":"a","dtype":"<f4","shape":[1000000000000]}]}'),
        framed(b'{"head":{},"arrays":[{"name":"a","dtype":"<f4","shape":[-1]}]}'),
        framed(b'{"head":{},"arrays":[{"name":"a","dtype":"nonsense","shape":[1]}]}'),
        framed(b'{"head":{},"arrays":[{"name":"a","dtype":"<f4","shape":[2]}]}', bytes(4)),
    ],
)
def test_what_is_no_whole_frame_ends_the_conversation(pipe, data):
    os.write(pipe[1], data)
    os.close(pipe[1])
    with pytest.raises(EndedError):
        receive(pipe[0], 5.0)


def test_silence_ends_it_too(pipe):
    with pytest.raises(EndedError, match="in time"):
        receive(pipe[0], 0.01)
