//! Which numbers of an op belong to its structure (the signature, and so the compiled program) and which are data.
//!
//! Numbers are data by default, so that a learning rate may change without a new program. A few must be known when an
//! op is lowered: they choose the formula or shape the result.

/// How a `Scalar` or `float` argument is recorded. Integers of type `int` are always structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// A run-time operand: `DataInt`, `DataDouble` or `DataBool`.
    Data,
    /// In the signature: `Int`, `Double` or `Bool`.
    Structure,
    /// In the signature if it is an integer, else data. `alpha = 1`, which is almost always so, costs nothing then,
    /// and `alpha = -lr` does not compile again.
    IntStructure,
}

/// Encoding of the number argument called `argument` in the schema of `op` (`aten::add.Tensor`).
pub fn encoding(op: &str, argument: &str) -> Encoding {
    let name = op.strip_prefix("aten::").unwrap_or(op);
    let name = name.split('.').next().unwrap_or(name);
    let is = |part: &str| name.contains(part);
    match argument {
        // Shapes.
        _ if is("range") || is("linspace") || is("logspace") || is("upsample") || is("_histogramdd") => {
            Encoding::Structure
        }
        // The formula depends on it.
        "ord" | "p" if is("norm") || is("powsum") || is("dist") => Encoding::Structure,
        "exponent" => Encoding::Structure,
        "dropout_p" if is("attention") => Encoding::Structure,
        // Never changes.
        "eps" if is("norm") => Encoding::Structure,
        // Mostly the integer 1.
        "alpha" | "beta" | "correction" => Encoding::IntStructure,
        "value" if is("addcmul") || is("addcdiv") => Encoding::IntStructure,
        _ => Encoding::Data,
    }
}

/// Must the integer or float `argument` of `op` be in the signature?
pub fn is_structural(op: &str, argument: &str, is_int: bool) -> bool {
    match encoding(op, argument) {
        Encoding::Data => false,
        Encoding::Structure => true,
        Encoding::IntStructure => is_int,
    }
}

#[cfg(test)]
mod tests {
    use super::is_structural;

    #[test]
    fn rules() {
        for (op, argument, int, float) in [
            ("aten::add.Tensor", "alpha", true, false),
            ("aten::mul.Scalar", "other", false, false),
            ("aten::pow.Tensor_Scalar", "exponent", true, true),
            ("aten::_foreach_norm.Scalar", "ord", true, true),
            ("aten::native_layer_norm", "eps", true, true),
            ("aten::_fused_adamw_", "eps", false, false),
            ("aten::arange.start_out", "step", true, true),
            ("aten::normal_", "std", false, false),
            ("aten::_foreach_addcdiv_.ScalarList", "scalars", false, false),
        ] {
            assert_eq!((is_structural(op, argument, true), is_structural(op, argument, false)), (int, float), "{op}");
        }
    }
}
