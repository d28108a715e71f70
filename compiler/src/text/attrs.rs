//! Attributes as `{name = value, ...}`: the one place that knows how each is spelled, in both directions.
use super::lex::{Lexer, Result};
use crate::ir::{
    Attrs, CmpDir, ConvDims, CumKind, Dims, DotDims, FusionKind, Graph, OpKind, ReduceKind, ScatterKind, WindowDim,
};
use std::fmt;
use std::sync::Arc;

/// An entry of a list: a number, or a letter of a convolution's dimension numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Int(i64),
    Word(String),
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Val {
    Int(i64),
    Word(String),
    List(Vec<Item>),
    /// `[b, f, 0]x[o, i, 0]->[b, f, 0]`.
    Layout([Vec<Item>; 3]),
}

/// Attributes as read: names, values and places.
#[derive(Debug, Default)]
pub(super) struct AttrMap {
    entries: Vec<(String, Val, usize)>,
    mark: usize,
}

type Words<T> = &'static [(T, &'static str)];

const CMP_DIR: Words<CmpDir> = &[
    (CmpDir::Eq, "eq"),
    (CmpDir::Ne, "ne"),
    (CmpDir::Lt, "lt"),
    (CmpDir::Le, "le"),
    (CmpDir::Gt, "gt"),
    (CmpDir::Ge, "ge"),
];
const REDUCE: Words<ReduceKind> = &[
    (ReduceKind::Sum, "sum"),
    (ReduceKind::Prod, "prod"),
    (ReduceKind::Max, "max"),
    (ReduceKind::Min, "min"),
    (ReduceKind::And, "and"),
    (ReduceKind::Or, "or"),
];
const CUMULATIVE: Words<CumKind> = &[
    (CumKind::Sum, "sum"),
    (CumKind::Prod, "prod"),
    (CumKind::Max, "max"),
    (CumKind::Min, "min"),
    (CumKind::LogSumExp, "logsumexp"),
];
const SCATTER: Words<ScatterKind> = &[
    (ScatterKind::Set, "set"),
    (ScatterKind::Add, "add"),
    (ScatterKind::Mul, "mul"),
    (ScatterKind::Max, "max"),
    (ScatterKind::Min, "min"),
];
const FUSION: Words<FusionKind> = &[
    (FusionKind::Loop, "loop"),
    (FusionKind::Row, "row"),
    (FusionKind::Column, "column"),
    (FusionKind::Epilogue, "epilogue"),
];
const BOOL: Words<bool> = &[(false, "false"), (true, "true")];

fn spell<T: PartialEq + Copy>(words: Words<T>, value: T) -> Val {
    let word = words.iter().find(|(v, _)| *v == value).map_or("?", |(_, w)| w);
    Val::Word(word.to_string())
}

fn list(dims: &[i64]) -> Val {
    Val::List(dims.iter().map(|&d| Item::Int(d)).collect())
}

