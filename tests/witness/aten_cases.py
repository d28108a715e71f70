"""The cases of `aten.py`: arguments for one overload of every signature in the ATen table.

A case is a function from an element type to the arguments in schema order (missing ones take their defaults), or None
if the case is not for that type. Other overloads of the same row with the same arguments (in-place, `out=`) share it.

One table, whose order follows that of the ATen table in `lazy/src/aten`: long, and not cut for that reason.
"""
import math
import random

import torch
import torch.nn.functional as F

f32, f64, bf16, f16, i64, i32, u8, b8 = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64,
                                         torch.int32, torch.uint8, torch.bool)
FLOATS = (f32, f64, bf16, f16)
WIDE = (f32, f64)
INTS = (i64, i32, u8, torch.int8)
nan, inf = math.nan, math.inf
SEED = (0x1234_5678_9abc_def0, 41)


class Host:
    """A 0-d CPU tensor: its value is data of the call."""

    def __init__(self, tensor):
        self.tensor = tensor


class Spec:
    def __init__(self, make):
        self.make = make


def laid_out(t):
    """The same values under a random layout: dense, transposed, a slice with an offset, or every second element."""
    kind = random.randrange(4)
    if t.dim() < 2 or t.numel() == 0 or kind == 0:
        if t.dim() == 1 and t.numel() and kind == 1:
            base = torch.zeros(t.numel() * 2 + 1, dtype=t.dtype)
            view = base[1::2]
            return view.copy_(t)
        return t
    if kind == 1:
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == 2:
        base = torch.zeros([n + 2 for n in t.shape], dtype=t.dtype)
        view = base[tuple(slice(1, n + 1) for n in t.shape)]
        return view.copy_(t)
    base = torch.zeros([t.shape[0] * 2, *t.shape[1:]], dtype=t.dtype)
    return base[::2].copy_(t)


def T(*shape, lo=-3.0, hi=3.0, dtype=None):
    """A tensor of random values in lo..hi, of the case's element type or `dtype`."""

    def make(d):
        d = dtype or d
        if d == b8:
            t = torch.rand(shape) < 0.5
        elif d.is_floating_point:
            t = (torch.rand(shape, dtype=f64) * (hi - lo) + lo).to(d)
        else:
            low = 0 if d == u8 else math.floor(lo)
            t = torch.randint(low, max(math.ceil(hi), low + 1) + 1, shape).to(d)
        return laid_out(t)

    return Spec(make)


def D(*shape):
    """A dense tensor: some eager kernels read weights without their strides."""
    return Spec(lambda d: torch.randn(shape).to(d))


def V(values, dtype=None, floats_only=True):
    """Given values."""

    def make(d):
        d = dtype or d
        if floats_only and not d.is_floating_point:
            raise TypeError("floats only")
        return torch.tensor(values, dtype=d)

    return Spec(make)


def I(*shape, n, lo=0, dtype=i64):
    """Indices below n."""
    return Spec(lambda d: torch.randint(lo, n, shape).to(dtype))


def P(rows, n):
    """Distinct indices below n in every row (or one row if `rows` is None)."""
    if rows is None:
        return Spec(lambda d: torch.randperm(n))
    return Spec(lambda d: torch.stack([torch.randperm(n) for _ in range(rows)]))


def resolve(s, d):
    if isinstance(s, Spec):
        return s.make(d)
    if isinstance(s, list):
        return [resolve(e, d) for e in s]
    return s


def case(*args, only=None):
    def make(d):
        if only is not None and d not in only:
            return None
        return tuple(resolve(a, d) for a in args)

    return make


def host(value, dtype=f64):
    return Spec(lambda d: Host(torch.tensor(value, dtype=dtype)))


SPECIAL = [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 60000.0]
CASES = {}


def add(names, *makes):
    for n in names.split():
        CASES.setdefault(n, []).extend(makes)


# Elementwise functions of one tensor.
add("abs neg sgn sign floor ceil trunc round frac exp exp2 expm1 sin cos tan tanh sigmoid erf erfc sinh cosh asinh atan "
    "isinf isnan isneginf isposinf signbit logical_not relu deg2rad rad2deg reciprocal sinc angle lgamma silu mish "
    "hardswish hardsigmoid log_sigmoid_forward hardtanh bitwise_not square _conj_physical",
    case(T(3, 4)), case(T(2, 3, 2)), case(T()), case(V(SPECIAL[:9])), case(T(0, 3)))
add("log log2 log10 log1p sqrt rsqrt digamma special_entr", case(T(3, 4, lo=0.1, hi=9)), case(T(5, lo=1, hi=3)),
    case(V(SPECIAL)))
add("acos asin atanh erfinv", case(T(3, 4, lo=-0.95, hi=0.95)), case(V([nan, 0.0, -0.0, 1.0, -1.0])))
add("acosh", case(T(3, 4, lo=1.0, hi=5)))
add("log2", case(V([1.0, 2.0, 8.0, 64.0, 1024.0, 0.125])))
add("round", case(V([0.5, 1.5, 2.5, -0.5, -1.5])))
add("logit", case(T(3, 4, lo=0.05, hi=0.95)), case(T(3, 4, lo=-0.5, hi=1.5), 0.1))
add("nan_to_num", case(V(SPECIAL)), case(V(SPECIAL), 1.0, 2.0, -3.0), case(T(3), 1.0))
add("round.decimals", case(T(3, 4), 1), case(T(3, 4, lo=-300, hi=300), -2), case(T(4), 0))
add("gelu", case(T(3, 4), "none"), case(T(3, 4), "tanh"), case(T(7, lo=-40, hi=40)))
add("celu elu", case(T(3, 4)), case(T(3, 4), 0.7))
add("elu", case(T(3, 4), 1.3, 0.6, 0.8))
add("leaky_relu", case(T(3, 4)), case(T(3, 4), 0.3), case(V(SPECIAL), 0.1))
add("hardtanh", case(T(3, 4), -1.5, 0.5))
add("hardshrink softshrink", case(T(3, 4)), case(T(3, 4), 1.1), case(V(SPECIAL), 0.5))
add("softplus", case(T(3, 4)), case(T(3, 4), 2.5, 1.0), case(V([-100.0, 100.0, 0.0])))
add("threshold", case(T(3, 4), 0.5, -7.0), case(V(SPECIAL), 0.5, 2.0), case(T(3, 4), 1, 2))
add("glu", case(T(4, 6)), case(T(4, 6), 0))
add("_prelu_kernel", case(T(3, 4), T(1, 4)), case(T(2, 3, 4), T(1, 3, 1)))
add("rrelu_with_noise", case(T(3, 4), T(3, 4), 0.1, 0.3, False))
add("rrelu_with_noise_backward", case(T(3, 4), T(3, 4), T(3, 4), 0.1, 0.3, False, False),
    case(T(3, 4), T(3, 4), T(3, 4), 0.1, 0.3, True, False, only=WIDE))

# Their gradients.
add("gelu_backward", case(T(3, 4), T(3, 4), "none"), case(T(3, 4), T(3, 4), "tanh"))
add("silu_backward mish_backward hardswish_backward hardsigmoid_backward", case(T(3, 4), T(3, 4)),
    case(T(5), V([-3.0, 3.0, 0.0, 5.0, -5.0])))
add("sigmoid_backward tanh_backward", case(T(3, 4), T(3, 4, lo=0, hi=1)))
add("softplus_backward", case(T(3, 4), T(3, 4), 1.5, 2.0))
add("elu_backward", case(T(3, 4), 1.3, 0.6, 0.8, False, T(3, 4)), case(T(3, 4), 1.3, 0.6, 0.8, True, T(3, 4, lo=-0.7)))
add("hardtanh_backward", case(T(3, 4), T(3, 4), -1.0, 1.5))
add("leaky_relu_backward", case(T(3, 4), T(3, 4), 0.2, False))
add("hardshrink_backward softshrink_backward threshold_backward", case(T(3, 4), T(3, 4), 0.5))
add("threshold_backward", case(T(3, 4), T(3, 4), 0), case(T(10), V(SPECIAL), 0.0))
add("log_sigmoid_backward", lambda d: (torch.randn(3, 4).to(d), (x := torch.randn(3, 4).to(d)), torch.exp(-x.abs())))
add("logit_backward", case(T(3, 4), T(3, 4, lo=0.05, hi=0.95)), case(T(3, 4), T(3, 4, lo=-0.5, hi=1.5), 0.1))
add("glu_backward", case(T(4, 3), T(4, 6), 1), case(T(2, 6), T(4, 6), 0))
add("_prelu_kernel_backward", case(T(3, 4), T(3, 4), T(1, 4)))

# Arithmetic.
PAIRS = [case(T(3, 4), T(3, 4)), case(T(3, 4), T(4)), case(T(2, 1, 3), T(4, 1)), case(T(3, 4), T(dtype=f64)),
         case(T(3, 4), T(3, 4, dtype=f32)), case(T(3, 4), T(3, 4, dtype=i32)), case(T(3, 4), 2.5), case(T(3, 4), 3),
         case(T(), T(3, dtype=bf16)), case(T(2, 2), host(1.3)), case(T(3, 4), T(3, 4, dtype=u8)), case(2.5, T(3))]
