"""Writes tests/ir/witness/*.rsx: what eager PyTorch computes for primitive ops, as fixtures for the interpreter.

The interpreter is the oracle of every backend; this is the independent witness of the interpreter. Run it when the
set of cases changes (the fixtures are committed, tests need no PyTorch):

    python tests/witness/gen.py
"""
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

OUT = pathlib.Path(__file__).resolve().parents[1] / "ir" / "witness"
NAMES = {
    torch.bool: "i1", torch.uint8: "ui8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32",
    torch.int64: "i64", torch.uint16: "ui16", torch.uint32: "ui32", torch.uint64: "ui64",
    torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64",
}
nan, inf = math.nan, math.inf
f64, f32, bf16, f16, i64, i32 = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)

files: dict[str, list[str]] = {}


def type_of(t):
    return "tensor<" + "".join(f"{n}x" for n in t.shape) + NAMES[t.dtype] + ">"


def element(v, dtype):
    if dtype == torch.bool:
        return "true" if v else "false"
    if not dtype.is_floating_point:
        return str(int(v))
    if math.isnan(v):
        return "nan"
    if math.isinf(v):
        return "inf" if v > 0 else "-inf"
    # The shortest form that reads back exactly; 16-bit floats are exact as f32.
    return str(np.float64(v)) if dtype == f64 else str(np.float32(v))


def nested(v, dtype):
    if isinstance(v, list):
        return "[" + ", ".join(nested(x, dtype) for x in v) + "]"
    return element(v, dtype)


def literal(t):
    text = nested(t.tolist(), t.dtype) if t.numel() else "[]"
    return f"dense<{text}> : {type_of(t)}"


def case(file, name, op, args, results, attrs="", extra=()):
    """One instruction `op` on tensors `args` (then runtime scalars `extra`) and PyTorch's results."""
    results = results if isinstance(results, (list, tuple)) else [results]
    params = [f"%{i}: {type_of(t)}" for i, t in enumerate(args)]
    for s in extra:
        params.append(f"%{len(params)}: scalar<{NAMES[s.dtype]}>")
    n, k = len(params), len(results)
    operands = ", ".join(f"%{i}" for i in range(n))
    lines = files.setdefault(file, [])
    lines.append(f"func @{name}({', '.join(params)}) {{")
    head = f"%{n}" if k == 1 else f"%{n}:{k}"
    attrs = f" {{{attrs}}}" if attrs else ""
    lines.append(f"  {head} = {op} {operands}{attrs} : {', '.join(type_of(t) for t in results)}")
    lines.append(f"  return {', '.join(f'%{n + i}' for i in range(k))}")
    lines.append("}")
    call = ", ".join(literal(t) for t in [*args, *extra])
    lines.append(f"// run: @{name}({call}) ~= {', '.join(literal(t) for t in results)}")
    lines.append("")


def rand(*shape, dtype=f32, lo=-2.0, hi=2.0):
    """Multiples of 1/8: short in text and exact in every float type."""
    return (torch.rand(shape, dtype=f64) * (hi - lo) + lo).mul(8).round().div(8).to(dtype)