/// The attributes as names and values; a constant's literal and a fusion's body are printed elsewhere.
pub(super) fn to_entries(attrs: &Attrs) -> Vec<(&'static str, Val)> {
    match attrs {
        Attrs::None | Attrs::Literal(_) => vec![],
        Attrs::Index(i) => vec![("index", Val::Int(i64::from(*i)))],
        Attrs::Dim(dim) => vec![("dim", Val::Int(*dim))],
        Attrs::Dims(dims) => vec![("dims", list(dims))],
        Attrs::Slice { start, limit, stride } => {
            vec![("start", list(start)), ("limit", list(limit)), ("stride", list(stride))]
        }
        Attrs::Pad { lo, hi, interior } => vec![("lo", list(lo)), ("hi", list(hi)), ("interior", list(interior))],
        Attrs::Compare(dir) => vec![("direction", spell(CMP_DIR, *dir))],
        Attrs::Reduce { kind, dims } => vec![("kind", spell(REDUCE, *kind)), ("dims", list(dims))],
        Attrs::ArgReduce { max, dim } => vec![("max", spell(BOOL, *max)), ("dim", Val::Int(*dim))],
        Attrs::Cumulative { kind, dim } => vec![("kind", spell(CUMULATIVE, *kind)), ("dim", Val::Int(*dim))],
        Attrs::Scatter { kind, dims } => vec![("kind", spell(SCATTER, *kind)), ("dims", list(dims))],
        Attrs::Window { kind, window } => {
            let mut out = vec![("kind", spell(REDUCE, *kind))];
            out.extend(window_entries(window));
            out
        }
        Attrs::Dot(d) => {
            let all = [
                ("lhs_batch", &d.lhs_batch),
                ("rhs_batch", &d.rhs_batch),
                ("lhs_contract", &d.lhs_contract),
                ("rhs_contract", &d.rhs_contract),
            ];
            all.into_iter().filter(|(_, dims)| !dims.is_empty()).map(|(name, dims)| (name, list(dims))).collect()
        }
        Attrs::Conv { window, dims, feature_groups, batch_groups } => {
            let mut out = vec![("dims", Val::Layout(conv_layout(dims)))];
            out.extend(window_entries(window));
            for (name, groups) in [("feature_groups", *feature_groups), ("batch_groups", *batch_groups)] {
                if groups != 1 {
                    out.push((name, Val::Int(groups)));
                }
            }
            out
        }
        Attrs::Attention { causal } => vec![("causal", spell(BOOL, *causal))],
        Attrs::Sort { dim, descending } => vec![("dim", Val::Int(*dim)), ("descending", spell(BOOL, *descending))],
        Attrs::TopK { k, largest } => vec![("k", Val::Int(*k)), ("largest", spell(BOOL, *largest))],
        Attrs::Word(word) => vec![("word", Val::Int(i64::from(*word)))],
        Attrs::Fusion { kind, .. } => vec![("kind", spell(FUSION, *kind))],
    }
}

/// Columns of a window, each with its default, which is not printed (the size always is).
type Column = (&'static str, i64, fn(&mut WindowDim) -> &mut i64);
const COLUMNS: [Column; 5] = [
    ("stride", 1, |w| &mut w.stride),
    ("pad_lo", 0, |w| &mut w.pad_lo),
    ("pad_hi", 0, |w| &mut w.pad_hi),
    ("base_dilation", 1, |w| &mut w.base_dilation),
    ("window_dilation", 1, |w| &mut w.window_dilation),
];

fn window_entries(window: &[WindowDim]) -> Vec<(&'static str, Val)> {
    let sizes: Dims = window.iter().map(|w| w.size).collect();
    let mut out = vec![("size", list(&sizes))];
    for (name, default, field) in COLUMNS {
        let values: Dims = window.iter().map(|&(mut w)| *field(&mut w)).collect();
        if values.iter().any(|&v| v != default) {
            out.push((name, list(&values)));
        }
    }
    if window.iter().any(|w| w.reversed) {
        let reversed: Dims = (0..window.len()).filter(|&i| window[i].reversed).map(|i| i as i64).collect();
        out.push(("reversed", list(&reversed)));
    }
    out
}

/// Which letter or spatial number each dimension of input, kernel and output has.
fn conv_layout(d: &ConvDims) -> [Vec<Item>; 3] {
    let side = |named: [(i64, &str); 2], spatial: &[i64]| {
        let places = named.iter().map(|&(place, letter)| (place, Item::Word(letter.into())));
        let spatial = spatial.iter().enumerate().map(|(k, &place)| (place, Item::Int(k as i64)));
        let mut all: Vec<(i64, Item)> = places.chain(spatial).collect();
        all.sort_by_key(|(place, _)| *place);
        all.into_iter().map(|(_, item)| item).collect()
    };
    [
        side([(d.input_batch, "b"), (d.input_feature, "f")], &d.input_spatial),
        side([(d.kernel_output_feature, "o"), (d.kernel_input_feature, "i")], &d.kernel_spatial),
        side([(d.output_batch, "b"), (d.output_feature, "f")], &d.output_spatial),
    ]
}

fn fmt_list(f: &mut fmt::Formatter<'_>, items: &[Item]) -> fmt::Result {
    f.write_str("[")?;
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        match item {
            Item::Int(v) => write!(f, "{v}")?,
            Item::Word(w) => f.write_str(w)?,
        }
    }
    f.write_str("]")
}