NONZERO = [case(T(3, 4), T(3, 4, lo=1, hi=4)), case(T(3, 4), T(4, lo=-4, hi=-1)), case(T(3, 4), 2.5),
           case(T(3, 4), -2), case(T(3, 4), T(3, 4, lo=1, hi=3, dtype=i32)), case(2.5, T(3, lo=1, hi=3)),
           case(T(3, 4, lo=-9, hi=9), T(3, 4, lo=0.5, hi=2, dtype=f32))]
add("add.Tensor sub.Tensor rsub.Tensor mul.Tensor maximum minimum fmax fmin", *PAIRS)
add("maximum minimum fmax fmin", case(V([nan, 1.0, nan, 0.0]), V([1.0, nan, nan, -0.0])))
add("add.Tensor sub.Tensor rsub.Tensor", case(T(3, 4), T(3, 4), 2), case(T(3, 4), T(3, 4), 0.3),
    case(T(3, 4), T(4), -1.5))
add("add.Scalar sub.Scalar rsub.Scalar", case(T(3, 4), 2.5), case(T(3, 4), 2), case(T(3, 4), 2.5, 0.5),
    case(T(3, 4), 2, 3))
add("mul.Scalar", case(T(3, 4), 2.5), case(T(3, 4), 3), case(T(3), True))
add("_add_relu.Tensor", case(T(3, 4), T(3, 4)), case(T(3, 4), T(3, 4), 0.5))
add("_add_relu.Scalar", case(T(3, 4), 0.5))
add("div.Tensor", *NONZERO, case(V([1.0, -1.0, 0.0]), V([0.0, 0.0, 0.0])))
add("div.Scalar", case(T(3, 4), 2.5), case(T(3, 4), 3))
for mode in (None, "floor", "trunc"):
    add("div.Tensor_mode", *[lambda d, c=c, m=mode: (*c(d), m) for c in NONZERO])
    add("div.Scalar_mode", case(T(3, 4), 2.5, mode), case(T(3, 4), -3, mode))
add("floor_divide remainder.Tensor fmod.Tensor", *NONZERO)
add("floor_divide remainder.Tensor", case(V([1.0, -1.0, 0.0, inf, 5.0, -0.0]), V([0.0, 0.0, 0.0, 2.0, inf, 3.0])))
add("floor_divide_.Tensor", *NONZERO)
add("floor_divide.Scalar remainder.Scalar fmod.Scalar", case(T(3, 4), 2.5), case(T(3, 4), -2), case(T(3, 4), 1))
add("remainder.Scalar_Tensor", case(7.5, T(3, 4, lo=1, hi=3)), case(7, T(3, lo=1, hi=3)))
POWERS = (0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5, 4, 1.0, 2.0)
add("pow.Tensor_Scalar", *[case(T(3, 4, lo=0.3, hi=3), p) for p in POWERS], case(T(3, 4), 3), case(T(3, 4), 2))
add("pow.Tensor_Tensor", case(T(3, 4, lo=0.3, hi=2), T(3, 4)), case(T(3, lo=1, hi=3), T(3, lo=0, hi=4, dtype=i64)),
    case(V([nan, 1.0, 0.0, -2.0]), V([0.0, nan, -1.0, 0.5])))
add("pow_.Tensor", case(T(3, 4, lo=0.3, hi=2), T(3, 4)))
add("pow.Scalar", case(2.5, T(3, 4)), case(2, T(3, 4, lo=0, hi=3)))
add("atan2 hypot nextafter copysign.Tensor logaddexp logaddexp2 ldexp.Tensor heaviside", case(T(3, 4), T(3, 4)),
    case(T(3, 4), T(4)), case(V([0.0, -0.0, inf, -inf, 1.0]), V([-0.0, 0.0, inf, -inf, 0.0])))
add("hypot logaddexp", case(V([1e20, inf, nan, 0.0]), V([1e20, 1.0, inf, 0.0]), only=WIDE))
add("copysign.Scalar", case(T(3, 4), -1.0), case(T(3, 4), 2))
add("xlogy.Tensor special_xlog1py", case(T(3, 4), T(3, 4, lo=0.1, hi=3)), case(V([0.0, 0.0, nan, 1.0]), V([0.0, nan, 1.0, 0.0])))
add("xlogy.Scalar_Self special_xlog1py.self_scalar", case(1.5, T(3, 4, lo=0.1, hi=3)))
add("xlogy.Scalar_Other special_xlog1py.other_scalar", case(T(3, 4), 1.5))
BITS = [case(T(3, 4, lo=0, hi=100), T(3, 4, lo=0, hi=100)), case(T(3, 4, lo=-9, hi=100), T(4, dtype=u8, hi=9))]
add("bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor", *BITS)
add("bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar", case(T(3, 4, hi=90), 6), case(T(3), True))
add("bitwise_and.Scalar_Tensor bitwise_or.Scalar_Tensor bitwise_xor.Scalar_Tensor", case(6, T(3, 4, hi=90)))
SHIFTS = [case(T(3, 4, lo=-9, hi=20), T(3, 4, lo=0, hi=6)), case(T(3, lo=1, hi=3), T(3, lo=0, hi=70))]
add("bitwise_left_shift.Tensor bitwise_right_shift.Tensor __lshift__.Tensor __rshift__.Tensor", *SHIFTS)
add("bitwise_left_shift.Tensor_Scalar bitwise_right_shift.Tensor_Scalar __lshift__.Scalar __rshift__.Scalar",
    case(T(3, 4, lo=-9, hi=20), 2))
add("bitwise_left_shift.Scalar_Tensor bitwise_right_shift.Scalar_Tensor", case(9, T(3, 4, lo=0, hi=4)))
add("logical_and logical_or logical_xor", *PAIRS)

# Comparison and selection.
add("eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor", *PAIRS,
    case(V([nan, 1.0, inf, 0.0]), V([nan, nan, inf, -0.0])))
add("eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar", case(T(3, 4), 1), case(T(3, 4), 0.1),
    case(V([0.1, 0.2, 0.3]), 0.1), case(T(4), True))
add("where.self", case(T(3, 4, dtype=b8), T(3, 4), T(3, 4)), case(T(3, 1, dtype=b8), T(4), T()),
    case(T(3, 4, dtype=b8), T(3, 4), host(0.0, f32)), case(T(3, 4, dtype=b8), T(3, 4), T(3, 4, dtype=f64)))
add("masked_fill.Scalar", case(T(3, 4), T(3, 4, dtype=b8), 2.5), case(T(3, 4), T(4, dtype=b8), 1))
add("masked_fill.Tensor", case(T(3, 4), T(3, 4, dtype=b8), T(dtype=f32)), case(T(3, 4), T(3, 1, dtype=b8), host(-inf)))
add("isin.Tensor_Tensor", case(T(3, 4), T(5)), case(T(3, 4), T(5), False, True))
add("isin.Tensor_Scalar", case(T(3, 4), 2))
add("isin.Scalar_Tensor", case(2, T(5)))
add("clamp", case(T(3, 4), -1.0, 1.5), case(T(3, 4), 1), case(T(3, 4), None, 0.5), case(V(SPECIAL), -0.5, 0.7),
    case(T(3, 4), 1.0, -1.0))
add("clamp.Tensor", case(T(3, 4), T(3, 4), T(4)), case(T(3, 4), None, T(3, 4)), case(T(3, 4), T()))
add("clamp_min clamp_max", case(T(3, 4), 0.5), case(T(3, 4), 1), case(V(SPECIAL), 0.1))
add("clamp_min.Tensor clamp_max.Tensor", case(T(3, 4), T(4)), case(T(3, 4), T(3, 4, dtype=f32)))
add("lerp.Scalar", case(T(3, 4), T(3, 4), 0.3), case(T(3, 4), T(4), 0.9), case(T(3, 4), T(4), -2))
add("lerp.Tensor", case(T(3, 4), T(3, 4), T(3, 4, lo=0, hi=1)), case(T(3, 4), T(4), T()))
add("addcmul addcdiv", case(T(3, 4), T(3, 4), T(3, 4, lo=1, hi=3)), case(T(3, 4), T(4), T(3, 1, lo=1, hi=3), 0.3),
    case(T(3, 4), T(4), T(3, 1, lo=1, hi=3), 2))

# Reductions.
add("sum mean prod max min any all median count_nonzero _is_any_true _is_all_true norm.Scalar", case(T(3, 4)), case(T()),
    case(T(2, 3, 2)))
