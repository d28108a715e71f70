//! Parser of the text form.
use super::ParseError;
use super::attrs::AttrMap;
use super::element;
use super::lex::{Lexer, Result};
use crate::ir::{Attrs, Builder, Dims, Graph, Literal, OpKind, Param, ParamKind, TensorType, Value};
use crate::verify;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// Bodies nested deeper than this are refused (the parser recurses).
const MAX_DEPTH: u32 = 16;

/// Reads one function; the result passes the verifier. Values may have any names (`%x`).
pub fn parse(text: &str) -> std::result::Result<Graph, ParseError> {
    let mut lex = Lexer::new(text);
    let graph = function(&mut lex, true, 0)?;
    if lex.at_end() { Ok(graph) } else { Err(lex.expected("the end of the text")) }
}

/// Reads any number of functions.
pub fn parse_module(text: &str) -> std::result::Result<Vec<Graph>, ParseError> {
    let mut lex = Lexer::new(text);
    let mut graphs = Vec::new();
    while !lex.at_end() {
        graphs.push(function(&mut lex, true, 0)?);
    }
    Ok(graphs)
}

/// Reads one function without checking anything but its form: for tests of the verifier.
///
/// Instructions must be numbered in order; operands are taken by number, whether or not such a value exists.
pub fn parse_unchecked(text: &str) -> std::result::Result<Graph, ParseError> {
    let mut lex = Lexer::new(text);
    let graph = function(&mut lex, false, 0)?;
    if lex.at_end() { Ok(graph) } else { Err(lex.expected("the end of the text")) }
}

/// Reads `dense<...> : type`, separated by commas.
pub fn parse_literals(text: &str) -> std::result::Result<Vec<Literal>, ParseError> {
    let mut lex = Lexer::new(text);
    let mut out = Vec::new();
    while !lex.at_end() {
        if !out.is_empty() {
            lex.expect(",")?;
        }
        let dense = Dense::parse(&mut lex)?;
        lex.expect(":")?;
        let ty = lex.tensor_type()?;
        out.push(dense.literal(&lex, ty)?);
    }
    Ok(out)
}

/// Where instructions go: through the builder's type rules, or straight into a graph.
enum Sink {
    Checked(Builder),
    Unchecked(Graph),
}

impl Sink {
    fn n_values(&self) -> u32 {
        match self {
            Sink::Checked(b) => b.graph().n_values() as u32,
            Sink::Unchecked(g) => g.n_values() as u32,
        }
    }
}

struct Function<'l, 'a> {
    lex: &'l mut Lexer<'a>,
    sink: Sink,
    names: HashMap<String, Value>,
    depth: u32,
}

/// `func @name(params) { instructions return values }`.
fn function(lex: &mut Lexer<'_>, checked: bool, depth: u32) -> Result<Graph> {
    let mark = lex.mark();
    if depth > MAX_DEPTH {
        return Err(lex.error_at(mark, "bodies are nested too deeply"));
    }
    if !lex.eat("func") {
        return Err(lex.expected("`func`"));
    }
    lex.expect("@")?;
    let name = if lex.at("\"") { lex.string()? } else { lex.word("the name of the function")?.to_string() };
    let sink = if checked { Sink::Checked(Builder::new(name)) } else { Sink::Unchecked(Graph::new(name)) };
    let mut f = Function { lex, sink, names: HashMap::new(), depth };
    let donations = f.params()?;
    f.lex.expect("{")?;
    while !f.lex.at("return") {
        if !f.lex.at("%") {
            return Err(f.lex.expected("an instruction (`%0 = ...`) or `return`"));
        }
        f.instruction()?;
    }
    let mark = f.lex.mark();
    f.lex.expect("return")?;
    let results = f.values()?;
    f.lex.expect("}")?;
    if checked && let Some(&(_, n, at)) = donations.iter().find(|&&(_, n, _)| n as usize >= results.len()) {
        let message = format!("donation to result {n} of {}", results.len());
        return Err(f.lex.error_at(at, message));
    }
    match f.sink {
        Sink::Checked(mut b) => {
            for (param, result, _) in donations {
                b.donate(param, result);
            }
            let graph = b.finish(results.into_vec()).map_err(|e| lex.error_at(mark, e.to_string()))?;
            // What no single instruction shows: donations, runtime scalars.
            match verify::verify(&graph).first() {
                Some(fault) if depth == 0 => Err(lex.error_at(mark, format!("{}: {}", fault.place, fault.message))),
                _ => Ok(graph),
            }
        }
        Sink::Unchecked(mut g) => {
            for (param, result, _) in donations {
                g.params[param as usize].donate_to = Some(result);
            }
            g.results = results.into_vec();
            Ok(g)
        }
    }
}

