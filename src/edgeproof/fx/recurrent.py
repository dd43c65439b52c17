"""Recurrent layers, step by step: every direction, layout, activation, peephole and length that ONNX has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .call import Call, Handler
from .values import Value

DEFAULT = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
"""Activations of one direction."""


def layer(kind: str) -> Handler:
    """RNN, GRU or LSTM."""

    def handler(n: Call) -> Sequence[Value]:
        given = [n.inputs[i] if i < len(n.inputs) else None for i in range(8)]
        x, w, r, b, lengths, h, c, p = given
        direction = n.attr("direction", "forward")
        directions = 2 if direction == "bidirectional" else 1
        functions = tuple(n.attr("activations") or DEFAULT[kind] * directions)
        unknown = [f for f in functions if f not in _ACTIVATIONS]
        if unknown or n.attr("activation_alpha") or n.attr("activation_beta"):
            raise n.refused(
                f"uses activations {', '.join(functions)} with parameters of their own",
                f"use {', '.join(_ACTIVATIONS)}",
            )
        how = (
            kind, direction, functions, n.attr("clip"), bool(n.attr("linear_before_reset", 0)),
            bool(n.attr("input_forget", 0)), n.attr("layout", 0),
        )  # fmt: skip
        return n.calls(recurrent, 3 if kind == "LSTM" else 2, x, w, r, b, lengths, h, c, p, how)

    return handler


_ACTIVATIONS = ("Sigmoid", "Tanh", "Relu", "Softsign", "Softplus")


def _function(name: str) -> Callable[[Any], Any]:
    import torch

    if name in ("Softsign", "Softplus"):
        found: Callable[[Any], Any] = getattr(torch.nn.functional, name.lower())
        return found
    plain: Callable[[Any], Any] = getattr(torch, name.lower())
    return plain


def recurrent(
    x: Any, w: Any, r: Any, b: Any, lengths: Any, h: Any, c: Any, p: Any, how: tuple[Any, ...]
) -> tuple[Any, ...]:
    """A recurrent layer.

    Args:
        x: Inputs [steps, batch, features]; with layout 1 the batch comes first.
        w: Weights of the inputs [directions, gates × hidden, features].
        r: Weights of the state [directions, gates × hidden, hidden].
        b: Biases of both [directions, 2 × gates × hidden], or None.
        lengths: Steps of each sample [batch], or None.
        h: First state [directions, batch, hidden], or None.
        c: First cell, as `h`; LSTM only.
        p: Peepholes [directions, 3 × hidden], or None; LSTM only.
        how: kind, direction, activations, clip, linear_before_reset, input_forget, layout.

    Returns:
        All states [steps, directions, batch, hidden], the last state and, for LSTM, the last cell.

    Source: ONNX RNN-14, GRU-14, LSTM-14.
    """
    import torch

    kind, direction, functions, _, _, _, layout = how
    if layout:
        x = x.transpose(0, 1)
        h, c = (None if t is None else t.transpose(0, 1) for t in (h, c))
    count, hidden, batch = w.shape[0], r.shape[-1], x.shape[1]
    outputs, states, cells = [], [], []
    each = len(functions) // count
    for d in range(count):
        gates = w.shape[1]
        bias = x.new_zeros(2 * gates) if b is None else b[d]
        state = x.new_zeros(batch, hidden) if h is None else h[d]
        cell = x.new_zeros(batch, hidden) if c is None else c[d]
        peepholes = x.new_zeros(3 * hidden) if p is None else p[d]
        back = direction == "reverse" or d == 1
        acts = [_function(f) for f in functions[d * each : (d + 1) * each]]
        weights = (w[d], r[d], bias[:gates], bias[gates:], peepholes)
        y, state, cell = _one_way(kind, x, lengths, state, cell, weights, acts, back, how)
        outputs.append(y)
        states.append(state)
        cells.append(cell)
    y, last, last_cell = torch.stack(outputs, 1), torch.stack(states), torch.stack(cells)
    if layout:
        y, last, last_cell = y.permute(2, 0, 1, 3), last.transpose(0, 1), last_cell.transpose(0, 1)
    return (y, last, last_cell) if kind == "LSTM" else (y, last)


def _one_way(
    kind: str, x: Any, lengths: Any, state: Any, cell: Any, weights: Any, acts: Any, back: bool, how: tuple[Any, ...]
) -> tuple[Any, Any, Any]:
    import torch

    step = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}[kind]
    made: list[Any] = []
    steps = range(x.shape[0])
    for t in reversed(steps) if back else steps:
        new, new_cell = step(x[t], state, cell, weights, acts, how)
        out = new
        if lengths is not None:  # a sample that has ended, or not begun, keeps its state
            on = (t < lengths)[:, None]
            out = torch.where(on, new, torch.zeros_like(new))
            new, new_cell = torch.where(on, new, state), torch.where(on, new_cell, cell)
        state, cell = new, new_cell
        made.append(out)
    return torch.stack(made[::-1] if back else made), state, cell


def _clipped(x: Any, clip: float | None) -> Any:
    return x if not clip else x.clamp(-clip, clip)


def _rnn(x: Any, h: Any, c: Any, weights: Any, acts: Any, how: tuple[Any, ...]) -> tuple[Any, Any]:
    w, r, wb, rb, _ = weights
    return acts[0](_clipped(x @ w.t() + h @ r.t() + wb + rb, how[3])), c


def _gru(x: Any, h: Any, c: Any, weights: Any, acts: Any, how: tuple[Any, ...]) -> tuple[Any, Any]:
    w, r, wb, rb, _ = weights
    wz, wr, wh = (x @ w.t() + wb).chunk(3, -1)
    (rz, rr, rh), (bz, br, bh) = r.chunk(3, 0), rb.chunk(3, 0)
    update = acts[0](_clipped(wz + h @ rz.t() + bz, how[3]))
    reset = acts[0](_clipped(wr + h @ rr.t() + br, how[3]))
    old = reset * (h @ rh.t() + bh) if how[4] else (reset * h) @ rh.t() + bh
    new = acts[1](_clipped(wh + old, how[3]))
    return (1 - update) * new + update * h, c


def _lstm(x: Any, h: Any, c: Any, weights: Any, acts: Any, how: tuple[Any, ...]) -> tuple[Any, Any]:
    w, r, wb, rb, peepholes = weights
    i, o, f, g = (x @ w.t() + h @ r.t() + wb + rb).chunk(4, -1)
    pi, po, pf = peepholes.chunk(3, 0)
    enter = acts[0](_clipped(i + pi * c, how[3]))
    forget = 1 - enter if how[5] else acts[0](_clipped(f + pf * c, how[3]))
    cell = forget * c + enter * acts[1](_clipped(g, how[3]))
    leave = acts[0](_clipped(o + po * cell, how[3]))
    return leave * acts[2](cell), cell


OPERATORS: dict[str, Handler] = {"RNN": layer("RNN"), "GRU": layer("GRU"), "LSTM": layer("LSTM")}