add("sum", case(T(3, 4), f64), case(T(0, 3)))
add("prod mean", case(T(3, 4), f64))
REDUCE = [case(T(3, 4, 2), [1]), case(T(3, 4, 2), [0, -1], True), case(T(3, 4), []), case(T(), [0])]
add("sum.dim_IntList mean.dim nansum", *REDUCE)
add("sum.dim_IntList mean.dim", case(T(3, 4), [1], False, f32), case(T(3, 4), None), case(T(0, 4), [0]))
add("nansum", case(V([[nan, 1.0], [2.0, nan]]), [0]), case(T(3, 4)))
add("amax amin", *REDUCE, case(V([[nan, 1.0], [2.0, 3.0]]), [1]), case(T(3, 4)))
add("prod.dim_int", case(T(3, 4), 1), case(T(3, 4), 0, True))
add("any.dim all.dim", case(T(3, 4), 1), case(T(3, 4), 0, True), case(T(), 0))
add("any.dims all.dims", case(T(3, 4, 2), [0, 2]), case(T(3, 4)), case(T(3, 4), []), case(T(3, 4), [1], True))
add("max min", case(V([1.0, nan, 3.0])))
add("max.dim min.dim", case(T(3, 7), 1), case(T(3, 7), 0, True), case(T(), 0), case(V([[1.0, nan, 3.0, nan]]), 1))
add("argmax argmin", case(T(3, 7)), case(T(3, 7), 1), case(T(3, 7), 0, True), case(V([1.0, nan, 3.0, nan])), case(T()))
add("aminmax", case(T(3, 4)), case(T(3, 4), 1, True))
add("_aminmax", case(T(3, 4)))
add("_aminmax.dim", case(T(3, 4), 1), case(T(3, 4), 0, True))
add("count_nonzero", case(T(3, 4), 1))
add("count_nonzero.dim_IntList", case(T(3, 4, 2), [0, 2]))
add("logsumexp", case(T(3, 4), [1]), case(T(3, 4), [0, 1], True), case(V([[-inf, -inf], [inf, 1.0]]), [1]))
NORMS = (2, 1, 0, inf, -inf, 3, 2.5, 0.5)
add("linalg_vector_norm", *[case(T(3, 4), p, [1]) for p in NORMS], case(T(3, 4)), case(T(3, 4), 2, None, True),
    case(T(3, 4), 2, [0], False, f64))
add("norm.Scalar", *[case(T(3, 4), p) for p in NORMS])
add("norm.ScalarOpt_dim", *[case(T(3, 4), p, [1]) for p in (None, 1, inf)], case(T(3, 4, 2), 2, [0, 2], True))
add("norm.ScalarOpt_dim_dtype", case(T(3, 4), 2, [1], False, f64))
add("norm.ScalarOpt_dtype", case(T(3, 4), None, f64))
add("native_norm", case(T(3, 4), 2))
VAR = [case(T(3, 5, 2), [1]), case(T(3, 5), None), case(T(3, 5), [0, 1], 0), case(T(3, 5), [1], 0.5, True),
       case(T(3, 1), [1])]
add("var.correction std.correction var_mean.correction std_mean.correction", *VAR)
add("cumsum cumprod", case(T(3, 5), 1), case(T(3, 5), 0), case(T(3, 5), -1, f64), case(T(), 0))
add("logcumsumexp _logcumsumexp", case(T(3, 5), 1), case(T(3, 5), 0))
add("cummax cummin", case(T(3, 9), 1), case(T(4, 3), 0), case(V([1.0, nan, 3.0, nan, 2.0]), 0))
add("_cummax_helper _cummin_helper", lambda d: ((x := torch.randint(0, 5, (3, 6)).to(d)), torch.zeros_like(x), torch.zeros(3, 6, dtype=i64), 1))
add("sort", case(P(3, 7)), case(T(3, 7, lo=-50, hi=50), 1, True, only=WIDE), case(T(4, lo=-100, hi=100), only=WIDE))
add("sort.stable", case(T(3, 7), True, 1, False), case(T(3, 7), True, 0, True), case(V([1.0, nan, -inf, 0.0]), True))
DISTINCT = Spec(lambda d: laid_out(torch.randperm(27).reshape(3, 9).to(d)))
add("topk", case(DISTINCT, 4), case(DISTINCT, 2, 0), case(DISTINCT, 3, 1, False))
add("kthvalue", case(DISTINCT, 3), case(DISTINCT, 2, 0, True))
add("median.dim", case(DISTINCT, 1), case(DISTINCT, 0, True), case(V([[1.0, nan, 3.0], [3.0, 1.0, 2.0]]), 1))
add("median", case(V([1.0, nan, 3.0])))
add("trace", case(T(3, 5)))

# Softmax.
SOFT = [case(T(3, 4), 1, False), case(T(3, 4, 2), 0, False), case(T(), 0, False)]
add("_softmax _log_softmax", *SOFT, case(V([[-inf, 1.0], [100.0, 90.0]]), 1, False))
add("_safe_softmax", case(T(3, 4), 1), case(V([[-inf, -inf], [1.0, -inf]]), 1))
add("_softmax_backward_data _log_softmax_backward_data",
    lambda d: (torch.randn(3, 4).to(d), torch.softmax(torch.randn(3, 4), 1).to(d), 1, d))

# Matrix products.
add("mm", case(T(3, 4), T(4, 5)), case(T(1, 4), T(4, 1)))
add("bmm", case(T(2, 3, 4), T(2, 4, 5)))
add("addmm", case(T(5), T(3, 4), T(4, 5)), case(T(3, 5), T(3, 4), T(4, 5), 0.5, 2.0), case(T(3, 5), T(3, 4), T(4, 5), 2, 3),
    case(V([nan]), T(3, 4), T(4, 5), 0, 1), case(V([nan]), T(3, 4), T(4, 5), 0.0, 1.5))
add("addmm_", case(T(3, 5), T(3, 4), T(4, 5), 0.5, 2.0))
LINEAR = [((3, 4), (5, 4)), ((2, 3, 4), (5, 4)), ((1, 4), (1, 4))]
add("linear", *[case(T(*x), T(*w), b and T(w[0]), only=FLOATS) for x, w in LINEAR for b in (True, None)])


def linear_gradients(x, w, mask):
    def make(d):
        return None if d not in FLOATS else (
            resolve(T(*x), d), resolve(T(*x[:-1], w[0]), d), resolve(T(*w), d), list(mask))

    return make


add("linear_backward", *[linear_gradients(x, w, m) for x, w in LINEAR for m in ((1, 1, 1), (0, 1, 1), (1, 0, 0), (0, 0, 1))])


def linear_backward(x, g, w, mask):
    rows = g.reshape(-1, g.shape[-1])
    out = g @ w, rows.T @ x.reshape(-1, x.shape[-1]), rows.sum(0)
    return [t if m else None for t, m in zip(out, mask)]
add("_addmm_activation", case(T(5), T(3, 4), T(4, 5)), case(T(5), T(3, 4), T(4, 5), 1, 1, True))
add("baddbmm", case(T(2, 3, 5), T(2, 3, 4), T(2, 4, 5)), case(T(5), T(2, 3, 4), T(2, 4, 5), 0.5, 2.0))
add("baddbmm_", case(T(2, 3, 5), T(2, 3, 4), T(2, 4, 5), 0.5, 2.0))
add("addbmm", case(T(3, 5), T(2, 3, 4), T(2, 4, 5)), case(T(3, 5), T(2, 3, 4), T(2, 4, 5), 0.5, 2.0))
add("mv", case(T(3, 4), T(4)))
add("addmv", case(T(3), T(3, 4), T(4)), case(T(3), T(3, 4), T(4), 0.5, 2.0))
add("dot vdot", case(T(7), T(7)))
add("addr", case(T(3, 4), T(3), T(4)), case(T(3, 4), T(3), T(4), 0.5, 2.0))


# Convolutions: input, weight, bias, stride, padding, dilation, transposed, output_padding, groups.
def conv(x, w, stride=1, padding=0, dilation=1, transposed=False, output_padding=0, groups=1, bias=True):
    n = len(x) - 2

    def some(v):
        return list(v) if isinstance(v, (tuple, list)) else [v] * n

    out = w[1] * groups if transposed else w[0]
    return dict(x=x, w=w, b=out if bias else None, p=(some(stride), some(padding), some(dilation), transposed,
                                                      some(output_padding), groups))


CONVS = [
    conv((2, 3, 9), (4, 3, 3)), conv((2, 3, 9), (4, 3, 3), 2, 1, 2), conv((2, 4, 7, 8), (6, 4, 3, 2), (2, 1), (1, 0)),
    conv((2, 4, 7, 8), (6, 2, 3, 3), 2, 1, groups=2), conv((2, 4, 6, 6), (8, 1, 3, 3), 1, 1, groups=4, bias=False),
    conv((1, 2, 5, 6, 4), (3, 2, 2, 3, 2), (1, 2, 1), (0, 1, 1)), conv((2, 4, 9), (4, 3, 3), 2, 1, 1, True, 1),
    conv((2, 4, 5, 6), (4, 3, 3, 3), 2, 1, 1, True, 1), conv((2, 4, 5, 6), (4, 2, 3, 2), (1, 2), 0, (2, 1), True, 0, 2),
    conv((1, 2, 3, 4, 3), (2, 3, 2, 2, 2), 2, 0, 1, True), conv((2, 3, 8, 8), (5, 3, 1, 1)),
    conv((2, 3, 8, 8), (5, 3, 2, 2), 3),
]


def conv_case(c):
    return case(T(*c["x"]), T(*c["w"]), T(c["b"]) if c["b"] else None, *c["p"], only=FLOATS)


