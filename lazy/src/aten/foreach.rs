//! Multi-tensor ops: the composition of a base op, once per element.
use super::blend::addc_element;
use super::{Lowered, Row, find};
use crate::Cx;
use crate::words::Arg;

/// The base op of each family, where it is not called like the family.
static BASES: &[(&str, &str)] = &[
    ("add", "add.Tensor"),
    ("sub", "sub.Tensor"),
    ("mul", "mul.Tensor"),
    ("div", "div.Tensor"),
    ("lerp", "lerp.Tensor"),
    ("pow", "pow.Tensor_Tensor"),
    ("clamp_min", "clamp_min.Tensor"),
    ("clamp_max", "clamp_max.Tensor"),
    ("norm", "norm.Scalar"),
    ("copy", "copy_"),
    ("zero", "zero_"),
];

/// `add` of `aten::_foreach_add_.ScalarList`, and the overload.
fn family(op: &str) -> (&str, &str) {
    let name = op.trim_start_matches("aten::_foreach_");
    let (name, overload) = name.split_once('.').unwrap_or((name, ""));
    (name.strip_suffix('_').unwrap_or(name), overload)
}

/// Number of elements: the length of the first list.
fn length(cx: &Cx) -> usize {
    (0..cx.n_args())
        .find_map(|i| match cx.arg(i) {
            Arg::List(l) => Some(l.len()),
            _ => None,
        })
        .unwrap_or(0)
}

fn foreach(cx: &mut Cx) -> Lowered {
    let (family, overload) = family(cx.op());
    let n = length(cx);
    let mut results = Vec::with_capacity(n);
    if matches!(family, "addcmul" | "addcdiv") && overload.starts_with("Tensor") {
        // The values of all elements are one 1-d tensor.
        for k in 0..n {
            results.extend(addc_element(cx, k, family == "addcdiv")?);
        }
        return Ok(results);
    }
    let base = BASES.iter().find(|b| b.0 == family).map_or(family, |b| b.1);
    let lower = match super::reduce::ELEMENTS.iter().find(|e| e.0 == family) {
        Some(e) => e.1,
        None => match find(&format!("aten::{base}")) {
            Some(row) => row.lower,
            None => return cx.decline(format!("no lowering for {base}")),
        },
    };
    for k in 0..n {
        results.extend(lower(&mut cx.element(k))?);
    }
    Ok(results)
}

macro_rules! foreach_rows {
    (unary: $($u:literal)*; binary: $($b:literal)*; scalars: $($s:literal)*; more: $($m:literal)*;) => {
        &[
            $( Row {
                names: &[concat!("_foreach_", $u), concat!("_foreach_", $u, "_"), concat!("_foreach_", $u, ".out")],
                lower: foreach,
            }, )*
            $( Row {
                names: &[
                    concat!("_foreach_", $b, ".List"), concat!("_foreach_", $b, "_.List"),
                    concat!("_foreach_", $b, ".List_out"), concat!("_foreach_", $b, ".Scalar"),
                    concat!("_foreach_", $b, "_.Scalar"), concat!("_foreach_", $b, ".Scalar_out"),
                    concat!("_foreach_", $b, ".ScalarList"), concat!("_foreach_", $b, "_.ScalarList"),
                    concat!("_foreach_", $b, ".ScalarList_out"),
                ],
                lower: foreach,
            }, )*
            $( Row {
                names: &[
                    concat!("_foreach_", $s, ".Scalar"), concat!("_foreach_", $s, "_.Scalar"),
                    concat!("_foreach_", $s, ".Scalar_out"), concat!("_foreach_", $s, ".ScalarList"),
                    concat!("_foreach_", $s, "_.ScalarList"), concat!("_foreach_", $s, ".ScalarList_out"),
                    concat!("_foreach_", $s, ".Tensor"), concat!("_foreach_", $s, "_.Tensor"),
                    concat!("_foreach_", $s, ".Tensor_out"),
                ],
                lower: foreach,
            }, )*
            Row { names: &[ $( concat!("_foreach_", $m) ),* ], lower: foreach },
        ]
    };
}

pub(super) static ROWS: &[Row] = foreach_rows![
    unary: "abs" "acos" "asin" "atan" "ceil" "cos" "cosh" "erf" "erfc" "exp" "expm1" "floor" "frac" "lgamma" "log"
        "log10" "log1p" "log2" "neg" "reciprocal" "round" "rsqrt" "sigmoid" "sign" "sin" "sinh" "sqrt" "tan" "tanh"
        "trunc";
    binary: "add" "sub" "mul" "div" "maximum" "minimum" "clamp_min" "clamp_max" "pow" "lerp";
    scalars: "addcmul" "addcdiv";
    more: "add.Tensor" "add_.Tensor" "add.Tensor_out" "mul.Tensor" "mul_.Tensor" "mul.Tensor_out" "div.Tensor"
        "div_.Tensor" "div.Tensor_out" "pow.ScalarAndTensor" "norm.Scalar" "norm.Scalar_out" "powsum.Scalar" "powsum.Scalar_out" "max"
        "max.out" "mm" "zero_" "zero" "zero.out" "copy_" "copy" "copy.out" "clone" "clone.out";
];
