//! Why a segment was compiled, in the user's terms: what differs from the closest segment known before.
use crate::key::{Ingredient, Key};
use rsx_graphbreak::FrameTable;
use rsx_lazy::words::{Arg, TensorArg};
use rsx_lazy::{FrameId, Node, Trace};
use std::sync::Arc;

/// A segment as explanations need it: structure without memory.
#[derive(Debug)]
pub(crate) struct Outline {
    pub(crate) key: Key,
    pub(crate) nodes: Vec<Node>,
    refs: Vec<u32>,
    uses: Vec<Use>,
}

/// How a segment uses one of its storages.
#[derive(Clone, Copy, Debug)]
struct Use {
    created: bool,
    written: bool,
    live: bool,
    nbytes: usize,
}

impl Outline {
    pub(crate) fn new(key: Key, trace: &Trace, live: &[bool]) -> Arc<Outline> {
        let of = |(u, &live): (&rsx_lazy::StorageUse, &bool)| Use {
            created: u.created,
            written: u.written,
            live,
            nbytes: u.storage.nbytes(),
        };
        let uses = trace.storages.iter().zip(live).map(of).collect();
        Arc::new(Outline { key, nodes: trace.nodes.clone(), refs: trace.refs.clone(), uses })
    }

    /// Where the segment's first op was called.
    pub(crate) fn site(&self) -> FrameId {
        self.nodes.first().map_or_else(FrameId::default, |n| n.frame)
    }

    fn inputs(&self, node: &Node) -> &[u32] {
        &self.refs[node.inputs.start as usize..node.inputs.end as usize]
    }

    fn outputs(&self, node: &Node) -> &[u32] {
        &self.refs[node.outputs.start as usize..node.outputs.end as usize]
    }
}

/// What differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) ingredients: Vec<Ingredient>,
    /// The differences, most telling first.
    pub(crate) lines: Vec<String>,
}

/// Lines beyond these are only counted.
const MAX_LINES: usize = 3;

/// The difference between `new` and the closest of `known`; nothing if none is known.
pub(crate) fn closest(known: &[Arc<Outline>], new: &Outline, frames: &FrameTable) -> Option<Difference> {
    // Of equally close ones that of the same place, then the one seen last.
    let distance = |(at, old): &(usize, &Arc<Outline>)| {
        let ingredients = old.key.differences(&new.key);
        let weight = if ingredients.contains(&Ingredient::Ops) { 100 } else { 0 };
        (weight + ingredients.len(), old.site() != new.site(), std::cmp::Reverse(*at))
    };
    let (_, old) = known.iter().enumerate().filter(|(_, k)| k.key != new.key).min_by_key(distance)?;
    let ingredients = old.key.differences(&new.key);
    let differ = Differ { old, new, frames };
    let mut lines = differ.lines(&ingredients);
    if lines.len() > MAX_LINES {
        let more = lines.len() - MAX_LINES;
        lines.truncate(MAX_LINES);
        lines.push(format!("and {more} more"));
    }
    Some(Difference { ingredients, lines })
}

struct Differ<'a> {
    old: &'a Outline,
    new: &'a Outline,
    frames: &'a FrameTable,
}

