//! Printer of the text form. Prints broken graphs too: the verifier quotes instructions it complains about.
use super::{attrs, element};
use crate::ir::{Attrs, Graph, Inst, InstId, Literal, OpKind, ParamKind, TensorType, Value};
use std::fmt::{self, Write};

/// Non-splat constants with more elements than this print as one hexadecimal string.
const MAX_LISTED: usize = 64;
/// A function head longer than this has one parameter a line.
const MAX_WIDTH: usize = 90;

/// What to print besides the graph itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrintOptions {
    /// Append `loc(n)` to instructions whose [`Inst::loc`] is not 0.
    pub locs: bool,
    /// Print non-splat constants with more elements than this as `dense<...>`, which does not parse.
    pub elide_above: Option<usize>,
}

/// The text of a graph; ends with a line break.
pub fn print(graph: &Graph, options: &PrintOptions) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = Printer { graph, options, indent: 0 }.graph(&mut out);
    out
}

/// The text of one instruction (of several lines if it is a fusion), without a line break at its end.
pub fn print_inst(graph: &Graph, id: InstId) -> String {
    let mut out = String::new();
    let options = PrintOptions { locs: false, elide_above: Some(MAX_LISTED) };
    let _ = Printer { graph, options: &options, indent: 0 }.inst(&mut out, graph.inst(id));
    out
}

/// `dense<...> : type`.
pub fn print_literal(literal: &Literal) -> String {
    format!("{} : {}", dense(literal, None), literal.ty)
}

impl fmt::Display for Graph {
    /// The text form with [`PrintOptions::default`], without a line break at its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(print(self, &PrintOptions::default()).trim_end())
    }
}

struct Printer<'a> {
    graph: &'a Graph,
    options: &'a PrintOptions,
    indent: usize,
}

