"""Products of matrices."""

from __future__ import annotations

from . import composed
from .call import Call, Handler
from .values import Value


def matmul(n: Call) -> Value:
    """MatMul."""
    if n.floating() or n.dtype() is None:
        return n.call(n.torch.matmul, n[0], n[1])
    return n.call(composed.integer_matmul, n[0], n[1], n.dtype())


def gemm(n: Call) -> Value:
    """Gemm; a linear layer where it is one."""
    alpha, beta = n.attr("alpha", 1.0), n.attr("beta", 1.0)
    flip_a, flip_b = n.attr("transA", 0), n.attr("transB", 0)
    bias = n[2] if n.has(2) else None
    shape = n.build.shape(bias) if bias is not None else None
    if not n.floating():
        return n.call(composed.integer_gemm, n[0], n[1], bias, alpha, beta, bool(flip_a), bool(flip_b))
    plain = alpha == beta == 1.0 and not flip_a and (bias is None or (shape is not None and len(shape) == 1))
    if plain and flip_b:
        return n.call(n.functional.linear, n[0], n[1], bias)
    a = n.call(n.torch.t, n[0]) if flip_a else n[0]
    b = n.call(n.torch.t, n[1]) if flip_b else n[1]
    if bias is not None:
        return n.call(n.torch.addmm, bias, a, b, beta=beta, alpha=alpha)
    made = n.call(n.torch.mm, a, b)
    return made if alpha == 1.0 else n.call(n.torch.mul, made, alpha)


def einsum(n: Call) -> Value:
    """Einsum."""
    equation = n.attr("equation").replace(" ", "")
    if n.floating():
        return n.call(n.torch.einsum, equation, *(n[i] for i in range(len(n.inputs))))
    return n.call(composed.integer_einsum, equation, *(n[i] for i in range(len(n.inputs))))


def det(n: Call) -> Value:
    """Det."""
    return n.call(n.torch.linalg.det, n[0])


def matmul_integer(n: Call) -> Value:
    """MatMulInteger: exact in float64, whose integers reach to 2^53."""
    zeros = [n[i] if n.has(i) else None for i in (2, 3)]
    return n.call(composed.matmul_integer, n[0], n[1], *zeros)


OPERATORS: dict[str, Handler] = {
    "MatMul": matmul,
    "Gemm": gemm,
    "Einsum": einsum,
    "Det": det,
    "MatMulInteger": matmul_integer,
}
