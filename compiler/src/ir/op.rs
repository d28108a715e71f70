//! The primitive ops: one row each.
//!
//! A row gives the op's doc, text name, class and number of operands. Everything else that is known of an op
//! (type rule, reference evaluator, sample inputs, cost) is found through an exhaustive `match` or table on
//! [`OpKind`], without a `_` arm, so that a new row does not compile until each of them has been thought about.

/// What kind of computation an op is. Passes and backends decide by class, never by their own lists of ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Function inputs and constants.
    Leaf,
    /// One result element from the elements at the same index of each operand (all operands have equal sizes).
    Elementwise,
    /// Each result element is a copy of one operand element (or of a padding value); index arithmetic only.
    Movement,
    /// Movement whose index comes from the values of integer operands.
    Indexed,
    /// Many operand elements make one result element.
    Reduction,
    /// Matrix products, convolutions and attention.
    Contraction,
    /// Sorting, scans, windows, scatters: run by a library kernel of the device.
    Library,
    /// Random bits from a counter.
    Random,
    /// Structure: fusions and barriers.
    Structural,
}

macro_rules! ops {
    ($( $(#[doc = $doc:literal])+ $Kind:ident = $name:literal, $class:ident, $arity:expr; )*) => {
        /// A primitive op.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[repr(u8)]
        pub enum OpKind { $( $(#[doc = $doc])+ $Kind ),* }
        struct Row { name: &'static str, class: Class, arity: Option<usize>, doc: &'static str }
        static ROWS: &[Row] = &[ $( Row { name: $name, class: Class::$class, arity: $arity, doc: concat!($($doc),+) } ),* ];
        impl OpKind {
            /// All ops in table order.
            pub const ALL: &'static [OpKind] = &[ $( OpKind::$Kind ),* ];
        }
    };
}

impl OpKind {
    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }
    /// Name in the text form.
    pub fn name(self) -> &'static str {
        self.row().name
    }
    pub fn class(self) -> Class {
        self.row().class
    }
    /// Number of operands; `None` if it varies.
    pub fn arity(self) -> Option<usize> {
        self.row().arity
    }
    /// One line of documentation.
    pub fn doc(self) -> &'static str {
        self.row().doc.trim()
    }
    /// Inverse of [`OpKind::name`].
    pub fn parse(name: &str) -> Option<OpKind> {
        OpKind::ALL.iter().copied().find(|k| k.name() == name)
    }
    pub fn is_elementwise(self) -> bool {
        self.class() == Class::Elementwise
    }
}

impl std::fmt::Display for OpKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

ops! {
    /// Input number `index` of the function: a tensor in memory, or a runtime scalar (0-d f64 or i64).
    Parameter = "parameter", Leaf, Some(0);
    /// A constant tensor.
    Constant = "constant", Leaf, Some(0);
    /// Element = its own index along `dim`.
    Iota = "iota", Leaf, Some(0);

    /// Absolute value (integers wrap).
    Abs = "abs", Elementwise, Some(1);
    /// Arithmetic negation.
    Negate = "negate", Elementwise, Some(1);
    /// Sign: -1, 0 or 1; NaN and signed zero stay.
    Sign = "sign", Elementwise, Some(1);
    /// e^x.
    Exp = "exponential", Elementwise, Some(1);
    /// e^x - 1.
    Expm1 = "exponential_minus_one", Elementwise, Some(1);
    /// Natural logarithm.
    Log = "log", Elementwise, Some(1);
    /// ln(1 + x).
    Log1p = "log_plus_one", Elementwise, Some(1);
    /// Square root.
    Sqrt = "sqrt", Elementwise, Some(1);
    /// 1 / sqrt(x).
    Rsqrt = "rsqrt", Elementwise, Some(1);
    /// Sine.
    Sin = "sine", Elementwise, Some(1);
    /// Cosine.
    Cos = "cosine", Elementwise, Some(1);
    /// Tangent.
    Tan = "tan", Elementwise, Some(1);
    /// Hyperbolic tangent.
    Tanh = "tanh", Elementwise, Some(1);
    /// 1 / (1 + e^-x).
    Logistic = "logistic", Elementwise, Some(1);
    /// Error function.
    Erf = "erf", Elementwise, Some(1);
    /// Complementary error function.
    Erfc = "erfc", Elementwise, Some(1);
    /// Inverse error function.
    ErfInv = "erf_inv", Elementwise, Some(1);
    /// ln |gamma(x)|.
    Lgamma = "lgamma", Elementwise, Some(1);
    /// Derivative of `lgamma`.
    Digamma = "digamma", Elementwise, Some(1);
    /// Inverse sine.
    Asin = "asin", Elementwise, Some(1);
    /// Inverse cosine.
    Acos = "acos", Elementwise, Some(1);
    /// Inverse tangent.
    Atan = "atan", Elementwise, Some(1);
    /// Hyperbolic sine.
    Sinh = "sinh", Elementwise, Some(1);
    /// Hyperbolic cosine.
    Cosh = "cosh", Elementwise, Some(1);
    /// Inverse hyperbolic sine.
    Asinh = "asinh", Elementwise, Some(1);
    /// Inverse hyperbolic cosine.
    Acosh = "acosh", Elementwise, Some(1);
    /// Inverse hyperbolic tangent.
    Atanh = "atanh", Elementwise, Some(1);
    /// Largest integer not above x.
    Floor = "floor", Elementwise, Some(1);
    /// Smallest integer not below x.
    Ceil = "ceil", Elementwise, Some(1);
    /// Nearest integer, ties to even.
    RoundEven = "round_nearest_even", Elementwise, Some(1);
    /// Integer part, towards zero.
    Trunc = "trunc", Elementwise, Some(1);
    /// Logical not of `i1`, bitwise not of integers.
    Not = "not", Elementwise, Some(1);
    /// x is neither infinite nor NaN (result `i1`).
    IsFinite = "is_finite", Elementwise, Some(1);
    /// Conversion to the result's element type: floats to integers truncate, anything to `i1` is `x != 0`.
    Convert = "convert", Elementwise, Some(1);
    /// The same bits as another type of equal size.
    BitcastConvert = "bitcast_convert", Elementwise, Some(1);

    /// Sum (integers wrap; `i1` is logical or).
    Add = "add", Elementwise, Some(2);
    /// Difference.
    Subtract = "subtract", Elementwise, Some(2);
    /// Product (`i1` is logical and).
    Multiply = "multiply", Elementwise, Some(2);
    /// Quotient: IEEE for floats; truncated for integers, where x / 0 = 0.
    Divide = "divide", Elementwise, Some(2);
    /// C's remainder: the sign of the dividend; x rem 0 = 0 for integers, NaN for floats.
    Remainder = "remainder", Elementwise, Some(2);
    /// x^y; integers by repeated squaring (negative exponents give 0 except for base 1 and -1).
    Power = "power", Elementwise, Some(2);
    /// Larger value; NaN if either is NaN.
    Maximum = "maximum", Elementwise, Some(2);
    /// Smaller value; NaN if either is NaN.
    Minimum = "minimum", Elementwise, Some(2);
    /// Angle of the point (y, x): atan2(lhs, rhs).
    Atan2 = "atan2", Elementwise, Some(2);
    /// Next float after lhs in the direction of rhs.
    NextAfter = "next_after", Elementwise, Some(2);
    /// Bitwise (or logical) and.
    And = "and", Elementwise, Some(2);
    /// Bitwise (or logical) or.
    Or = "or", Elementwise, Some(2);
    /// Bitwise (or logical) exclusive or.
    Xor = "xor", Elementwise, Some(2);
    /// lhs << rhs; 0 when rhs is negative or not below the width.
    ShiftLeft = "shift_left", Elementwise, Some(2);
    /// lhs >> rhs: arithmetic for signed types, logical for unsigned ones; a shift out of range fills with the sign.
    ShiftRight = "shift_right", Elementwise, Some(2);
    /// Comparison by `direction` (result `i1`); NaN compares unequal to everything.
    Compare = "compare", Elementwise, Some(2);
    /// on_true where the first operand (`i1`) holds, else on_false.
    Select = "select", Elementwise, Some(3);

    /// Operand dimension i becomes result dimension `dims[i]`; size-1 dimensions and missing ones repeat.
    BroadcastInDim = "broadcast_in_dim", Movement, Some(1);
    /// The same elements in row-major order under other sizes.
    Reshape = "reshape", Movement, Some(1);
    /// Result dimension i is operand dimension `perm[i]`.
    Transpose = "transpose", Movement, Some(1);
    /// Elements start, start + stride, ... below limit in every dimension.
    Slice = "slice", Movement, Some(1);
    /// Operand surrounded (low, high; may be negative) and interleaved (interior) with the 0-d padding value.
    Pad = "pad", Movement, Some(2);
    /// Operands one after the other along `dim`.
    Concatenate = "concatenate", Movement, None;
    /// Order reversed along `dims`.
    Reverse = "reverse", Movement, Some(1);

    /// Slice of given sizes at run-time starts (0-d i64, one per dimension, clamped into range).
    DynamicSlice = "dynamic_slice", Indexed, None;
    /// Operand with the update written at run-time starts (0-d i64, one per dimension, clamped into range).
    DynamicUpdateSlice = "dynamic_update_slice", Indexed, None;
    /// `gather(operand, idx_0..idx_m)`: result[i.., r..] = operand[dims[k] at idx_k[i..], other dims at r..]; the i64
    /// index tensors have equal sizes I and the result has sizes I ++ (operand dims not in `dims`, in order).
    Gather = "gather", Indexed, None;
    /// `scatter(operand, idx_0..idx_m, updates)`: the inverse of `gather`; updates of equal index combine in row-major
    /// order of I by `kind` (set: the last wins).
    Scatter = "scatter", Library, None;

    /// Combines all elements along `dims` by `kind`.
    Reduce = "reduce", Reduction, Some(1);
    /// Index (i64) of the first extreme element along `dim`; NaN is extreme.
    ArgReduce = "arg_reduce", Reduction, Some(1);
    /// Running combination along `dim` by `kind`.
    Cumulative = "cumulative", Library, Some(1);
    /// Combination by `kind` over windows (one [`super::WindowDim`] per dimension; padding is the identity).
    ReduceWindow = "reduce_window", Library, Some(1);
    /// Maximum over windows and its index (i64) in the flattened windowed dimensions: (values, indices). Dimensions
    /// with a window of size 1 and stride 1 are batch dimensions. The first of equal maxima wins, the last NaN over all.
    MaxPoolWithIndex = "max_pool_with_index", Library, Some(1);

    /// Batched matrix product: result is batch ++ lhs free ++ rhs free; accumulates in f32 (f64 for f64).
    DotGeneral = "dot_general", Contraction, Some(2);
    /// Convolution of (input, kernel), dimension numbers and window as in StableHLO.
    Convolution = "convolution", Contraction, Some(2);
    /// softmax(q·kᵀ·scale + bias)·v for q, k, v of [batch, heads, time, depth]: (out, logsumexp f32 [batch, heads, time]).
    /// Operands: q, k, v, scale (0-d f64), and optionally a bias broadcastable to the scores. Causal: query i sees keys
    /// 0 to i. A query that sees no key has out 0 and logsumexp -inf.
    Attention = "attention", Contraction, None;
    /// Gradients (dq, dk, dv) of `attention` from (q, k, v, scale, out, logsumexp, dout[, bias]).
    AttentionBackward = "attention_backward", Contraction, None;

    /// Sorted (values, i64 indices) along `dim`; NaN is greatest; stable.
    Sort = "sort", Library, Some(1);
    /// The k largest or smallest (values, i64 indices) along the last dimension, sorted.
    TopK = "top_k", Library, Some(1);

    /// Philox4x32-10 bits (`ui32`): element i is word `word` of the block with key `seed` and counter `offset + i`.
    RngBits = "rng_bits", Random, Some(2);

    /// Results equal operands; nothing is moved, merged or simplified across it.
    OptimizationBarrier = "optimization_barrier", Structural, None;
    /// A group of ops that one kernel computes: the attached body, applied to the operands.
    Fusion = "fusion", Structural, None;
}