impl Differ<'_> {
    fn lines(&self, ingredients: &[Ingredient]) -> Vec<String> {
        let has = |i: Ingredient| ingredients.contains(&i);
        let mut lines = Vec::new();
        let environment = ingredients.iter().filter(|i| **i >= Ingredient::Device);
        lines.extend(environment.map(|i| format!("another {}", i.name())));
        // Where the ops differ nothing else lines up; the other differences mostly follow from that one.
        if has(Ingredient::Ops) {
            lines.extend(self.ops());
            return lines;
        }
        if has(Ingredient::DTypes) || has(Ingredient::Geometry) {
            lines.extend(self.tensors());
        }
        if has(Ingredient::LiveResults) {
            lines.extend(self.live());
        }
        if lines.is_empty() && has(Ingredient::Arguments) {
            lines.extend(self.arguments());
        }
        if lines.is_empty() && has(Ingredient::Donation) {
            lines.extend(self.donation());
        }
        if lines.is_empty() && has(Ingredient::StorageSizes) {
            lines.extend(self.storages());
        }
        lines
    }

    fn place(&self, node: &Node) -> String {
        format!("{} at {}", node.sig.op.name, self.frames.text(node.frame.0))
    }

    fn ops(&self) -> Option<String> {
        let (old, new) = (self.old, self.new);
        let (a, b) = (&old.nodes, &new.nodes);
        let same = |(x, y): (&Node, &Node)| {
            x.sig.parts.ops == y.sig.parts.ops && old.inputs(x) == new.inputs(y) && old.outputs(x) == new.outputs(y)
        };
        let at = a.iter().zip(b).position(|pair| !same(pair));
        Some(match (at, a.len(), b.len()) {
            (Some(k), ..) if a[k].sig.op.name == b[k].sig.op.name => {
                format!("op {} of {}, {}, has other operands", k + 1, b.len(), self.place(&b[k]))
            }
            (Some(k), ..) => {
                format!("op {} of {}: {} became {}", k + 1, b.len(), self.place(&a[k]), self.place(&b[k]))
            }
            (None, m, n) if m < n => format!("{} more ops, from {} on", n - m, self.place(&b[m])),
            (None, m, n) if m > n => format!("{} ops less, from {} on", m - n, self.place(&a[n])),
            _ => return None,
        })
    }

    /// Number of a storage among those that exist before the segment, from 1.
    fn input_number(&self, storage: u32) -> Option<usize> {
        let uses = &self.new.uses;
        let before = uses.iter().take(storage as usize + 1).filter(|u| !u.created).count();
        uses.get(storage as usize).filter(|u| !u.created).map(|_| before)
    }

    /// "input 3 (`weight` of aten::linear at model.py:12)".
    fn input(&self, number: usize, node: &Node, argument: usize) -> String {
        format!("input {number} ({} of {})", argument_name(node, argument), self.place(node))
    }

    fn pairs(&self) -> impl Iterator<Item = (&Node, &Node)> {
        self.old.nodes.iter().zip(&self.new.nodes)
    }

    fn tensors(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut told: Vec<u32> = Vec::new();
        for (a, b) in self.pairs().filter(|(a, b)| a.sig.parts != b.sig.parts) {
            let (Ok(old), Ok(new)) = (a.sig.args(), b.sig.args()) else { continue };
            let record = self.new.inputs(b);
            for (k, (x, y)) in old.iter().zip(new).enumerate() {
                let (mut olds, mut news) = (Vec::new(), Vec::new());
                x.tensors(&mut |t| olds.push(t));
                y.tensors(&mut |t| news.push(t));
                for (x, y) in olds.into_iter().zip(news) {
                    let Some(&storage) = record.get(y.storage as usize) else { continue };
                    let Some(number) = self.input_number(storage).filter(|_| !told.contains(&storage)) else {
                        continue;
                    };
                    if let Some(change) = tensor_change(x, y) {
                        told.push(storage);
                        lines.push(format!("{}: {change}", self.input(number, b, k)));
                    }
                }
            }
        }
        if lines.is_empty() {
            let made = self.pairs().find(|(a, b)| {
                let geometry = a.sig.parts.geometry != b.sig.parts.geometry;
                (geometry || a.sig.parts.dtypes != b.sig.parts.dtypes) && !a.sig.outs.is_empty()
            });
            let change = made.and_then(|(a, b)| {
                let (x, y) = a.sig.outs.iter().zip(&b.sig.outs).find(|(x, y)| x != y)?;
                let sizes = (x.sizes() != y.sizes()).then(|| became(sizes(x.sizes()), sizes(y.sizes())));
                let dtype = || became(x.scalar_type(), y.scalar_type());
                Some(format!("the result of {}: {}", self.place(b), sizes.unwrap_or_else(dtype)))
            });
            lines.extend(change);
        }
        lines
    }

    fn arguments(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (a, b) in self.pairs().filter(|(a, b)| a.sig.parts.arguments != b.sig.parts.arguments) {
            let (Ok(old), Ok(new)) = (a.sig.args(), b.sig.args()) else { continue };
            for (k, (x, y)) in old.iter().zip(new).enumerate().filter(|(_, (x, y))| x != y) {
                lines.push(format!("{} of {}: {}", argument_name(b, k), self.place(b), became(value(x), value(y))));
            }
        }
        lines
    }

    /// The op that makes or first writes a storage, and what to call it.
    fn storage(&self, storage: u32) -> String {
        let trace = self.new;
        let maker = trace.nodes.iter().find(|n| trace.outputs(n).contains(&storage));
        match (maker, self.input_number(storage)) {
            (Some(node), _) => format!("the result of {}", self.place(node)),
            (None, Some(number)) => {
                let user = trace.nodes.iter().find(|n| trace.inputs(n).contains(&storage));
                let argument = user.and_then(|n| {
                    let place = trace.inputs(n).iter().position(|&i| i == storage)?;
                    let uses = |a: &Arg| {
                        let mut found = false;
                        a.tensors(&mut |t| found |= t.storage as usize == place);
                        found
                    };
                    Some(self.input(number, n, n.sig.args().ok()?.iter().position(uses)?))
                });
                argument.unwrap_or_else(|| format!("input {number}"))
            }
            (None, None) => "a tensor".into(),
        }
    }

    /// A line for each storage whose use changed in the way that `line` looks for.
    fn uses(&self, line: impl Fn(&Use, &Use) -> Option<&'static str>) -> Vec<String> {
        let pairs = self.old.uses.iter().zip(&self.new.uses).enumerate();
        pairs.filter_map(|(i, (was, is))| Some(format!("{} {}", self.storage(i as u32), line(was, is)?))).collect()
    }

    fn live(&self) -> Vec<String> {
        self.uses(|was, is| match (was.live, is.live) {
            (false, true) => Some("is kept now"),
            (true, false) => Some("is no longer kept"),
            _ => None,
        })
    }

    fn donation(&self) -> Vec<String> {
        self.uses(|was, is| match (was.written, is.written) {
            (false, true) => Some("is written now"),
            (true, false) => Some("is no longer written"),
            _ => (was.created != is.created).then_some("existed before in one of them"),
        })
    }

    fn storages(&self) -> Vec<String> {
        let pairs = self.old.uses.iter().zip(&self.new.uses).enumerate();
        let changed = pairs.filter(|(_, (was, is))| was.nbytes != is.nbytes);
        let line = |(i, (was, is)): (usize, (&Use, &Use))| {
            format!("the memory behind {}: {} bytes became {}", self.storage(i as u32), was.nbytes, is.nbytes)
        };
        changed.map(line).collect()
    }
}