def unary():
    special = [nan, inf, -inf, -0.0, 0.0]
    grid = [-7.5, -3.25, -2.5, -1.5, -1.0, -0.75, -0.5, -0.125, -1e-5, 1e-9, 0.125, 0.5, 0.7, 0.75, 0.99, 1.0, 1.5, 2.5,
            3.25, 9.75, 20.0]
    ops = {
        "abs": torch.abs, "negate": torch.neg, "sign": torch.sgn, "exponential": torch.exp,
        "exponential_minus_one": torch.expm1, "log": torch.log, "log_plus_one": torch.log1p, "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt, "sine": torch.sin, "cosine": torch.cos, "tan": torch.tan, "tanh": torch.tanh,
        "logistic": torch.sigmoid, "erf": torch.erf, "erfc": torch.erfc, "erf_inv": torch.erfinv,
        "lgamma": torch.lgamma, "digamma": torch.digamma, "asin": torch.asin, "acos": torch.acos, "atan": torch.atan,
        "sinh": torch.sinh, "cosh": torch.cosh, "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh,
        "floor": torch.floor, "ceil": torch.ceil, "round_nearest_even": torch.round, "trunc": torch.trunc,
        "is_finite": torch.isfinite,
    }
    for op, f in ops.items():
        for dtype in (f64, f32, bf16):
            # PyTorch's sign of NaN is 0; the primitive's is NaN.
            x = torch.tensor(special[op == "sign":] + grid, dtype=f64).to(dtype)
            case("unary", f"{op}_{NAMES[dtype]}", op, [x], f(x))
    big = torch.tensor([1e5, -12345.678, 1e22, 710.0, -745.0, 1e-300, 1e300, 3e7], dtype=f64)
    for op in ("sine", "cosine", "tan", "exponential", "tanh", "lgamma", "erfc", "log", "asinh", "rsqrt"):
        case("unary", f"{op}_large", op, [big], ops[op](big))
    case("unary", "not_i32", "not", [torch.tensor([0, 5, -1], dtype=i32)], torch.tensor([-1, -6, 0], dtype=i32))
    case("unary", "abs_i64", "abs", [torch.tensor([0, 5, -7])], torch.tensor([0, 5, 7]))