def conv_backward_case(c, mask):
    def make(d):
        if d not in FLOATS:
            return None
        x, w = resolve(T(*c["x"]), d), resolve(T(*c["w"]), d)
        y = torch.ops.aten.convolution(x.float(), w.float(), None, *c["p"])
        return resolve(T(*y.shape), d), x, w, [c["b"]] if c["b"] else [0], *c["p"], mask

    return make


add("convolution", *map(conv_case, CONVS))
add("convolution_backward", *[conv_backward_case(c, [True, True, bool(c["b"])]) for c in CONVS],
    conv_backward_case(CONVS[3], [False, True, True]), conv_backward_case(CONVS[2], [True, False, False]))

# Pools.
add("max_pool2d_with_indices", case(T(2, 3, 8, 9), [2, 3]), case(T(3, 7, 9), [3], [2], [1]),
    case(T(2, 3, 9, 9), [2, 2], [2, 2], [0, 0], [2, 2]), case(T(1, 2, 7, 8), [3, 3], [2, 2], [1, 1], [1, 1], True),
    case(T(2, 3, 5, 6), [1, 3], [1, 2]), case(T(2, 3, 5, 6), [1, 1], [1, 1]))
add("max_pool3d_with_indices", case(T(1, 2, 4, 5, 6), [2, 2, 2]), case(T(1, 2, 5, 5, 6), [3, 2, 1], [2, 1, 1], [1, 0, 0]))


def pool_backward(op, shape, *args):
    def make(d):
        if d not in FLOATS:
            return None
        x = resolve(T(*shape), d)
        y, i = op(x, *args)
        return resolve(T(*y.shape), d), x, *args, i

    return make


P2, P3 = torch.ops.aten.max_pool2d_with_indices, torch.ops.aten.max_pool3d_with_indices
add("max_pool2d_with_indices_backward", pool_backward(P2, (2, 3, 8, 9), [2, 3], [2, 3], [0, 0], [1, 1], False),
    pool_backward(P2, (3, 7, 9), [3, 3], [2, 2], [1, 1], [1, 1], True))
add("max_pool3d_with_indices_backward", pool_backward(P3, (1, 2, 4, 5, 6), [2] * 3, [1] * 3, [1] * 3, [1] * 3, False))
add("max_unpool2d", lambda d: None if d not in FLOATS else (*P2(torch.randn(2, 3, 6, 6).to(d), [2, 2]), [6, 6]))
add("max_unpool3d", lambda d: None if d not in FLOATS else (*P3(torch.randn(2, 3, 4, 4, 4).to(d), [2, 2, 2]), [4, 4, 4], [2, 2, 2], [0, 0, 0]))
AVG = [([2, 3],), ([3, 3], [2, 2], [1, 1]), ([3, 3], [2, 2], [1, 1], False, False), ([3, 2], [2, 2], [1, 0], True, True),
       ([3, 3], [2, 2], [1, 1], True, False), ([2, 2], [1, 1], [0, 0], False, True, 3)]
add("avg_pool2d", *[case(T(2, 3, 8, 9), *a, only=FLOATS) for a in AVG], case(T(3, 8, 7), [2, 2], only=FLOATS))
add("avg_pool3d", case(T(2, 3, 4, 5, 6), [2, 2, 2]), case(T(1, 2, 5, 5, 6), [3, 2, 2], [2, 2, 2], [1, 0, 1], True, False))


def avg_backward(shape, kernel, stride, padding, ceil=False, include=True, divisor=None):
    def make(d):
        if d not in FLOATS:
            return None
        x = resolve(T(*shape), d)
        f = F.avg_pool2d if len(kernel) == 2 else F.avg_pool3d
        y = f(x.float(), kernel, stride, padding, ceil, include, divisor)
        return resolve(T(*y.shape), d), x, kernel, stride, padding, ceil, include, divisor

    return make


add("avg_pool2d_backward", avg_backward((2, 3, 8, 9), [2, 3], [2, 3], [0, 0]),
    avg_backward((2, 3, 8, 9), [3, 3], [2, 2], [1, 1], True, False), avg_backward((2, 8, 9), [3, 3], [2, 1], [1, 1]),
    avg_backward((2, 3, 8, 9), [2, 2], [1, 1], [0, 0], False, True, 3))
add("avg_pool3d_backward", avg_backward((1, 2, 5, 5, 6), [3, 2, 2], [2, 2, 2], [1, 0, 1], True, False))
add("_adaptive_avg_pool2d", case(T(2, 3, 8, 6), [4, 3]), case(T(2, 3, 7, 9), [3, 4]), case(T(3, 7, 9), [1, 1]),
    case(T(2, 3, 3, 4), [5, 7]))
add("_adaptive_avg_pool3d", case(T(2, 3, 4, 5, 6), [2, 3, 3]))
add("_adaptive_avg_pool2d_backward", case(T(2, 3, 4, 3), T(2, 3, 8, 6)), case(T(2, 3, 3, 4), T(2, 3, 7, 9)))
add("_adaptive_avg_pool3d_backward", case(T(2, 3, 2, 3, 3), T(2, 3, 4, 5, 6)))
add("adaptive_max_pool2d", case(T(2, 3, 8, 6), [4, 3]), case(T(3, 8, 6), [2, 6]))
add("adaptive_max_pool3d", case(T(2, 3, 4, 6, 6), [2, 3, 3]))
add("adaptive_max_pool2d_backward", pool_backward(lambda x, o: torch.ops.aten.adaptive_max_pool2d(x, [4, 3]), (2, 3, 8, 6), None))
CASES["adaptive_max_pool2d_backward"] = [
    lambda d: None if d not in FLOATS else (torch.randn(2, 3, 4, 3).to(d), (x := torch.randn(2, 3, 8, 6).to(d)),
                                            torch.ops.aten.adaptive_max_pool2d(x, [4, 3])[1])]
add("adaptive_max_pool3d_backward",
    lambda d: None if d not in FLOATS else (torch.randn(2, 3, 2, 3, 3).to(d), (x := torch.randn(2, 3, 4, 6, 6).to(d)),
                                            torch.ops.aten.adaptive_max_pool3d(x, [2, 3, 3])[1]))

# Normalisation.
add("native_layer_norm", case(T(3, 4, 5), [5], D(5), D(5), 1e-5), case(T(3, 4, 5), [4, 5], D(4, 5), None, 1e-3),
    case(T(6, 5), [5], None, None, 1e-5))


def layer_backward(mask, affine=True):
    def make(d):
        if d not in FLOATS:
            return None
        x = torch.randn(3, 4, 5).to(d)
        w = torch.randn(5).to(d) if affine else None
        _, mean, rstd = torch.ops.aten.native_layer_norm(x, [5], w, w, 1e-5)
        return torch.randn(3, 4, 5).to(d), x, [5], mean, rstd, w, w, mask

    return make


add("native_layer_norm_backward", layer_backward([True] * 3), layer_backward([True, False, False], False),
    layer_backward([False, True, True]))
add("native_group_norm", case(T(2, 6, 4, 3), D(6), D(6), 2, 6, 12, 3, 1e-5), case(T(2, 4, 5), None, None, 2, 4, 5, 2, 1e-4))


def group_backward(d):
    if d not in FLOATS:
        return None
    x, w = torch.randn(2, 6, 4, 3).to(d), torch.randn(6).to(d)
    _, mean, rstd = torch.ops.aten.native_group_norm(x, w, w, 2, 6, 12, 3, 1e-5)
    return torch.randn(2, 6, 4, 3).to(d), x, mean, rstd, w, 2, 6, 12, 3, [True] * 3


add("native_group_norm_backward", group_backward)


def stats():
    return [Spec(lambda d: torch.randn(3).to(d)), Spec(lambda d: torch.rand(3).to(d) + 0.5)]


for training in (True, False):
    add("native_batch_norm _native_batch_norm_legit", case(T(4, 3, 5), D(3), D(3), *stats(), training, 0.1, 1e-5),
        case(T(4, 3, 2, 2), None, None, *stats(), training, 0.3, 1e-3), case(T(6, 3), D(3), D(3), *stats(), training, 0.1, 1e-5))
    add("_native_batch_norm_legit_functional", case(T(4, 3, 5), D(3), D(3), *stats(), training, 0.1, 1e-5))
add("native_batch_norm", case(T(4, 3, 5), D(3), D(3), None, None, True, 0.1, 1e-5))
add("_native_batch_norm_legit.no_stats", case(T(4, 3, 5), D(3), D(3), True, 0.1, 1e-5))
add("_native_batch_norm_legit_no_training", case(T(4, 3, 5), D(3), D(3), *stats(), 0.1, 1e-5))


def batch_backward(train, mask):
    def make(d):
        if d not in WIDE:
            return None
        x, w, rm, rv = torch.randn(4, 3, 5).to(d), torch.randn(3).to(d), torch.randn(3).to(d), torch.rand(3).to(d) + 0.5
        _, mean, invstd = torch.ops.aten.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5)
        return torch.randn(4, 3, 5).to(d), x, w, rm, rv, mean, invstd, train, 1e-5, mask

    return make


