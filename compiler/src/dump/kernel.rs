//! Kernel IR as text.
//!
//! ```text
//! kernel 3 row_add_5 (row)
//!   for i0 in 0..1024
//!     for i1 in 0..256 reduced
//!   e4 : f32 = load arg0[256 i0 + i1]
//!   r0 : f32 = sum e4
//!   store arg3[256 i0 + i1] = e9
//! ```
use crate::kernel::{Affine, Atom, Expr, ExprOp, Indices, Kernel, LowerOptions, Source, lower};
use crate::program::Program;
use std::fmt::Write as _;

/// Innermost loops shorter than this are merged with their neighbours, as on the CPU.
const MIN_INNER: i64 = 16;

/// Kernels of a program; what cannot be lowered says why.
pub(super) fn kernels_text(program: &Program) -> String {
    let mut out = String::new();
    for (n, spec) in program.kernels.iter().enumerate() {
        let _ = writeln!(out, "kernel {n} {} ({:?})", spec.name, spec.kind);
        match lower(spec.kind, &spec.body, LowerOptions { min_inner: MIN_INNER }) {
            Ok(k) => out += &kernel_text(&k),
            Err(e) => {
                let _ = writeln!(out, "  {e}");
            }
        }
        out.push('\n');
    }
    out
}

/// One kernel: loops, expressions in the order they are computed, reductions, stores.
pub fn kernel_text(k: &Kernel) -> String {
    let mut out = String::new();
    for (n, ty) in k.args.iter().enumerate() {
        let what = if n < k.n_inputs { "in" } else { "out" };
        let _ = writeln!(out, "  arg{n} : {ty} ({what})");
    }
    for (n, l) in k.loops.iter().enumerate() {
        let reduced = if l.reduced { " reduced" } else { "" };
        let _ = writeln!(out, "  {}for i{n} in 0..{}{reduced}", "  ".repeat(n), l.extent);
    }
    k.exprs.walk(&k.ix, &k.roots(), &mut |id| {
        let e = k.exprs.get(id);
        let _ = writeln!(out, "  e{} : {} = {}", id.0, e.dtype, expr(k, e));
    });
    for (n, r) in k.reductions.iter().enumerate() {
        let _ = writeln!(out, "  r{n} : {} = {:?} e{} (level {})", r.dtype, r.kind, r.value.0, r.level);
    }
    for s in &k.stores {
        let once = if s.full { "" } else { " once per kept point" };
        let _ = writeln!(out, "  store arg{}[{}] = e{}{once}", s.arg, affine(&k.ix, &s.offset), s.value.0);
    }
    out
}

fn expr(k: &Kernel, e: &Expr) -> String {
    let args: Vec<String> = e.args.iter().map(|a| format!("e{}", a.0)).collect();
    let args = args.join(", ");
    let at = |a: &Affine| affine(&k.ix, a);
    match &e.op {
        ExprOp::Const(bits) => {
            let value = crate::ir::decode_f64(e.dtype, &bits.to_le_bytes()[..e.dtype.size()]);
            format!("constant {value}")
        }
        ExprOp::Scalar(n) => format!("scalar{n}"),
        ExprOp::Load { source: Source::Arg(n), offset } => format!("load arg{n}[{}] {args}", at(offset)),
        ExprOp::Load { source: Source::Literal(n), offset } => format!("load literal{n}[{}] {args}", at(offset)),
        ExprOp::Index(a) => format!("index {}", at(a)),
        ExprOp::InRange { index, lo, hi } => format!("{lo} <= {} < {hi}", at(index)),
        ExprOp::Checked { size } => format!("checked {args} in 0..{size}"),
        ExprOp::Op(kind) => format!("{kind} {args}"),
        ExprOp::Compare(dir) => format!("compare {dir:?} {args}"),
        ExprOp::Rng { index, word } => format!("philox word {word} of {args} at {}", at(index)),
        ExprOp::Reduced(n) => format!("r{n}"),
    }
}

fn affine(ix: &Indices, a: &Affine) -> String {
    let mut terms: Vec<String> = Vec::new();
    for &(atom, k) in &a.terms {
        let name = match ix.atom(atom) {
            Atom::Var(n) => format!("i{n}"),
            Atom::Div(x, c) => format!("(({}) / {c})", affine(ix, x)),
            Atom::Mod(x, c) => format!("(({}) % {c})", affine(ix, x)),
            Atom::Value(e) => format!("e{}", e.0),
        };
        terms.push(if k == 1 { name } else { format!("{k} {name}") });
    }
    if a.constant != 0 || terms.is_empty() {
        terms.push(a.constant.to_string());
    }
    terms.join(" + ")
}