impl fmt::Display for Val {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Val::Int(v) => write!(f, "{v}"),
            Val::Word(w) => f.write_str(w),
            Val::List(items) => fmt_list(f, items),
            Val::Layout([input, kernel, output]) => {
                fmt_list(f, input)?;
                f.write_str("x")?;
                fmt_list(f, kernel)?;
                f.write_str("->")?;
                fmt_list(f, output)
            }
        }
    }
}

fn parse_list(lex: &mut Lexer<'_>) -> Result<Vec<Item>> {
    lex.expect("[")?;
    let mut items = Vec::new();
    while !lex.at("]") {
        if !items.is_empty() {
            lex.expect(",")?;
        }
        items.push(if lex.at_int() { Item::Int(lex.int()?) } else { Item::Word(lex.word("a number")?.into()) });
    }
    lex.expect("]")?;
    Ok(items)
}

impl AttrMap {
    /// `{name = value, ...}`, or nothing.
    pub(super) fn parse(lex: &mut Lexer<'_>) -> Result<AttrMap> {
        let mut map = AttrMap { entries: Vec::new(), mark: lex.mark() };
        if !lex.eat("{") {
            return Ok(map);
        }
        while !lex.at("}") {
            if !map.entries.is_empty() {
                lex.expect(",")?;
            }
            let mark = lex.mark();
            let name = lex.word("the name of an attribute")?.to_string();
            if map.entries.iter().any(|(n, ..)| *n == name) {
                return Err(lex.error_at(mark, format!("attribute `{name}` appears twice")));
            }
            lex.expect("=")?;
            let val = if lex.at("[") {
                let first = parse_list(lex)?;
                if lex.at("x[") {
                    lex.expect("x")?;
                    let kernel = parse_list(lex)?;
                    lex.expect("->")?;
                    Val::Layout([first, kernel, parse_list(lex)?])
                } else {
                    Val::List(first)
                }
            } else if lex.at_int() {
                Val::Int(lex.int()?)
            } else {
                Val::Word(lex.word("a value")?.into())
            };
            map.entries.push((name, val, mark));
        }
        lex.expect("}")?;
        Ok(map)
    }

    fn take(&mut self, name: &str) -> Option<(Val, usize)> {
        let i = self.entries.iter().position(|(n, ..)| n == name)?;
        let (_, val, mark) = self.entries.remove(i);
        Some((val, mark))
    }

    fn need(&mut self, lex: &Lexer<'_>, name: &str) -> Result<(Val, usize)> {
        let mark = self.mark;
        self.take(name).ok_or_else(|| lex.error_at(mark, format!("expected attribute `{name}`")))
    }

    pub(super) fn int(&mut self, lex: &Lexer<'_>, name: &str) -> Result<i64> {
        match self.need(lex, name)? {
            (Val::Int(v), _) => Ok(v),
            (other, mark) => Err(lex.error_at(mark, format!("`{name}` must be an integer, found `{other}`"))),
        }
    }

    /// `donate = n` of a parameter.
    pub(super) fn donate(&mut self, lex: &Lexer<'_>) -> Result<Option<i64>> {
        if self.entries.iter().any(|(n, ..)| n == "donate") { self.int(lex, "donate").map(Some) } else { Ok(None) }
    }

    fn word<T: Copy>(&mut self, lex: &Lexer<'_>, name: &str, words: Words<T>) -> Result<T> {
        let (val, mark) = self.need(lex, name)?;
        let known: Vec<&str> = words.iter().map(|(_, w)| *w).collect();
        let found = words.iter().find(|(_, w)| val == Val::Word(w.to_string())).map(|(v, _)| *v);
        found.ok_or_else(|| lex.error_at(mark, format!("`{name}` must be one of {}, found `{val}`", known.join(", "))))
    }

    fn dims(&mut self, lex: &Lexer<'_>, name: &str) -> Result<Dims> {
        let (val, mark) = self.need(lex, name)?;
        ints(&val).ok_or_else(|| lex.error_at(mark, format!("`{name}` must be a list of integers, found `{val}`")))
    }