add("native_batch_norm_backward", batch_backward(True, [True] * 3), batch_backward(False, [True] * 3))
# The kernel takes dense tensors only (`_weight_norm` makes them so).
add("_weight_norm_interface", lambda d: None if d not in FLOATS else (torch.randn(3, 4, 2).to(d), torch.randn(3, 1, 1).to(d), 0))
add("_weight_norm_interface_backward",
    lambda d: None if d not in FLOATS else (torch.randn(3, 4).to(d), (v := torch.randn(3, 4).to(d)), torch.randn(3, 1).to(d),
                                            v.norm(dim=1, keepdim=True), 0))
add("_fused_rms_norm", case(T(3, 4, 5), [5], D(5), 1e-5), case(T(3, 4, 5), [4, 5], None, None))

# Losses.
for r in (0, 1, 2):
    add("mse_loss soft_margin_loss", case(T(3, 4), T(3, 4), r))
    add("smooth_l1_loss huber_loss", case(T(3, 4), T(3, 4), r, 0.7), case(T(3, 4), T(3, 4), r))
    dy = T(3, 4) if r == 0 else T()
    add("mse_loss_backward soft_margin_loss_backward", case(dy, T(3, 4), T(3, 4), r))
    add("smooth_l1_loss_backward huber_loss_backward", case(dy, T(3, 4), T(3, 4), r, 0.7, only=FLOATS))
    prob = T(3, 4, lo=0.05, hi=0.95)
    add("binary_cross_entropy", case(prob, prob, None, r), case(prob, prob, T(3, 4), r))
    add("binary_cross_entropy_backward", case(dy, prob, prob, None, r), case(dy, prob, prob, T(4), r))
    add("binary_cross_entropy_with_logits", case(T(3, 4), prob, None, None, r), case(T(3, 4), prob, T(4), T(4), r))
    for w in (None, T(5, lo=0.5, hi=2)):
        add("nll_loss_forward", case(T(6, 5), I(6, n=5), w, r, -100), case(T(6, 5), I(6, n=5), w, r, 2))
        add("nll_loss2d_forward", case(T(2, 5, 3, 4), I(2, 3, 4, n=5), w, r, 1))
        add("nll_loss_backward", case(T(6) if r == 0 else T(), T(6, 5), I(6, n=5), w, r, 2, V(4.0)))
        add("nll_loss2d_backward", case(T(2, 3, 4) if r == 0 else T(), T(2, 5, 3, 4), I(2, 3, 4, n=5), w, r, 1, V(20.0)))
add("nll_loss_forward", case(T(5), I(n=5), None, 1, -100))
add("nll_loss_backward", case(T(), T(5), I(n=5), None, 1, -100, V(1.0)))

# Embedding, index.
add("embedding", case(T(7, 3), I(2, 4, n=7)), case(T(7, 3), I(5, n=7, dtype=i32), 2))
add("embedding_dense_backward", case(T(2, 4, 3), I(2, 4, n=7), 7, -1, False), case(T(9, 3), I(9, n=4), 4, 1, False),
    case(T(9, 3), I(9, n=4), 4, -1, True, only=FLOATS))
add("index.Tensor _unsafe_index.Tensor", case(T(4, 5, 6), [I(3, n=4)]), case(T(4, 5, 6), [None, I(2, 3, n=5, lo=-5)]),
    case(T(4, 5, 6), [I(3, n=4), None, I(3, n=6)]), case(T(4, 5, 6), [None, I(2, 1, n=5), I(3, n=6)]),
    case(T(4, 5), [I(n=4)]))
for acc in (False, True):
    add("index_put _unsafe_index_put", case(T(6, 5), [P(None, 6)], T(6, 5), acc), case(T(4, 5, 6), [None, P(None, 5)], T(5, 6), acc),
        case(T(4, 5), [T(4, 5, dtype=b8)], T(), acc), case(T(4, 5), [T(4, dtype=b8)], V(1.5), acc),
        case(T(6, 5, 4), [P(None, 4), None, P(None, 4)], T(4, 5), acc))
add("index_put", case(T(4, 5), [I(9, n=4), I(9, n=5)], T(9), True, only=WIDE + INTS))
add("index_put_ _index_put_impl_", *CASES["index_put"])
add("_index_put_impl", *CASES["index_put"])
add("index_select", case(T(4, 5, 6), 1, I(3, n=5)), case(T(4, 5), -2, I(3, n=4, dtype=i32)), case(T(), 0, I(1, n=1)))
add("index_add", case(T(4, 5), 0, I(6, n=4), T(6, 5)), case(T(4, 5), 1, I(3, n=5), T(4, 3), 0.5), case(T(4, 5), 1, I(3, n=5), T(4, 3), 2))
add("index_copy", case(T(4, 5), 0, P(None, 4), T(4, 5)), case(T(4, 5), 1, P(None, 5), T(4, 5)))
add("index_fill.int_Scalar", case(T(4, 5), 1, I(3, n=5), 2.5), case(T(4, 5), 0, I(2, n=4, lo=-4), 1))
add("index_fill.int_Tensor", case(T(4, 5), 1, I(3, n=5), T()))
add("gather", case(T(4, 5), 1, I(4, 3, n=5)), case(T(4, 5, 2), 0, I(3, 5, 1, n=4)), case(T(), 0, I(n=1)))
add("scatter.src", case(T(4, 5), 1, P(4, 5), T(4, 5)), case(T(5, 6), 1, P(3, 4), T(4, 6)))
add("scatter.value", case(T(4, 5), 1, I(4, 3, n=5), 2.5), case(T(4, 5), 0, I(2, 5, n=4), 1))
for r in ("add", "multiply"):
    add("scatter.reduce", case(T(4, 5), 1, I(4, 3, n=5), T(4, 3), r))
    add("scatter.value_reduce", case(T(4, 5), 1, I(4, 3, n=5), 2, r))
add("scatter_add", case(T(4, 5), 1, I(4, 9, n=5), T(4, 9)), case(T(4, 5), 0, I(7, 3, n=4), T(8, 4)), case(T(), 0, I(n=1), T()))
for r in ("sum", "prod", "mean", "amax", "amin"):
    for include in (True, False):
        add("scatter_reduce.two", case(T(4, 5), 1, I(4, 6, n=5), T(4, 6), r, include))
add("take", case(T(4, 5), I(2, 3, n=20, lo=-20)))
add("put", case(T(4, 5), P(None, 20), T(20)), case(T(4, 5), I(9, n=20), T(9), True, only=WIDE + INTS))
add("masked_scatter", case(T(4, 5), T(4, 5, dtype=b8), T(20)), case(T(4, 5), T(5, dtype=b8), T(4, 5)))

# Shape.
add("cat", case([T(2, 3), T(4, 3)]), case([T(2, 3), T(2, 1, dtype=f32)], 1), case([T(0), T(2, 3)], -1))
add("stack _stack", case([T(2, 3), T(2, 3)]), case([T(2, 3), T(2, 3)], -1))
add("repeat", case(T(2, 3), [2, 1, 3]), case(T(3), [0]), case(T(), [2, 2]))
add("roll", case(T(3, 4), [1], [1]), case(T(3, 4), [2, -1], [0, 1]), case(T(3, 4), [5]))
add("flip", case(T(3, 4), [0]), case(T(3, 4, 2), [0, -1]), case(T(3), []))
add("tril triu", case(T(4, 5)), case(T(2, 4, 5), 1), case(T(4, 5), -2))
add("diag_embed", case(T(2, 3)), case(T(2, 3), 1), case(T(2, 3), -2, 0, 2))
add("diagonal_backward", case(T(3), [3, 5], 0, 0, 1), case(T(4, 3), [3, 4, 5], 2, 0, 2), case(T(4, 2), [3, 4, 5], -1, 0, 2))
add("diagonal_scatter", case(T(3, 5), T(3)), case(T(3, 5), T(2), -1))
add("slice_backward", case(T(2, 3), [2, 8], 1, 1, 7, 2), case(T(2, 2), [2, 8], 1, -2, 9223372036854775807, 1))
add("select_backward", case(T(2, 4), [2, 3, 4], 1, -1), case(T(3), [3, 4], 1, 2))
add("slice_scatter", case(T(2, 8), T(2, 3), 1, 1, 7, 2), case(T(4, 3), T(2, 3), 0, None, 2), case(T(4, 3), T(4, 3)))
add("select_scatter", case(T(3, 4), T(3), 1, -1))
add("pixel_shuffle", case(T(2, 8, 3, 4), 2))
add("pixel_unshuffle", case(T(2, 2, 6, 4), 2))
add("channel_shuffle", case(T(2, 6, 3, 4), 3))
add("unfold_backward", case(T(2, 4, 3), [2, 9], 1, 3, 2), case(T(3, 5, 2), [4, 5], 0, 2, 1))
add("_unsafe_view", case(T(3, 4), [2, 6]))
add("constant_pad_nd", case(T(3, 4), [1, 2]), case(T(3, 4), [1, 2, -1, 1], 2.5), case(T(3, 4), [0, 1], 3))
for n, shape in ((1, (2, 5)), (2, (2, 3, 4, 5)), (3, (2, 4, 4, 5))):
    pads = [1, 2, 0, 1, 1, 0][: 2 * n]
    out = list(shape)
    for k in range(n):
        out[-1 - k] += pads[2 * k] + pads[2 * k + 1]
    for kind in ("reflection", "replication"):
        add(f"{kind}_pad{n}d", case(T(*shape), pads))
        add(f"{kind}_pad{n}d_backward", case(T(*out), T(*shape), pads))