impl Printer<'_> {
    fn margin(&self, out: &mut String) {
        out.extend(std::iter::repeat_n("  ", self.indent));
    }

    fn graph(&mut self, out: &mut String) -> fmt::Result {
        let g = self.graph;
        let params: Vec<String> = (0..g.params.len()).map(|i| self.param(i)).collect();
        self.margin(out);
        write!(out, "func @{}(", name(&g.name))?;
        let joined = params.join(", ");
        if joined.len() + g.name.len() > MAX_WIDTH && params.len() > 1 {
            for (i, param) in params.iter().enumerate() {
                out.push('\n');
                self.indent += 2;
                self.margin(out);
                self.indent -= 2;
                write!(out, "{param}{}", if i + 1 < params.len() { "," } else { "" })?;
            }
        } else {
            out.push_str(&joined);
        }
        out.push_str(") {\n");
        self.indent += 1;
        for (id, inst) in g.iter() {
            // The instruction of a parameter is its entry in the head.
            if let (OpKind::Parameter, Attrs::Index(i)) = (inst.kind, &inst.attrs)
                && self.param_inst(*i as usize) == Some(id)
            {
                continue;
            }
            self.margin(out);
            self.inst(out, inst)?;
            out.push('\n');
        }
        self.margin(out);
        out.push_str("return");
        for (i, v) in g.results.iter().enumerate() {
            write!(out, "{} %{}", if i > 0 { "," } else { "" }, v.0)?;
        }
        self.indent -= 1;
        out.push('\n');
        self.margin(out);
        out.push_str("}\n");
        Ok(())
    }

    /// The first instruction that stands for parameter `index`.
    fn param_inst(&self, index: usize) -> Option<InstId> {
        let is_it = |inst: &Inst| inst.kind == OpKind::Parameter && inst.attrs == Attrs::Index(index as u32);
        // Parameters come first in all but hand-made graphs, so that this stops early.
        self.graph.iter().find(|(_, inst)| is_it(inst)).map(|(id, _)| id)
    }

    fn param(&self, index: usize) -> String {
        let param = &self.graph.params[index];
        let value = match self.param_inst(index) {
            Some(id) => format!("%{}", self.graph.inst(id).first.0),
            None => "%_".into(),
        };
        let ty = match param.kind {
            ParamKind::Tensor => param.ty.to_string(),
            ParamKind::Scalar if param.ty.rank() == 0 => format!("scalar<{}>", param.ty.dtype),
            ParamKind::Scalar => format!("scalar<{}>", param.ty),
        };
        match param.donate_to {
            None => format!("{value}: {ty}"),
            Some(result) => format!("{value}: {ty} {{donate = {result}}}"),
        }
    }

    fn inst(&mut self, out: &mut String, inst: &Inst) -> fmt::Result {
        write!(out, "%{}", inst.first.0)?;
        if inst.n_results != 1 {
            write!(out, ":{}", inst.n_results)?;
        }
        write!(out, " = {}", inst.kind)?;
        if let Attrs::Literal(literal) = &inst.attrs {
            write!(out, " {}", dense(literal, self.options.elide_above))?;
        }
        for (i, v) in inst.operands.iter().enumerate() {
            write!(out, "{} %{}", if i > 0 { "," } else { "" }, v.0)?;
        }
        let entries = attrs::to_entries(&inst.attrs);
        for (i, (name, val)) in entries.iter().enumerate() {
            write!(out, "{}{name} = {val}", if i == 0 { " {" } else { ", " })?;
        }
        if !entries.is_empty() {
            out.push('}');
        }
        for (i, v) in inst.results().enumerate() {
            write!(out, "{}{}", if i == 0 { " : " } else { ", " }, self.ty(v))?;
        }
        if self.options.locs && inst.loc != 0 {
            write!(out, " loc({})", inst.loc)?;
        }
        if let Attrs::Fusion { body, .. } = &inst.attrs {
            out.push_str(" {\n");
            Printer { graph: body, options: self.options, indent: self.indent + 1 }.graph(out)?;
            self.margin(out);
            out.push('}');
        }
        Ok(())
    }

    fn ty(&self, v: Value) -> String {
        if (v.0 as usize) < self.graph.n_values() { self.graph.ty(v).to_string() } else { "?".into() }
    }
}

/// A name, quoted when it is not a plain word.
fn name(name: &str) -> String {
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
    if plain {
        return name.into();
    }
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// `dense<...>` of a constant.
fn dense(literal: &Literal, elide_above: Option<usize>) -> String {
    let ty = &literal.ty;
    let count = ty.numel() as usize;
    if literal.is_splat() {
        return format!("dense<{}>", element::print(ty.dtype, &literal.bytes));
    }
    if literal.bytes.len() != count * ty.dtype.size() {
        return format!("dense<? {} bytes>", literal.bytes.len());
    }
    if elide_above.is_some_and(|limit| count > limit) {
        return "dense<...>".into();
    }
    let mut out = String::from("dense<");
    if count > MAX_LISTED {
        out.push_str("\"0x");
        for byte in &literal.bytes {
            let _ = write!(out, "{byte:02X}");
        }
        out.push('"');
    } else {
        nested(literal, &ty.dims, 0, &mut out);
    }
    out.push('>');
    out
}

/// Elements from `first` on, nested in brackets by `dims`.
fn nested(literal: &Literal, dims: &[i64], first: usize, out: &mut String) {
    let Some((&size, inner)) = dims.split_first() else {
        out.push_str(&element::print(literal.ty.dtype, literal.element(first)));
        return;
    };
    let TensorType { dims: all, .. } = &literal.ty;
    let step: i64 = inner.iter().product();
    out.push('[');
    // A constant without elements is `[]`, whatever its sizes.
    let size = if all.contains(&0) { 0 } else { size };
    for i in 0..size as usize {
        if i > 0 {
            out.push_str(", ");
        }
        nested(literal, inner, first + i * step as usize, out);
    }
    out.push(']');
}