    fn dims_or_empty(&mut self, lex: &Lexer<'_>, name: &str) -> Result<Dims> {
        if self.entries.iter().any(|(n, ..)| n == name) { self.dims(lex, name) } else { Ok(Dims::new()) }
    }

    fn int_or(&mut self, lex: &Lexer<'_>, name: &str, default: i64) -> Result<i64> {
        if self.entries.iter().any(|(n, ..)| n == name) { self.int(lex, name) } else { Ok(default) }
    }

    fn window(&mut self, lex: &Lexer<'_>) -> Result<Vec<WindowDim>> {
        let mark = self.mark;
        let sizes = self.dims(lex, "size")?;
        let mut window: Vec<WindowDim> = sizes.iter().map(|&size| WindowDim { size, ..WindowDim::UNIT }).collect();
        for (name, _, field) in COLUMNS {
            let values = self.dims_or_empty(lex, name)?;
            if !values.is_empty() && values.len() != window.len() {
                let message = format!("`{name}` has {} entries, `size` has {}", values.len(), window.len());
                return Err(lex.error_at(mark, message));
            }
            for (w, v) in window.iter_mut().zip(values) {
                *field(w) = v;
            }
        }
        for i in self.dims_or_empty(lex, "reversed")? {
            let w = usize::try_from(i).ok().and_then(|i| window.get_mut(i));
            w.ok_or_else(|| lex.error_at(mark, format!("`reversed` names dimension {i} of {}", sizes.len())))?
                .reversed = true;
        }
        Ok(window)
    }

    fn conv_dims(&mut self, lex: &Lexer<'_>) -> Result<ConvDims> {
        let (val, mark) = self.need(lex, "dims")?;
        let bad = || {
            lex.error_at(mark, format!("expected dimension numbers like [b, f, 0]x[o, i, 0]->[b, f, 0], found `{val}`"))
        };
        let Val::Layout([input, kernel, output]) = &val else { return Err(bad()) };
        let place = |side: &[Item], item: Item| side.iter().position(|i| *i == item).map(|p| p as i64).ok_or_else(bad);
        let letter = |side: &[Item], l: &str| place(side, Item::Word(l.into()));
        let spatial =
            |side: &[Item]| -> Result<Dims> { (0..side.len() as i64 - 2).map(|k| place(side, Item::Int(k))).collect() };
        Ok(ConvDims {
            input_batch: letter(input, "b")?,
            input_feature: letter(input, "f")?,
            input_spatial: spatial(input)?,
            kernel_input_feature: letter(kernel, "i")?,
            kernel_output_feature: letter(kernel, "o")?,
            kernel_spatial: spatial(kernel)?,
            output_batch: letter(output, "b")?,
            output_feature: letter(output, "f")?,
            output_spatial: spatial(output)?,
        })
    }

    /// Fails when an attribute has not been taken.
    pub(super) fn finish(self, lex: &Lexer<'_>, of: &str) -> Result<()> {
        match self.entries.first() {
            None => Ok(()),
            Some((name, _, mark)) => Err(lex.error_at(*mark, format!("`{of}` has no attribute `{name}`"))),
        }
    }