# Resampling.
SIZES = {1: ((2, 3, 5), [8]), 2: ((2, 3, 5, 4), [7, 9]), 3: ((1, 2, 3, 4, 5), [5, 3, 7])}
for kind, n in [("nearest", 1), ("nearest", 2), ("nearest", 3), ("exact", 1), ("exact", 2), ("exact", 3),
                ("linear", 1), ("bilinear", 2), ("trilinear", 3), ("bicubic", 2)]:
    op = f"_upsample_nearest_exact{n}d" if kind == "exact" else f"upsample_{kind}{n}d"
    shape, out = SIZES[n]
    for align in ([[False], [True]] if "linear" in kind or kind == "bicubic" else [[]]):
        for size in (out, [2 * s for s in shape[2:]], [2] * n):
            add(op, case(T(*shape), size, *align))
            add(op + "_backward", case(T(*shape[:2], *size), size, list(shape), *align))
        factor = [1.7] * n
        size = [math.floor(s * 1.7) for s in shape[2:]]
        add(op, case(T(*shape), size, *align, *factor))
        add(op + "_backward", case(T(*shape[:2], *size), size, list(shape), *align, *factor))

for mode in (0, 1):
    for padding in (0, 1, 2):
        for align in (False, True):
            args = (mode, padding, align)
            add("grid_sampler_2d", case(T(2, 3, 5, 6), T(2, 4, 3, 2, lo=-1.4, hi=1.4), *args, only=WIDE))
            add("grid_sampler_2d_backward",
                case(T(2, 3, 4, 3), T(2, 3, 5, 6), T(2, 4, 3, 2, lo=-1.4, hi=1.4), *args, [True, True], only=WIDE))
for p in (2.0, 1.0, 0.0, inf, 3.0):
    add("_cdist_forward", case(T(3, 5), T(4, 5), p, None, only=WIDE), case(T(2, 3, 5), T(2, 4, 5), p, None, only=WIDE))

    def cdist_backward(d, p=p):
        if d not in WIDE:
            return None
        x, y = torch.randn(2, 3, 5).to(d), torch.randn(2, 4, 5).to(d)
        return torch.randn(2, 3, 4).to(d), x, y, p, torch.ops.aten._cdist_forward(x, y, p, None)

    add("_cdist_backward", cdist_backward)
add("_trilinear", case(T(4, 5), T(3, 5, 6), T(4, 6), [1, 3], [0], [1, 2], [2, 3]))

# Numbers to tensors, copies.
for a in ((0, 7), (2, 9, 3), (5, -3, -2)):
    n = len(range(*a))
    full = (a[0], a[1], a[2] if len(a) > 2 else 1)
    add("arange.start_out", lambda d, full=full, n=n: (*full, torch.zeros(n, dtype=d)))
    add("arange.start_step", case(*full))
add("arange.start_out", lambda d: (0.5, 2.6, 0.25, torch.zeros(9, dtype=d)))
add("arange", case(5), case(4.5))
add("arange.start", case(2, 9))
add("linspace", case(0, 1, 7), case(-2.5, 9.0, 10), case(3, 3, 1))
add("logspace", case(0, 1, 7), case(-2.5, 1.5, 6, 2.0))
add("eye", case(4))
add("eye.m", case(3, 5))
add("zero_", case(T(3, 4)))
add("fill_.Scalar fill.Scalar", case(T(3, 4), 2.5), case(T(3, 4), 3), case(T(3), True))
add("fill_.Tensor fill.Tensor", case(T(3, 4), T()), case(T(3, 4), host(1.5, f32)))
add("full_like", case(T(3, 4), 2.5))
add("zeros_like ones_like", case(T(3, 4)))
add("full", case([3, 2], 2.5))
add("zeros ones", case([3, 2]))
add("new_full", case(T(3), [2, 2], 1.5))
add("new_zeros new_ones", case(T(3), [2, 2]))
add("scalar_tensor", case(2.5))
add("tril_indices triu_indices", case(3, 4, 1))
add("copy_ copy", case(T(3, 4), T(3, 4, dtype=f32)), case(T(3, 4), T(4)), case(T(3, 4), T(3, 4, dtype=i64)),
    case(T(3, 4), T(3, 4, dtype=b8)))
add("clone", case(T(3, 4)), case(T(2, 3, 4, 5)))
add("_to_copy", *[case(T(3, 4), to) for to in (f32, f64, bf16, f16, i64, i32, u8, b8)], case(V([0.9, -0.9, 1.5, 2.49]), i64))

# Recurrent cells (their references are below).
add("_thnn_fused_lstm_cell", case(T(3, 8), T(3, 8), T(3, 2), T(8), T(8), only=FLOATS), case(T(3, 8), T(3, 8), T(3, 2), only=FLOATS))
add("_thnn_fused_gru_cell", case(T(3, 6), T(3, 6), T(3, 2), T(6), T(6), only=FLOATS), case(T(3, 6), T(3, 6), T(3, 2), only=FLOATS))


def lstm_backward(hy, cy, bias):
    def make(d):
        if d not in WIDE:
            return None
        ig, hg, cx = torch.randn(3, 8).to(d), torch.randn(3, 8).to(d), torch.randn(3, 2).to(d)
        _, new, work = lstm_cell(ig, hg, cx)
        return torch.randn(3, 2).to(d) if hy else None, torch.randn(3, 2).to(d) if cy else None, cx, new, work, bias

    return make


add("_thnn_fused_lstm_cell_backward_impl", lstm_backward(True, True, True), lstm_backward(True, False, False),
    lstm_backward(False, True, True))


def gru_backward(bias):
    def make(d):
        if d not in WIDE:
            return None
        _, work = gru_cell(torch.randn(3, 6).to(d), torch.randn(3, 6).to(d), torch.randn(3, 2).to(d))
        return torch.randn(3, 2).to(d), work, bias

    return make


add("_thnn_fused_gru_cell_backward", gru_backward(True), gru_backward(False))


def lstm_cell(ig, hg, cx, b1=None, b2=None):
    gates = ig.double() + hg.double()
    gates = gates + (b1.double() if b1 is not None else 0) + (b2.double() if b2 is not None else 0)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx.double() + i * g
    return tuple(t.to(ig.dtype) for t in (o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)))


def lstm_cell_backward(ghy, gcy, cx, cy, work, bias):
    """By autograd, from gate values that the workspace implies."""
    i, f, g, o = work.chunk(4, 1)
    pre = torch.cat([i.logit(), f.logit(), g.atanh(), o.logit()], 1).detach().requires_grad_()
    c = cx.detach().clone().requires_grad_()
    i, f, g, o = pre.chunk(4, 1)
    new = f.sigmoid() * c + i.sigmoid() * g.tanh()
    h = o.sigmoid() * new.tanh()
    loss = (h * ghy).sum() if ghy is not None else 0
    loss = loss + ((new * gcy).sum() if gcy is not None else 0)
    dg, dc = torch.autograd.grad(loss, [pre, c])
    return dg, dc, dg.sum(0) if bias else None


def gru_cell(ig, hg, hx, b1=None, b2=None):
    x = ig.double() + (b1.double() if b1 is not None else 0)
    y = hg.double() + (b2.double() if b2 is not None else 0)
    (xr, xz, xn), (yr, yz, yn) = x.chunk(3, 1), y.chunk(3, 1)
    r, z = (xr + yr).sigmoid(), (xz + yz).sigmoid()
    n = (xn + r * yn).tanh()
    hy = n + z * (hx.double() - n)
    return tuple(t.to(ig.dtype) for t in (hy, torch.cat([r, z, n, hx.double(), yn], 1)))


def gru_cell_backward(ghy, work, bias):
    r, z, n, hx, yn = work.chunk(5, 1)
    hx = hx.detach().clone().requires_grad_()
    x = torch.cat([r.logit(), z.logit(), n.atanh() - r * yn], 1).detach().requires_grad_()
    y = torch.cat([torch.zeros_like(r), torch.zeros_like(z), yn], 1).detach().requires_grad_()
    (xr, xz, xn), (yr, yz, yy) = x.chunk(3, 1), y.chunk(3, 1)
    r, z = (xr + yr).sigmoid(), (xz + yz).sigmoid()
    n = (xn + r * yy).tanh()
    hy = n + z * (hx - n)
    dx, dy, dh = torch.autograd.grad((hy * ghy).sum(), [x, y, hx])
    return dx, dy, dh, dx.sum(0) if bias else None, dy.sum(0) if bias else None


# Attention.
ATT = [((2, 3, 5, 4), (2, 3, 5, 4), None, False, None), ((2, 3, 5, 4), (2, 3, 5, 4), None, True, None),
       ((1, 2, 4, 8), (1, 2, 6, 8), (4, 6), False, 0.3), ((2, 3, 5, 4), (2, 3, 7, 4), (2, 1, 5, 7), False, None),
       ((2, 2, 6, 4), (2, 2, 6, 4), (1, 2, 1, 6), True, None), ((2, 6, 5, 4), (2, 2, 5, 4), None, True, None)]