def binary():
    v = torch.tensor([nan, inf, -inf, -0.0, 0.0, 1.0, -1.0, 2.5, -2.5, 0.5, 3.0, -3.0], dtype=f64)
    x, y = (t.flatten() for t in torch.meshgrid(v, v, indexing="ij"))
    ops = {
        "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.div, "remainder": torch.fmod,
        "power": torch.pow, "maximum": torch.maximum, "minimum": torch.minimum, "atan2": torch.atan2,
        "next_after": torch.nextafter,
    }
    for op, f in ops.items():
        case("binary", f"{op}_special", op, [x, y], f(x, y))
        for dtype in (f32, bf16):
            a, b = rand(7, dtype=dtype), rand(7, dtype=dtype)
            case("binary", f"{op}_{NAMES[dtype]}", op, [a, b], f(a, b))
    for d, f in {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}.items():
        case("binary", f"compare_{d}", "compare", [x, y], f(x, y), f"direction = {d}")
    a = torch.tensor([7, -7, 7, -7, 100, -128, 3], dtype=torch.int8)
    b = torch.tensor([2, 2, -2, -2, 3, 2, 5], dtype=torch.int8)
    ints = {
        "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "remainder": torch.fmod,
        "divide": lambda p, q: torch.div(p, q, rounding_mode="trunc"), "maximum": torch.maximum,
        "minimum": torch.minimum, "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    }
    for op, f in ints.items():
        case("binary", f"{op}_i8", op, [a, b], f(a, b))
    s = torch.tensor([0, 1, 2, 7, 3, 1, 31], dtype=i32)
    w = torch.tensor([1, -1, 5, -100, 2**30, -(2**31), -5], dtype=i32)
    case("binary", "shift_left_i32", "shift_left", [w, s], torch.bitwise_left_shift(w, s))
    case("binary", "shift_right_i32", "shift_right", [w, s], torch.bitwise_right_shift(w, s))
    e = torch.tensor([0, 1, 2, 3, 4, 5, 7])
    case("binary", "power_i64", "power", [w.long(), e], w.long() ** e)
    p = torch.tensor([True, False, True])
    a, b = torch.tensor([nan, 1.0, 2.0]), torch.tensor([4.0, -0.0, inf])
    case("binary", "select", "select", [p, a, b], torch.where(p, a, b))


def convert():
    x = torch.tensor([0.0, -0.0, 1.9, -1.9, 100.5, 3e-5, 0.1, 65519.0, 1e-40], dtype=f64)
    for to in (f32, bf16, f16, torch.bool):
        case("convert", f"f64_to_{NAMES[to]}", "convert", [x], x.to(to))
    y = x[:7].float()
    for to in (torch.int8, i32, i64, f64, bf16):
        case("convert", f"f32_to_{NAMES[to]}", "convert", [y], y.to(to))
    z = torch.tensor([16777217, 2**53 + 1, -(2**63), 300, -1, 0])
    for to in (f32, f64, bf16, i32, torch.uint8, torch.int8, torch.bool):
        case("convert", f"i64_to_{NAMES[to]}", "convert", [z], z.to(to))
    b = torch.tensor([True, False])
    for to in (f32, torch.uint8):
        case("convert", f"i1_to_{NAMES[to]}", "convert", [b], b.to(to))
    w = torch.tensor([1.0, -2.5, -0.0], dtype=f32)
    case("convert", "bits_f32", "bitcast_convert", [w], w.view(i32))
    case("convert", "bits_bf16", "bitcast_convert", [w.bfloat16()], w.bfloat16().view(torch.int16))


def movement():
    x = rand(3, 4)
    r = rand(3, 1)
    case("movement", "broadcast", "broadcast_in_dim", [r], r.expand(2, 3, 4).contiguous(), "dims = [1, 2]")
    case("movement", "reshape", "reshape", [x], x.reshape(2, 6))
    t = rand(2, 3, 4)
    case("movement", "transpose", "transpose", [t], t.permute(2, 0, 1).contiguous(), "dims = [2, 0, 1]")
    case("movement", "slice", "slice", [t], t[:, 1:, 0:4:3].contiguous(), "start = [0, 1, 0], limit = [2, 3, 4], stride = [1, 1, 3]")
    v = torch.tensor(9.0)
    case("movement", "pad", "pad", [x, v], F.pad(x, (1, 2, 0, 1), value=9.0), "lo = [0, 1], hi = [1, 2], interior = [0, 0]")
    case("movement", "pad_negative", "pad", [x, v], F.pad(x, (-1, 2, 1, -2), value=9.0),
         "lo = [1, -1], hi = [-2, 2], interior = [0, 0]")
    wide = torch.full((3, 11), 9.0)
    wide[:, 1:11:3] = x
    case("movement", "pad_interior", "pad", [x, v], wide, "lo = [0, 1], hi = [0, 0], interior = [0, 2]")
    case("movement", "concatenate", "concatenate", [x, r], torch.cat([x, r], 1), "dim = 1")
    case("movement", "reverse", "reverse", [t], t.flip(0, 2), "dims = [0, 2]")
    case("movement", "iota", "iota", [], torch.arange(4).expand(2, 4).contiguous(), "dim = 1")
    start = torch.tensor(2)
    one = torch.tensor(1)
    case("movement", "dynamic_slice", "dynamic_slice", [x], x[1:3, 2:4].contiguous(), extra=[one, start])


def indexing():
    x, i = rand(5, 3), torch.tensor([4, 0, 4, 2])
    case("indexing", "index_select", "gather", [x, i], x.index_select(0, i), "dims = [0]")
    y, j = rand(3, 5), torch.tensor([[1, 4], [0, 0]])
    case("indexing", "columns", "gather", [y, j], y[:, j].permute(1, 2, 0).contiguous(), "dims = [1]")
    z, a, b = rand(4, 2, 5), torch.tensor([3, 0, 1]), torch.tensor([4, 4, 0])
    case("indexing", "around_a_slice", "gather", [z, a, b], z[a, :, b], "dims = [0, 2]")
    u = rand(4, 3)
    case("indexing", "index_add", "scatter", [x, i, u], x.index_add(0, i, u), "kind = add, dims = [0]")
    once = torch.tensor([4, 0, 1, 2])
    case("indexing", "index_copy", "scatter", [x, once, u], x.index_copy(0, once, u), "kind = set, dims = [0]")
    for kind, how in {"mul": "prod", "max": "amax", "min": "amin"}.items():
        case("indexing", f"index_reduce_{kind}", "scatter", [x, i, u], x.index_reduce(0, i, u, how),
             f"kind = {kind}, dims = [0]")
    p, q, w = torch.tensor([0, 4, 0]), torch.tensor([1, 2, 1]), rand(3)
    case("indexing", "index_put", "scatter", [x, p, q, w], x.index_put((p, q), w, accumulate=True),
         "kind = add, dims = [0, 1]")
    k = torch.tensor([3, -2, 3], dtype=i32)
    case("indexing", "index_add_i32", "scatter", [torch.arange(5, dtype=i32), p, k],
         torch.arange(5, dtype=i32).index_add(0, p, k), "kind = add, dims = [0]")


def reductions():
    for dtype in (f64, f32, bf16, i32):
        x = rand(2, 3, 4, dtype=f64).to(dtype)
        keep = (lambda t: t.to(x.dtype))
        case("reductions", f"sum_{NAMES[dtype]}", "reduce", [x], keep(x.sum((0, 2))), "kind = sum, dims = [0, 2]")
        case("reductions", f"prod_{NAMES[dtype]}", "reduce", [x], keep(x.prod(1)), "kind = prod, dims = [1]")
        case("reductions", f"max_{NAMES[dtype]}", "reduce", [x], x.amax((1, 2)), "kind = max, dims = [1, 2]")
        case("reductions", f"min_{NAMES[dtype]}", "reduce", [x], x.amin(0), "kind = min, dims = [0]")
        case("reductions", f"argmax_{NAMES[dtype]}", "arg_reduce", [x], x.argmax(2), "max = true, dim = 2")
        case("reductions", f"argmin_{NAMES[dtype]}", "arg_reduce", [x], x.argmin(0), "max = false, dim = 0")
        case("reductions", f"cumsum_{NAMES[dtype]}", "cumulative", [x], keep(x.cumsum(1)), "kind = sum, dim = 1")
        case("reductions", f"cumprod_{NAMES[dtype]}", "cumulative", [x], keep(x.cumprod(2)), "kind = prod, dim = 2")
        case("reductions", f"cummax_{NAMES[dtype]}", "cumulative", [x], x.cummax(1)[0], "kind = max, dim = 1")
        case("reductions", f"cummin_{NAMES[dtype]}", "cumulative", [x], x.cummin(2)[0], "kind = min, dim = 2")
        if dtype.is_floating_point:
            case("reductions", f"logcumsumexp_{NAMES[dtype]}", "cumulative", [x], x.logcumsumexp(2), "kind = logsumexp, dim = 2")
    n = torch.tensor([[1.0, nan, 3.0, nan], [inf, -inf, 2.0, inf], [-inf, -inf, -inf, -inf]])
    case("reductions", "sum_special", "reduce", [n], n.sum(1), "kind = sum, dims = [1]")
    case("reductions", "max_special", "reduce", [n], n.amax(1), "kind = max, dims = [1]")
    case("reductions", "min_special", "reduce", [n], n.amin(1), "kind = min, dims = [1]")
    case("reductions", "argmax_special", "arg_reduce", [n], n.argmax(1), "max = true, dim = 1")
    case("reductions", "argmin_special", "arg_reduce", [n], n.argmin(1), "max = false, dim = 1")
    case("reductions", "cummax_special", "cumulative", [n], n.cummax(1)[0], "kind = max, dim = 1")
    case("reductions", "logcumsumexp_special", "cumulative", [n], n.logcumsumexp(1), "kind = logsumexp, dim = 1")
    b = torch.tensor([[True, False], [True, True], [False, False]])
    case("reductions", "all", "reduce", [b], b.all(1), "kind = and, dims = [1]")
    case("reductions", "any", "reduce", [b], b.any(1), "kind = or, dims = [1]")


def pools():
    x = rand(1, 2, 6, 7)
    plane = "size = [1, 1, 3, 2], stride = [1, 1, 2, 2]"

    def max_pool(name, t, attrs, result):
        case("pools", name, "max_pool_with_index", [t], list(result), f"kind = max, {attrs}")

    max_pool("max_pool2d", x, plane, F.max_pool2d(x, (3, 2), 2, return_indices=True))
    max_pool("max_pool2d_padded", x, "size = [1, 1, 3, 3], stride = [1, 1, 2, 1], pad_lo = [0, 0, 1, 1], pad_hi = [0, 0, 1, 1]",
             F.max_pool2d(x, 3, (2, 1), 1, return_indices=True))
    max_pool("max_pool2d_dilated", x, "size = [1, 1, 2, 3], stride = [1, 1, 2, 2], window_dilation = [1, 1, 2, 2]",
             F.max_pool2d(x, (2, 3), 2, 0, 2, return_indices=True))
    # Ceil mode: the last window hangs over the edge.
    y = rand(2, 3, 7)
    max_pool("max_pool1d_ceil", y, "size = [1, 1, 4], stride = [1, 1, 2], pad_hi = [0, 0, 1]",
             F.max_pool1d(y, 4, 2, ceil_mode=True, return_indices=True))
    z = rand(1, 2, 4, 4, 4, dtype=f64)
    max_pool("max_pool3d", z, "size = [1, 1, 2, 2, 2], stride = [1, 1, 2, 2, 2]", F.max_pool3d(z, 2, return_indices=True))
    n = torch.tensor([[[[1.0, nan, 2.0, 5.0], [nan, 3.0, -inf, 5.0]], [[-inf, -inf, 0.0, -0.0], [-inf, -inf, -0.0, 0.0]]]])
    max_pool("max_pool2d_special", n, "size = [1, 1, 2, 2], stride = [1, 1, 2, 2]", F.max_pool2d(n, 2, return_indices=True))
    case("pools", "sum_pool2d", "reduce_window", [x], F.avg_pool2d(x, (3, 2), 2, (1, 1), divisor_override=1),
         "kind = sum, size = [1, 1, 3, 2], stride = [1, 1, 2, 2], pad_lo = [0, 0, 1, 1], pad_hi = [0, 0, 1, 1]")
    xb = x.bfloat16()
    case("pools", "sum_pool2d_bf16", "reduce_window", [xb], F.avg_pool2d(xb, 2, 1, divisor_override=1),
         "kind = sum, size = [1, 1, 2, 2]")
    case("pools", "sum_pool3d", "reduce_window", [z], F.avg_pool3d(z, 2, 1, divisor_override=1),
         "kind = sum, size = [1, 1, 2, 2, 2]")
    case("pools", "min_pool1d", "reduce_window", [y], -F.max_pool1d(-y, 3, 2, 1),
         "kind = min, size = [1, 1, 3], stride = [1, 1, 2], pad_lo = [0, 0, 1], pad_hi = [0, 0, 1]")
    case("pools", "max_pool1d_dilated", "reduce_window", [y], F.max_pool1d(y, 3, 1, 0, 2),
         "kind = max, size = [1, 1, 3], window_dilation = [1, 1, 2]")


def window(size, stride=None, lo=None, hi=None, base=None, dilation=None, reversed_=None):
    parts = [f"size = {list(size)}"]
    for name, v in (("stride", stride), ("pad_lo", lo), ("pad_hi", hi), ("base_dilation", base), ("window_dilation", dilation)):
        if v is not None:
            parts.append(f"{name} = {list(v)}")
    if reversed_:
        parts.append(f"reversed = {list(reversed_)}")
    return ", ".join(parts)


NCHW = "dims = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], "
NCL = "dims = [b, f, 0]x[o, i, 0]->[b, f, 0], "


def conv():
    def add(name, args, result, attrs):
        case("conv", name, "convolution", args, result, attrs)

    for dtype in (f64, f32, bf16):
        x, w = rand(2, 3, 4, 5, dtype=dtype), rand(4, 3, 2, 3, dtype=dtype)
        add(f"conv2d_{NAMES[dtype]}", [x, w], F.conv2d(x, w), NCHW + window((2, 3)))
    x, w = rand(1, 2, 6, 5), rand(3, 2, 3, 2)
    add("strided_padded", [x, w], F.conv2d(x, w, None, (2, 1), (1, 1)), NCHW + window((3, 2), (2, 1), (1, 1), (1, 1)))
    add("dilated", [x, w], F.conv2d(x, w, None, 1, (2, 0), (2, 3)), NCHW + window((3, 2), None, (2, 0), (2, 0), None, (2, 3)))
    last = "dims = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], "
    add("channels_last", [x.permute(0, 2, 3, 1).contiguous(), w.permute(2, 3, 1, 0).contiguous()],
        F.conv2d(x, w).permute(0, 2, 3, 1).contiguous(), last + window((3, 2)))
    y, g = rand(2, 4, 6), rand(6, 2, 3)
    add("grouped", [y, g], F.conv1d(y, g, None, 1, 1, 1, 2), NCL + window((3,), None, (1,), (1,)) + ", feature_groups = 2")
    d = rand(8, 1, 3)
    add("depthwise", [y, d], F.conv1d(y, d, None, 2, 1, 1, 4), NCL + window((3,), (2,), (1,), (1,)) + ", feature_groups = 4")
    v, u = rand(1, 2, 3, 3, 4), rand(2, 2, 2, 2, 2)
    add("conv3d", [v, u], F.conv3d(v, u), "dims = [b, f, 0, 1, 2]x[o, i, 0, 1, 2]->[b, f, 0, 1, 2], " + window((2, 2, 2)))
    # Uneven and negative padding: the same as padding the input first.
    s, k = rand(1, 2, 7), rand(3, 2, 3)
    add("uneven_padding", [s, k], F.conv1d(F.pad(s, (-1, 2)), k, None, 2), NCL + window((3,), (2,), (-1,), (2,)))
    # Transposed: holes in the input, the kernel reversed, its feature dimensions exchanged.
    t, q = rand(2, 3, 4), rand(3, 2, 3)
    add("transposed", [t, q], F.conv_transpose1d(t, q, None, 2, 1, 1),
        "dims = [b, f, 0]x[i, o, 0]->[b, f, 0], " + window((3,), None, (1,), (2,), (2,), None, [0]))
    t2, q2 = rand(1, 2, 3, 3), rand(2, 3, 2, 3)
    add("transposed2d_dilated", [t2, q2], F.conv_transpose2d(t2, q2, None, (2, 1), (1, 0), (1, 0), 1, (2, 1)),
        "dims = [b, f, 0, 1]x[i, o, 0, 1]->[b, f, 0, 1], " + window((2, 3), None, (1, 2), (2, 2), (2, 1), (2, 1), [0, 1]))
    # Gradient of the kernel: batch is contracted, strides become window dilation.
    a, ka = rand(2, 3, 7), rand(4, 3, 3)
    out = F.conv1d(a, ka, None, 2, 1)
    grad = rand(*out.shape)
    dk = torch.nn.grad.conv1d_weight(a, ka.shape, grad, 2, 1)
    add("kernel_gradient", [a, grad], dk, "dims = [f, b, 0]x[i, o, 0]->[f, b, 0], " + window((4,), None, (1,), (1,), None, (2,)))
    # The same with two groups: batch groups.
    kg = rand(4, 2, 3)
    b = rand(2, 4, 7)
    out = F.conv1d(b, kg, None, 2, 1, 1, 2)
    grad = rand(*out.shape)
    dk = torch.nn.grad.conv1d_weight(b, kg.shape, grad, 2, 1, 1, 2)
    add("kernel_gradient_grouped", [b, grad], dk,
        "dims = [f, b, 0]x[i, o, 0]->[f, b, 0], " + window((4,), None, (1,), (1,), None, (2,)) + ", batch_groups = 2")


def contractions():
    for dtype in (f64, f32, bf16, i64):
        x, y = rand(3, 4, dtype=f64).to(dtype), rand(4, 2, dtype=f64).to(dtype)
        case("dot", f"matmul_{NAMES[dtype]}", "dot_general", [x, y], x @ y, "lhs_contract = [1], rhs_contract = [0]")
    x, y = rand(2, 3, 4), rand(2, 4, 5)
    case("dot", "bmm", "dot_general", [x, y], x @ y, "lhs_batch = [0], rhs_batch = [0], lhs_contract = [2], rhs_contract = [1]")
    z = rand(5, 4)
    case("dot", "linear", "dot_general", [x, z], F.linear(x, z), "lhs_contract = [2], rhs_contract = [1]")
    a, b = rand(2, 3, 4, 2), rand(3, 5, 2, 4)
    case("dot", "einsum", "dot_general", [a, b], torch.einsum("abcd,bedc->bae", a, b),
         "lhs_batch = [1], rhs_batch = [0], lhs_contract = [2, 3], rhs_contract = [3, 2]")
    v, w = rand(4), rand(3)
    case("dot", "outer", "dot_general", [v, w], torch.outer(v, w))


def attention():
    scale = torch.tensor(0.5, dtype=f64)

    def add(name, sizes, causal=False, bias=None, dtype=f64):
        b, h, t, s, e, f = sizes
        q, k, v = rand(b, h, t, e, dtype=dtype), rand(b, h, s, e, dtype=dtype), rand(b, h, s, f, dtype=dtype)
        wide = [x.double().requires_grad_() for x in (q, k, v)]
        scores = wide[0] @ wide[1].transpose(2, 3) * 0.5
        if bias is not None:
            scores = scores + bias.double()
        if causal:
            scores = scores.masked_fill(~torch.ones(t, s, dtype=torch.bool).tril(), -inf)
        lse = scores.logsumexp(3).float().detach()
        out = F.scaled_dot_product_attention(*wide, attn_mask=bias.double() if bias is not None else None,
                                             is_causal=causal, scale=0.5)
        grad = rand(b, h, t, f, dtype=dtype)
        grads = torch.autograd.grad(out, wide, grad.double())
        out = out.detach().to(dtype)
        attrs = f"causal = {str(causal).lower()}"
        extra = [bias] if bias is not None else []
        # Operands in the order of the op: the scale stands before the bias, and is an ordinary 0-d tensor here.
        case("attention", name, "attention", [q, k, v, scale, *extra], [out, lse], attrs)
        # The saved logsumexp is f32: the witness of the gradient is as exact as that.
        case("attention", name + "_backward", "attention_backward", [q, k, v, scale, out, lse, grad, *extra],
             [g.to(dtype) for g in grads], attrs)

    add("square_f32", (1, 2, 3, 3, 2, 2), dtype=f32)
    add("more_keys_f32", (2, 1, 2, 3, 2, 4), dtype=f32)
    add("causal_f32", (1, 1, 4, 4, 2, 2), causal=True, dtype=f32)
    add("causal_more_keys_f32", (1, 1, 2, 4, 2, 2), causal=True, dtype=f32)
    add("causal_more_queries_f32", (1, 1, 4, 2, 2, 2), causal=True, dtype=f32)
    add("bias_f32", (1, 2, 3, 2, 2, 2), bias=rand(3, 2), dtype=f32)
    masked = torch.tensor([[0.0, -inf], [-inf, -inf], [0.5, 0.0]])
    add("masked_row_f32", (1, 1, 3, 2, 2, 2), bias=masked, dtype=f32)


def sorts():
    x = torch.tensor([[3.0, nan, 1.0, -inf, 3.0, 2.0], [-0.0, 0.0, inf, nan, -1.0, 0.0]])
    for down in (False, True):
        case("sort", f"sort_{'down' if down else 'up'}", "sort", [x], list(torch.sort(x, dim=1, descending=down, stable=True)),
             f"dim = 1, descending = {str(down).lower()}")
        i = torch.tensor([[5, -3], [5, 7], [-128, 7]], dtype=torch.int8)
        case("sort", f"sort_i8_{'down' if down else 'up'}", "sort", [i], list(torch.sort(i, dim=0, descending=down, stable=True)),
             f"dim = 0, descending = {str(down).lower()}")
        y = rand(2, 9).add(torch.arange(9) / 64)
        case("sort", f"topk_{'largest' if down else 'smallest'}", "top_k", [y], list(y.topk(4, 1, down, True)),
             f"k = 4, largest = {str(down).lower()}")


def main():
    torch.manual_seed(0)
    for make in (unary, binary, convert, movement, indexing, reductions, pools, conv, contractions, attention, sorts):
        make()
    OUT.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        head = f"// test: interpret\n// Results of PyTorch {torch.__version__.split('+')[0]}, written by tests/witness/gen.py.\n"
        (OUT / f"{name}.rsx").write_text(head + "\n".join(lines).rstrip() + "\n")
        print(f"{name}: {sum(line.startswith('// run') for line in lines)} cases")


if __name__ == "__main__":
    main()