    /// The attributes of `kind` (neither a constant nor a parameter, which have their own forms). `body` is the body of
    /// a fusion, which the text has after the types.
    pub(super) fn into_attrs(mut self, lex: &Lexer<'_>, kind: OpKind, body: Option<Graph>) -> Result<Attrs> {
        use OpKind as K;
        let m = &mut self;
        let attrs = match kind {
            K::Iota | K::Concatenate => Attrs::Dim(m.int(lex, "dim")?),
            K::BroadcastInDim | K::Transpose | K::Reverse | K::Gather => Attrs::Dims(m.dims(lex, "dims")?),
            K::Compare => Attrs::Compare(m.word(lex, "direction", CMP_DIR)?),
            K::Slice => Attrs::Slice {
                start: m.dims(lex, "start")?,
                limit: m.dims(lex, "limit")?,
                stride: m.dims(lex, "stride")?,
            },
            K::Pad => Attrs::Pad { lo: m.dims(lex, "lo")?, hi: m.dims(lex, "hi")?, interior: m.dims(lex, "interior")? },
            K::Scatter => Attrs::Scatter { kind: m.word(lex, "kind", SCATTER)?, dims: m.dims(lex, "dims")? },
            K::Reduce => Attrs::Reduce { kind: m.word(lex, "kind", REDUCE)?, dims: m.dims(lex, "dims")? },
            K::ArgReduce => Attrs::ArgReduce { max: m.word(lex, "max", BOOL)?, dim: m.int(lex, "dim")? },
            K::Cumulative => Attrs::Cumulative { kind: m.word(lex, "kind", CUMULATIVE)?, dim: m.int(lex, "dim")? },
            K::ReduceWindow | K::MaxPoolWithIndex => {
                Attrs::Window { kind: m.word(lex, "kind", REDUCE)?, window: m.window(lex)? }
            }
            K::DotGeneral => Attrs::Dot(DotDims {
                lhs_batch: m.dims_or_empty(lex, "lhs_batch")?,
                rhs_batch: m.dims_or_empty(lex, "rhs_batch")?,
                lhs_contract: m.dims_or_empty(lex, "lhs_contract")?,
                rhs_contract: m.dims_or_empty(lex, "rhs_contract")?,
            }),
            K::Convolution => Attrs::Conv {
                dims: m.conv_dims(lex)?,
                window: m.window(lex)?,
                feature_groups: m.int_or(lex, "feature_groups", 1)?,
                batch_groups: m.int_or(lex, "batch_groups", 1)?,
            },
            K::Attention | K::AttentionBackward => Attrs::Attention { causal: m.word(lex, "causal", BOOL)? },
            K::Sort => Attrs::Sort { dim: m.int(lex, "dim")?, descending: m.word(lex, "descending", BOOL)? },
            K::TopK => Attrs::TopK { k: m.int(lex, "k")?, largest: m.word(lex, "largest", BOOL)? },
            K::RngBits => {
                let word = m.int(lex, "word")?;
                Attrs::Word(u32::try_from(word).map_err(|_| lex.error_at(m.mark, "`word` must not be negative"))?)
            }
            K::Fusion => {
                let body = body.ok_or_else(|| lex.error_at(m.mark, "a fusion needs a body"))?;
                Attrs::Fusion { kind: m.word(lex, "kind", FUSION)?, body: Arc::new(body) }
            }
            K::Parameter | K::Constant | K::Reshape | K::DynamicSlice | K::DynamicUpdateSlice => Attrs::None,
            K::Abs | K::Negate | K::Sign | K::Exp | K::Expm1 | K::Log | K::Log1p | K::Sqrt | K::Rsqrt => Attrs::None,
            K::Sin | K::Cos | K::Tan | K::Tanh | K::Logistic | K::Erf | K::Erfc | K::ErfInv => Attrs::None,
            K::Lgamma | K::Digamma | K::Asin | K::Acos | K::Atan | K::Sinh | K::Cosh => Attrs::None,
            K::Asinh | K::Acosh | K::Atanh | K::Floor | K::Ceil | K::RoundEven | K::Trunc => Attrs::None,
            K::Not | K::IsFinite | K::Convert | K::BitcastConvert => Attrs::None,
            K::Add | K::Subtract | K::Multiply | K::Divide | K::Remainder | K::Power => Attrs::None,
            K::Maximum | K::Minimum | K::Atan2 | K::NextAfter | K::And | K::Or | K::Xor => Attrs::None,
            K::ShiftLeft | K::ShiftRight | K::Select | K::OptimizationBarrier => Attrs::None,
        };
        self.finish(lex, kind.name())?;
        Ok(attrs)
    }
}

fn ints(val: &Val) -> Option<Dims> {
    let Val::List(items) = val else { return None };
    items
        .iter()
        .map(|item| match item {
            Item::Int(v) => Some(*v),
            Item::Word(_) => None,
        })
        .collect()
}