def att_operands(d, q, k, b):
    """The kernel takes rows that are contiguous (others never come to it)."""
    return [resolve(T(*s), d).contiguous() if s else None for s in (q, k, k, b)]


def att_case(q, k, b, causal, scale):
    def make(d):
        if d not in (f32, bf16, f64):
            return None
        x, y, v, bias = att_operands(d, q, k, b)
        return x, y, v, 0.0, causal, bias, scale

    return make


def att_backward(q, k, b, causal, scale):
    def make(d):
        if d not in (f32, f64):
            return None
        x, y, v, bias = att_operands(d, q, k, b)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, y, v, 0.0, causal, attn_mask=bias, scale=scale)
        return resolve(T(*out.shape), d).contiguous(), x, y, v, out, lse, 0.0, causal, bias, scale

    return make


add("_scaled_dot_product_flash_attention_for_cpu", *[att_case(*a) for a in ATT])
add("_scaled_dot_product_flash_attention_for_cpu_backward", *[att_backward(*a) for a in ATT])
add("_fused_rms_norm_backward",
    lambda d: None if d not in WIDE else (torch.randn(3, 5).to(d), (x := torch.randn(3, 5).to(d)), [5],
                                          (x * x).mean(1, keepdim=True).add(1e-5).rsqrt(), torch.randn(5).to(d), [True, True]))


def rms_backward(g, x, shape, rstd, w, mask):
    x, w = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    y = x * (x * x).mean(1, keepdim=True).add(1e-5).rsqrt() * w
    return torch.autograd.grad((y * g).sum(), [x, w])


# Gradient scaling, fused optimisers.
def scaled_grads(bad):
    def make(d):
        if d not in FLOATS:
            return None
        grads = [torch.randn(3, 4).to(d), torch.randn(5).to(d)]
        if bad:
            grads[1][2] = bad
        return grads, torch.zeros(1), torch.tensor(0.25)

    return make


add("_amp_foreach_non_finite_check_and_unscale_", scaled_grads(None), scaled_grads(inf), scaled_grads(nan))
for found in (0.0, 1.0):
    for tracker in (3, 9):
        add("_amp_update_scale_", lambda d, f=found, t=tracker: None if d != f32 else (
            torch.tensor(64.0), torch.tensor(t, dtype=i32), torch.tensor(f), 2.0, 0.5, 10))


def params(d, lists, step=3.0):
    shapes = [(3, 4), (5,)]
    out = [[torch.randn(s).to(d) for s in shapes] for _ in range(lists)]
    return out, [torch.tensor(step) for _ in shapes]


def fused_adam(amsgrad, maximize, scaled, tensor_lr):
    def make(d):
        if d not in WIDE:
            return None
        (p, g, m, v, x), steps = params(d, 5)
        v, x = [t.abs() for t in v], [t.abs() for t in x]
        lr = torch.tensor(0.01, dtype=f64) if tensor_lr else 0.01
        extra = (torch.tensor(4.0), torch.tensor(0.0)) if scaled else (None, None)
        return p, g, m, v, x if amsgrad else [], steps, lr, 0.9, 0.99, 0.1, 1e-8, amsgrad, maximize, *extra

    return make


for kind in ("_fused_adam_", "_fused_adamw_"):
    for flags in ((False, False, False), (True, False, False), (False, True, True), (True, True, True)):
        add(kind, fused_adam(*flags, False))
        add(kind + ".tensor_lr", fused_adam(*flags, True))


def fused_sgd(momentum, nesterov, maximize, first, scaled, tensor_lr):
    def make(d):
        if d not in WIDE:
            return None
        (p, g, b), _ = params(d, 3)
        lr = torch.tensor(0.01, dtype=f64) if tensor_lr else 0.01
        extra = (torch.tensor(4.0), torch.tensor(0.0)) if scaled else (None, None)
        return p, g, b if momentum else [], 0.1, momentum, lr, 0.2 if not nesterov else 0.0, nesterov, maximize, first, *extra

    return make


for flags in ((0.0, False, False, False, False), (0.9, False, False, False, False), (0.9, True, True, False, False),
              (0.9, False, False, True, True)):
    add("_fused_sgd_", fused_sgd(*flags, False))
    add("_fused_sgd_.tensor_lr", fused_sgd(*flags, True))


def fused_adagrad(d):
    if d not in WIDE:
        return None
    (p, g, s), steps = params(d, 3)
    return p, g, [t.abs() for t in s], steps, 0.01, 0.05, 0.1, 1e-8, False


add("_fused_adagrad_", fused_adagrad)

# Multi-tensor ops.
LIST = [T(3, 4), T(5), T(2, 1, 3)]
POSITIVE = [T(3, 4, lo=0.5, hi=3), T(5, lo=0.5, hi=3), T(2, 1, 3, lo=0.5, hi=3)]
UNIT = [T(3, 4, lo=-0.9, hi=0.9), T(5, lo=-0.9, hi=0.9)]
for f in ("abs atan ceil cos cosh erf erfc exp expm1 floor frac lgamma neg reciprocal round sigmoid sign sin sinh tan "
          "tanh trunc").split():
    add(f"_foreach_{f} _foreach_{f}_", case(LIST))
for f in "log log10 log1p log2 rsqrt sqrt".split():
    add(f"_foreach_{f} _foreach_{f}_", case(POSITIVE))
for f in "acos asin".split():
    add(f"_foreach_{f} _foreach_{f}_", case(UNIT))
for f in "add sub mul div maximum minimum clamp_min clamp_max pow".split():
    base = POSITIVE if f == "pow" else LIST
    add(f"_foreach_{f}.List _foreach_{f}_.List", case(base, POSITIVE))
    add(f"_foreach_{f}.Scalar _foreach_{f}_.Scalar", case(base, 2), case(base, 1.5))
    add(f"_foreach_{f}.ScalarList _foreach_{f}_.ScalarList", case(base, [1.5, 2.0, -0.5]), case(base, [2, 3, 1]))
for f in "add sub".split():
    add(f"_foreach_{f}.List _foreach_{f}_.List", case(LIST, POSITIVE, 0.5))
for f in "add mul div".split():
    add(f"_foreach_{f}.Tensor _foreach_{f}_.Tensor", case(LIST, V(1.5)))
add("_foreach_pow.ScalarAndTensor", case(2.5, LIST), case(0.9, [V(3.0), V(4.0)]))
add("_foreach_lerp.List _foreach_lerp_.List", case(LIST, LIST, UNIT + [T(2, 1, 3, lo=0, hi=1)]))
add("_foreach_lerp.Scalar _foreach_lerp_.Scalar", case(LIST, LIST, 0.1), case(LIST, LIST, 0.8))
add("_foreach_lerp.ScalarList _foreach_lerp_.ScalarList", case(LIST, LIST, [0.1, 0.9, 0.5]))
for f in "addcmul addcdiv".split():
    add(f"_foreach_{f}.Scalar _foreach_{f}_.Scalar", case(LIST, LIST, POSITIVE), case(LIST, LIST, POSITIVE, 0.3))
    add(f"_foreach_{f}.ScalarList _foreach_{f}_.ScalarList", case(LIST, LIST, POSITIVE, [0.3, -1.0, 2.0]))
    add(f"_foreach_{f}.Tensor _foreach_{f}_.Tensor", case(LIST, LIST, POSITIVE, Spec(lambda d: torch.tensor([0.3, -1.0, 2.0]).to(d))))
add("_foreach_norm.Scalar", *[case(LIST, p) for p in (2, 1, inf, 3)])
add("_foreach_powsum.Scalar", *[case(LIST, p) for p in (2, 1, 3)])
add("_foreach_max", case(LIST))
add("_foreach_mm", case([T(2, 3), T(4, 2)], [T(3, 5), T(2, 1)]))
add("_foreach_zero_", case(LIST))
add("_foreach_copy_ _foreach_copy", case(LIST, POSITIVE), case(LIST, [T(3, 4, dtype=f32), T(5, dtype=f32), T(2, 1, 3, dtype=f32)]))
add("_foreach_clone", case(LIST))


# Random ops: an independent Philox.
def philox(n, word):
    m = (1 << 32) - 1
    out = []
    for i in range(n):
        seed, counter = SEED[0], SEED[1] + i
        k0, k1 = seed & m, seed >> 32
        c = [counter & m, counter >> 32, 0, 0]
        for r in range(10):
            if r:
                k0, k1 = (k0 + 0x9E3779B9) & m, (k1 + 0xBB67AE85) & m
            p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
            c = [(p1 >> 32) ^ c[1] ^ k0, p1 & m, (p0 >> 32) ^ c[3] ^ k1, p0 & m]
        out.append(c[word])
    return out


def unit(t):
    n = t.numel()
    if t.dtype == f64:
        return torch.tensor([((h << 32 | l) >> 11) / 2**53 for h, l in zip(philox(n, 0), philox(n, 1))], dtype=f64).reshape(t.shape)
    return torch.tensor([(w >> 8) / 2**24 for w in philox(n, 0)], dtype=f32).reshape(t.shape)