impl Function<'_, '_> {
    /// `(%0: type {donate = n}, ...)`; gives (parameter, result, place) of the donations.
    fn params(&mut self) -> Result<Vec<(u32, u32, usize)>> {
        let mut donations = Vec::new();
        self.lex.expect("(")?;
        let mut index = 0;
        while !self.lex.at(")") {
            if index > 0 {
                self.lex.expect(",")?;
            }
            let (mark, name) = self.name()?;
            self.lex.expect(":")?;
            let (ty, kind) = if self.lex.at("scalar") {
                (self.lex.scalar_type()?, ParamKind::Scalar)
            } else {
                (self.lex.tensor_type()?, ParamKind::Tensor)
            };
            let at = self.lex.mark();
            let mut attrs = AttrMap::parse(self.lex)?;
            if let Some(result) = attrs.donate(self.lex)? {
                let result = u32::try_from(result).map_err(|_| self.lex.error_at(at, "`donate` must name a result"))?;
                donations.push((index, result, at));
            }
            attrs.finish(self.lex, "parameter")?;
            let value = match &mut self.sink {
                Sink::Checked(b) => b.parameter(ty, kind),
                Sink::Unchecked(g) => {
                    g.params.push(Param { ty: ty.clone(), kind, donate_to: None });
                    let id = g.push(OpKind::Parameter, Attrs::Index(index), SmallVec::new(), &[ty], 0);
                    g.inst(id).first
                }
            };
            self.define(mark, &name, value)?;
            index += 1;
        }
        self.lex.expect(")")?;
        Ok(donations)
    }

    /// `%name`, with its place.
    fn name(&mut self) -> Result<(usize, String)> {
        let mark = self.lex.mark();
        if !self.lex.eat("%") {
            return Err(self.lex.expected("a value (`%0`)"));
        }
        Ok((mark, self.lex.word("the name of a value")?.to_string()))
    }

    fn define(&mut self, mark: usize, name: &str, value: Value) -> Result<()> {
        if let Sink::Unchecked(_) = self.sink
            && name.parse() != Ok(value.0)
        {
            return Err(self.lex.error_at(mark, format!("expected `%{}`, found `%{name}`", value.0)));
        }
        match self.names.insert(name.to_string(), value) {
            None => Ok(()),
            Some(_) => Err(self.lex.error_at(mark, format!("`%{name}` is defined twice"))),
        }
    }

    /// A list of values, maybe empty.
    fn values(&mut self) -> Result<SmallVec<[Value; 4]>> {
        let mut out = SmallVec::new();
        while (out.is_empty() && self.lex.at("%")) || (!out.is_empty() && self.lex.eat(",")) {
            let (mark, name) = self.name()?;
            out.push(match (&self.sink, self.names.get(&name)) {
                (Sink::Checked(_), Some(v)) => *v,
                (Sink::Checked(_), None) => {
                    return Err(self.lex.error_at(mark, format!("`%{name}` is not defined here")));
                }
                (Sink::Unchecked(_), _) => {
                    let number = name.parse().map_err(|_| self.lex.error_at(mark, "expected the number of a value"))?;
                    Value(number)
                }
            });
        }
        Ok(out)
    }