fn argument_name(node: &Node, argument: usize) -> String {
    match node.sig.op.args.get(argument) {
        Some(name) => format!("`{name}`"),
        None => format!("argument {}", argument + 1),
    }
}

fn became(old: impl std::fmt::Display, new: impl std::fmt::Display) -> String {
    format!("{old} became {new}")
}

/// "17×256"; a 0-d tensor is "scalar".
fn sizes(sizes: &[i64]) -> String {
    if sizes.is_empty() {
        return "scalar".into();
    }
    sizes.iter().map(i64::to_string).collect::<Vec<_>>().join("×")
}

fn tensor_change(old: &TensorArg, new: &TensorArg) -> Option<String> {
    if old.dtype != new.dtype {
        Some(became(old.dtype, new.dtype))
    } else if old.sizes != new.sizes {
        Some(became(sizes(&old.sizes), sizes(&new.sizes)))
    } else if old.strides != new.strides {
        Some(format!("strides {:?} became {:?}", &old.strides[..], &new.strides[..]))
    } else if old.offset != new.offset {
        Some(format!("offset {}", became(old.offset, new.offset)))
    } else {
        None
    }
}

fn value(arg: &Arg) -> String {
    match arg {
        Arg::None => "None".into(),
        Arg::Int(v) => v.to_string(),
        Arg::Double(v) => v.to_string(),
        Arg::Bool(v) => v.to_string(),
        Arg::Ints(v) => format!("{v:?}"),
        Arg::Doubles(v) => format!("{v:?}"),
        Arg::Bools(v) => format!("{v:?}"),
        Arg::Str(v) => format!("{v:?}"),
        Arg::List(l) => format!("[{}]", l.iter().map(value).collect::<Vec<_>>().join(", ")),
        Arg::Undef => "undefined".into(),
        Arg::Tensor(t) => format!("a tensor of {}", sizes(&t.sizes)),
        Arg::CpuScalar { .. } | Arg::Complex { .. } | Arg::Data { .. } | Arg::Rng { .. } => "a number".into(),
        Arg::Device => "a device".into(),
        Arg::Generator => "a generator".into(),
    }
}