def gauss(t):
    n = t.numel()
    if t.dtype == f64:
        w = [philox(n, k) for k in range(4)]
        u1, u2 = (torch.tensor([((a << 32 | b) >> 11) / 2**53 for a, b in zip(w[i], w[i + 1])], dtype=f64) for i in (0, 2))
    else:
        u1, u2 = (torch.tensor([(x >> 8) / 2**24 for x in philox(n, k)], dtype=f32) for k in (0, 1))
    return ((-2 * (1 - u1).log()).sqrt() * (2 * math.pi * u2).cos()).reshape(t.shape)


def below(n, lo, hi):
    return torch.tensor([lo + (h << 32 | l) % (hi - lo) for h, l in zip(philox(n, 0), philox(n, 1))])


def ref_uniform(x, lo=0.0, hi=1.0, generator=None):
    return x.copy_(unit(x) * (hi - lo) + lo)


def ref_normal(x, mean=0.0, std=1.0, generator=None):
    return x.copy_(gauss(x) * std + mean)


def ref_bernoulli(x, p=0.5, generator=None):
    u = unit(torch.empty(x.shape, dtype=f64 if isinstance(p, torch.Tensor) and p.dtype == f64 else f32)).double()
    return x.copy_((u < (p.double() if isinstance(p, torch.Tensor) else p)).to(x.dtype))


def ref_dropout(x, p, train):
    keep = ref_bernoulli(torch.empty(x.shape, dtype=b8), 1 - p) if train is None or train else torch.ones(x.shape, dtype=b8)
    scale = 1 / (1 - p) if train is None or train else 1
    return (x.double() * keep * scale).to(x.dtype), keep


def ref_random(x, *bounds):
    bounds = [b for b in bounds if isinstance(b, int)]
    if not bounds:
        bounds = [{torch.bool: 2, u8: 256, torch.int8: 128, i32: 2**31, i64: 2**63 - 1, f16: 2049, bf16: 257, f32: 2**24 + 1,
                   f64: 2**53 + 1}[x.dtype]]
    lo, hi = (0, bounds[0]) if len(bounds) == 1 else bounds
    return x.copy_(below(x.numel(), lo, hi).reshape(x.shape).to(x.dtype))


def ref_exponential(x, rate=1.0, generator=None):
    return x.copy_(-(1 - unit(x)).log() / rate)


add("uniform_", case(T(3, 4), -1.0, 2.0, only=FLOATS))
add("normal_", case(T(3, 4), 1.0, 2.0, only=FLOATS))
add("bernoulli", case(T(3, 4, lo=0, hi=1), only=FLOATS))
add("bernoulli_.float", case(T(3, 4), 0.3))
add("bernoulli_.Tensor", case(T(3, 4), T(3, 4, lo=0, hi=1, dtype=f32)), case(T(3, 4), T(3, 4, lo=0, hi=1, dtype=f64)))
add("native_dropout", case(T(3, 4), 0.3, True, only=FLOATS), case(T(3, 4), 0.3, None, only=FLOATS), case(T(3, 4), 0.3, False, only=FLOATS))
add("native_dropout_backward", case(T(3, 4), T(3, 4, dtype=b8), 1.5))
add("random_", case(T(3, 4), only=INTS + FLOATS))
add("random_.from", case(T(3, 4), -4, 40))
add("random_.to", case(T(3, 4), 50))
add("exponential_", case(T(3, 4), 1.5, only=FLOATS))

add("rrelu_with_noise_functional", case(T(3, 4), T(3, 4), 0.1, 0.3, False, only=WIDE))
add("_masked_scale", case(T(3, 4), T(3, 4, dtype=b8), 1.5, only=FLOATS))

ONCE = (f32,)
# Overloads whose eager kernel exists on accelerators only: the same reference.
add("mm.dtype", case(T(3, 4), T(4, 5), f32, only=(bf16, f16)))
add("bmm.dtype", case(T(2, 3, 4), T(2, 4, 5), f32, only=(bf16, f16)))
add("addmm.dtype", case(T(5, dtype=f32), T(3, 4), T(4, 5), f32, 0.5, 2.0, only=(bf16, f16)))
add("baddbmm.dtype", case(T(5, dtype=f32), T(2, 3, 4), T(2, 4, 5), f32, only=(bf16, f16)))
add("convolution_overrideable _convolution", *map(conv_case, CONVS[:8]))
CASES["_convolution"] = [lambda d, c=c: None if (a := c(d)) is None else (*a, False, False, False, False) for c in CASES["_convolution"]]
add("convolution_backward_overrideable",
    *[lambda d, c=c: None if (a := c(d)) is None else (*a[:3], *a[4:]) for c in CASES["convolution_backward"]])
add("native_norm.ScalarOpt_dim_dtype", case(T(3, 4), 2, [1], False, None))
add("range", case(2, 9, only=ONCE))
add("linspace.Tensor_Tensor", case(V(0.5), V(3.0), 7, only=ONCE))
add("linspace.Tensor_Scalar", case(V(0.5), 3.0, 7, only=ONCE))
add("linspace.Scalar_Tensor", case(0.5, V(3.0), 7, only=ONCE))
add("_lazy_clone lift", case(T(3, 4)))
add("_copy_from", case(T(3, 4), T(3, 4)))
add("_fused_adagrad_.tensor_lr", lambda d: None if (a := fused_adagrad(d)) is None else (*a[:4], torch.tensor(a[4], dtype=f64), *a[5:]))
add("bucketize.Tensor", case(T(3, 4), V([-2.0, 0.0, 1.0, 2.0])), case(T(3, 4), V([-2.0, 0.0, 1.0, 2.0]), False, True),
    case(V([nan, 1.0, inf, -inf]), V([0.0, 1.0]), True))
add("bucketize.Scalar", case(0.5, V([-2.0, 0.0, 1.0, 2.0])))
SORTED = Spec(lambda d: torch.sort(torch.randn(3, 6).to(d), 1)[0])
add("searchsorted.Tensor", case(SORTED, T(3, 4)), case(SORTED, T(3, 4), True, True), case(SORTED, T(3, 4), False, False, "right"),
    case(V([-2.0, 0.0, 1.0, 2.0]), T(3, 4)))
add("searchsorted.Scalar", case(V([-2.0, 0.0, 1.0, 2.0]), 0.5))
UNFOLD = [((2, 3, 6, 7), [2, 3], [1, 1], [0, 0], [1, 1]), ((2, 3, 6, 7), [3, 2], [2, 1], [1, 2], [2, 3]), ((3, 6, 7), [2, 2], [1, 2], [1, 0], [2, 1])]
add("im2col", *[case(T(*u[0]), *u[1:], only=FLOATS) for u in UNFOLD])


def fold_case(shape, *args):
    def make(d):
        if d not in FLOATS:
            return None
        columns = torch.ops.aten.im2col(torch.zeros(shape), *args)
        return resolve(T(*columns.shape), d), list(shape[-2:]), *args

    return make


add("col2im", *[fold_case(*u) for u in UNFOLD])

RANDOM = {"uniform", "normal", "bernoulli", "native_dropout", "random", "exponential"}
# What stands in for eager where there is no CPU kernel, or where the generator is ours. By packet.
REFERENCE = {
    "_thnn_fused_lstm_cell": lstm_cell, "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "_thnn_fused_gru_cell": gru_cell, "_thnn_fused_gru_cell_backward": gru_cell_backward,
    "_fused_rms_norm_backward": rms_backward, "linear_backward": linear_backward,
    "bernoulli": lambda x, *_: ref_bernoulli(x.clone(), x),
    "mm.dtype": lambda x, y, d: x.to(d) @ y.to(d), "bmm.dtype": lambda x, y, d: x.to(d) @ y.to(d),
    "addmm.dtype": lambda c, x, y, d, beta=1, alpha=1: beta * c.to(d) + alpha * (x.to(d) @ y.to(d)),
    "baddbmm.dtype": lambda c, x, y, d, beta=1, alpha=1: beta * c.to(d) + alpha * (x.to(d) @ y.to(d)),
    "convolution_overrideable": torch.ops.aten.convolution,
    "convolution_backward_overrideable": lambda g, x, w, *a: torch.ops.aten.convolution_backward(g, x, w, [w.shape[1] * a[5] if a[3] else w.shape[0]], *a),
    "native_norm": lambda x, p=2, dim=None, keep=False, dtype=None: torch.linalg.vector_norm(x, p, dim, keep),
    "_lazy_clone": lambda x: x.clone(), "lift": lambda x: x.clone(), "_copy_from": lambda x, y, *_: x.clone(),
    "_masked_scale": lambda x, m, f: x * m.to(x.dtype) * f,
    "uniform_": ref_uniform, "normal_": ref_normal, "bernoulli_": ref_bernoulli, "native_dropout": ref_dropout,
    "random_": ref_random, "exponential_": ref_exponential,
}


# Writes that schemas do not tell (`ffi/shim/op_info.cpp` says the same).
def batch_norm_writes(written, values):
    return [i in (3, 4) for i in range(len(written))]


WRITES = {"native_batch_norm": batch_norm_writes}
# Overloads that eager gets wrong, and how.
EAGER_WRONG = {
    "binary_cross_entropy.out": "the reduction to one element does not divide by the number of elements",
    "_native_batch_norm_legit.no_stats_out": "strided inputs are read as dense ones",
}