    /// `%4:2 = sort %3 {dim = 1} : types loc(7) { body }`.
    fn instruction(&mut self) -> Result<()> {
        let (name_mark, name) = self.name()?;
        let count_mark = self.lex.mark();
        let count = if self.lex.eat(":") { self.lex.int()? } else { 1 };
        self.lex.expect("=")?;
        let mark = self.lex.mark();
        let op = self.lex.word("the name of an op")?;
        let kind = OpKind::parse(op).ok_or_else(|| self.lex.error_at(mark, format!("`{op}` is no op")))?;
        let dense = if kind == OpKind::Constant { Some(Dense::parse(self.lex)?) } else { None };
        let operands = self.values()?;
        let map = AttrMap::parse(self.lex)?;
        let types = self.types(count)?;
        let loc = if self.lex.eat("loc") {
            self.lex.expect("(")?;
            let n = self.lex.int()?;
            self.lex.expect(")")?;
            u32::try_from(n).map_err(|_| self.lex.error_at(mark, "`loc` does not fit"))?
        } else {
            0
        };
        let attrs = self.attrs(kind, dense, map, &types, mark)?;
        let value = Value(self.sink.n_values());
        match &mut self.sink {
            Sink::Unchecked(g) => {
                g.push(kind, attrs, operands, &types, loc);
            }
            Sink::Checked(b) => {
                b.loc = loc;
                b.op(kind, attrs, &operands, &types);
                if let Some(e) = b.error() {
                    return Err(self.lex.error_at(mark, e.to_string()));
                }
                let inferred: Vec<TensorType> =
                    (value.0..b.graph().n_values() as u32).map(|v| b.ty(Value(v)).clone()).collect();
                if inferred != types {
                    let show = |ts: &[TensorType]| ts.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
                    let message = format!("{kind}: the text says {}, the rule {}", show(&types), show(&inferred));
                    return Err(self.lex.error_at(mark, message));
                }
            }
        }
        if types.len() as i64 != count {
            let message = format!("`%{name}:{count}` has {} types", types.len());
            return Err(self.lex.error_at(count_mark, message));
        }
        self.define(name_mark, &name, value)?;
        // The other results of `%4:2` are `%5`, ...: only numbered names have successors.
        for i in 1..types.len() as u32 {
            let number: u32 = name.parse().map_err(|_| {
                self.lex.error_at(name_mark, format!("an op with {count} results needs a numbered name, not `%{name}`"))
            })?;
            self.define(name_mark, &(number + i).to_string(), Value(value.0 + i))?;
        }
        Ok(())
    }

    /// ` : type, type`; absent if there are no results.
    fn types(&mut self, count: i64) -> Result<Vec<TensorType>> {
        if count == 0 && !self.lex.at(":") {
            return Ok(vec![]);
        }
        if !self.lex.eat(":") {
            return Err(self.lex.expected("`:` and the result types"));
        }
        let mut types = vec![self.lex.tensor_type()?];
        while self.lex.eat(",") {
            types.push(self.lex.tensor_type()?);
        }
        Ok(types)
    }

    fn attrs(
        &mut self,
        kind: OpKind,
        dense: Option<Dense<'_>>,
        mut map: AttrMap,
        types: &[TensorType],
        mark: usize,
    ) -> Result<Attrs> {
        if let (Some(dense), Some(ty)) = (dense, types.first()) {
            map.finish(self.lex, kind.name())?;
            return Ok(Attrs::Literal(Arc::new(dense.literal(self.lex, ty.clone())?)));
        }
        if kind == OpKind::Parameter {
            if let Sink::Checked(_) = self.sink {
                return Err(self.lex.error_at(mark, "parameters are listed in the head of the function"));
            }
            let index = map.int(self.lex, "index")?;
            map.finish(self.lex, kind.name())?;
            return Ok(Attrs::Index(index as u32));
        }
        let body = if kind == OpKind::Fusion {
            self.lex.expect("{")?;
            let checked = matches!(self.sink, Sink::Checked(_));
            let body = function(self.lex, checked, self.depth + 1)?;
            self.lex.expect("}")?;
            Some(body)
        } else {
            None
        };
        map.into_attrs(self.lex, kind, body)
    }
}

/// A constant as read, before its type is known.
enum Dense<'a> {
    Splat(usize, &'a str),
    /// Elements in row-major order, and the sizes that the brackets say.
    List(usize, Vec<(usize, &'a str)>, Dims),
    Hex(usize, Vec<u8>),
}

impl<'a> Dense<'a> {
    fn parse(lex: &mut Lexer<'a>) -> Result<Dense<'a>> {
        if !lex.eat("dense") {
            return Err(lex.expected("`dense<...>`"));
        }
        lex.expect("<")?;
        let mark = lex.mark();
        let dense = if lex.at("\"") {
            let text = lex.string()?;
            let bytes = text.strip_prefix("0x").and_then(bytes_of_hex);
            Dense::Hex(mark, bytes.ok_or_else(|| lex.error_at(mark, "expected a string of hexadecimal bytes"))?)
        } else if lex.at("[") {
            let mut elements = Vec::new();
            let dims = list(lex, &mut elements, 0)?;
            Dense::List(mark, elements, dims)
        } else {
            Dense::Splat(mark, lex.element()?)
        };
        lex.expect(">")?;
        Ok(dense)
    }

    fn literal(self, lex: &Lexer<'_>, ty: TensorType) -> Result<Literal> {
        let element = |mark: usize, text: &str| {
            element::parse(ty.dtype, text)
                .ok_or_else(|| lex.error_at(mark, format!("`{text}` is no element of type {}", ty.dtype)))
        };
        let count = ty.numel() as usize;
        let bytes: Vec<u8> = match self {
            Dense::Splat(mark, text) => element(mark, text)?.into_vec(),
            Dense::Hex(mark, bytes) => {
                if bytes.len() as u64 != ty.bytes() {
                    return Err(lex.error_at(mark, format!("{} bytes for {ty}", bytes.len())));
                }
                bytes
            }
            Dense::List(mark, elements, dims) => {
                let shaped = dims == ty.dims || (count == 0 && elements.is_empty());
                if elements.len() != count || !shaped {
                    let message = format!("{} elements of sizes {:?} for {ty}", elements.len(), &dims[..]);
                    return Err(lex.error_at(mark, message));
                }
                let mut bytes = Vec::with_capacity(count * ty.dtype.size());
                for (mark, text) in elements {
                    bytes.extend_from_slice(&element(mark, text)?);
                }
                bytes
            }
        };
        Ok(Literal { ty, bytes: bytes.into_boxed_slice() })
    }
}

/// `[[1, 2], [3, 4]]`: appends the elements and gives the sizes.
fn list<'a>(lex: &mut Lexer<'a>, elements: &mut Vec<(usize, &'a str)>, depth: u32) -> Result<Dims> {
    let mark = lex.mark();
    if depth > MAX_DEPTH {
        return Err(lex.error_at(mark, "too many dimensions"));
    }
    lex.expect("[")?;
    let mut size = 0;
    let mut inner: Option<Dims> = None;
    while !lex.at("]") {
        if size > 0 {
            lex.expect(",")?;
        }
        let dims = if lex.at("[") {
            list(lex, elements, depth + 1)?
        } else {
            let mark = lex.mark();
            elements.push((mark, lex.element()?));
            Dims::new()
        };
        if inner.as_ref().is_some_and(|i| *i != dims) {
            return Err(lex.error_at(mark, "the entries of this list differ in size"));
        }
        inner = Some(dims);
        size += 1;
    }
    lex.expect("]")?;
    Ok(std::iter::once(size).chain(inner.unwrap_or_default()).collect())
}

fn bytes_of_hex(hex: &str) -> Option<Vec<u8>> {
    if !hex.is_ascii() || !hex.len().is_multiple_of(2) {
        return None;
    }
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).ok()).collect()
}
