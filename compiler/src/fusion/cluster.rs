//! Clusters of instructions and the acyclic graph between them.
//!
//! Every instruction that owns its result starts as a cluster; merging two keeps the graph between clusters acyclic,
//! which is checked on a maintained topological order: only clusters that stand between the two can be on a path.
use super::analysis::Analysis;
use crate::ir::{Attrs, Class, Dims, InstId, OpKind, Value};
use ahash::AHashSet;

/// A cluster, by number: that of one of its instructions.
pub(crate) type ClusterId = u32;

/// Clusters looked at before a path search gives up (and the merge is refused).
const SEARCH_LIMIT: usize = 600;

/// How the kernel of a cluster walks its space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A thunk of its own.
    Opaque,
    /// Everything at the points of the space.
    Loop,
    /// Reductions over the dimensions from `rows` on.
    Row { rows: usize },
    /// Reductions over the dimensions whose bits are set.
    Column { reduced: u64 },
    /// A contraction and elementwise ops on its result.
    Epilogue { of: InstId },
}

/// Instructions that run in one thunk.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) shape: Shape,
    pub(crate) dims: Dims,
    /// In program order.
    pub(crate) members: Vec<InstId>,
    pub(crate) succ: AHashSet<ClusterId>,
    pub(crate) pred: AHashSet<ClusterId>,
    /// No expression of the kernel nests deeper: the sum of [`Analysis::nesting`] over the members.
    pub(crate) nesting: usize,
    /// Raised by every merge, so that refusals need not be worked out again.
    pub(crate) version: u32,
}

impl Cluster {
    /// Dims of the reduced space: rows of a row cluster, what a column cluster keeps, the space itself otherwise.
    pub(crate) fn reduced_dims(&self) -> Dims {
        match self.shape {
            Shape::Row { rows } => Dims::from_slice(&self.dims[..rows]),
            Shape::Column { reduced } => {
                (0..self.dims.len()).filter(|i| reduced >> i & 1 == 0).map(|i| self.dims[i]).collect()
            }
            Shape::Opaque | Shape::Loop | Shape::Epilogue { .. } => self.dims.clone(),
        }
    }
}

/// Why two clusters were not merged. Kept for the dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// One of them is a library thunk that takes no part in fusion.
    Opaque,
    /// Their kinds have no common form (a row and a column reduction, say).
    Kinds,
    /// Their iteration spaces differ.
    Spaces,
    /// A value of the one is read by the other at another index, or across a reduction that has to be complete first.
    Index,
    /// A value of the full space would leave a kernel that has results in the reduced space only.
    FullResult,
    /// Another cluster depends on the one and the other depends on it.
    Cycle,
    /// The search for a path between them was given up.
    SearchLimit,
    /// The kernel would be too large.
    Size,
    /// An epilogue may hold elementwise ops only.
    NotElementwise,
    /// An epilogue would have more results than the device takes.
    EpilogueResults,
    /// The epilogue would tell apart parts of m or n that the matrix product walks as one.
    EpilogueDims,
    /// The value is needed elsewhere too.
    OtherReaders,
    /// It would cost more time than it saves.
    Cost,
    /// Operands of the one would be kept until those of the other are there, which costs more memory than they share.
    Lifetimes,
    /// It is a result of the program, which needs memory of its own.
    Result,
    /// A reshape of it is read, which only dense memory has.
    Dense,
    /// A library kernel reads it, and no strides describe it as a view of what is in memory.
    Strides,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Reason::Opaque => "a library thunk takes no part in fusion",
            Reason::Kinds => "their kinds have no common form",
            Reason::Spaces => "their iteration spaces differ",
            Reason::Index => "a value is read at another index, or before a reduction is complete",
            Reason::FullResult => "a value of the full space would leave a kernel with reduced results",
            Reason::Cycle => "a third kernel stands between them",
            Reason::SearchLimit => "the search for a path between them was given up",
            Reason::Size => "the kernel would be too large",
            Reason::NotElementwise => "an epilogue holds elementwise ops only",
            Reason::EpilogueResults => "the epilogue would have too many results",
            Reason::EpilogueDims => "the epilogue would tell apart what the product walks as one dimension",
            Reason::OtherReaders => "the value is needed elsewhere too",
            Reason::Lifetimes => "operands of the one would wait for those of the other",
            Reason::Cost => "it would cost more time than it saves",
            Reason::Result => "it is a result, which needs memory of its own",
            Reason::Dense => "a reshape of it is read, which only dense memory has",
            Reason::Strides => "a library kernel reads it and no strides describe it as a view",
        })
    }
}

/// All clusters.
pub(crate) struct Clusters<'a, 'g> {
    pub(crate) a: &'a Analysis<'g>,
    /// Cluster of every instruction (union-find).
    parent: Vec<ClusterId>,
    nodes: Vec<Option<Cluster>>,
    /// Place in `seq` of every cluster.
    ord: Vec<u32>,
    /// Clusters in a topological order; holes where merged ones were.
    seq: Vec<Option<ClusterId>>,
}

impl<'a, 'g> Clusters<'a, 'g> {
    pub(crate) fn new(a: &'a Analysis<'g>) -> Self {
        let n = a.g.insts.len();
        let mut c = Clusters {
            a,
            parent: (0..n as u32).collect(),
            nodes: vec![None; n],
            ord: (0..n as u32).collect(),
            seq: vec![None; n],
        };
        for (id, inst) in a.g.iter() {
            if !a.is_node(id) {
                continue;
            }
            let shape = if !a.is_fusible(id) {
                match inst.kind {
                    OpKind::DotGeneral | OpKind::Convolution => Shape::Epilogue { of: id },
                    _ => Shape::Opaque,
                }
            } else if let (OpKind::Reduce, Attrs::Reduce { dims, .. }) = (inst.kind, &inst.attrs) {
                let rank = a.g.ty(inst.operands[0]).rank();
                let rows = rank - dims.len();
                if dims.iter().copied().eq(rows as i64..rank as i64) {
                    Shape::Row { rows }
                } else {
                    Shape::Column { reduced: dims.iter().fold(0, |m, &d| m | 1 << d) }
                }
            } else {
                Shape::Loop
            };
            let pred: AHashSet<ClusterId> = a
                .reads(id)
                .iter()
                .map(|r| a.g.def(r.value))
                .filter(|&d| a.is_node(d) && d != id)
                .map(|d| d.0)
                .collect();
            for &p in &pred {
                if let Some(node) = &mut c.nodes[p as usize] {
                    node.succ.insert(id.0);
                }
            }
            let (dims, members) = (a.space(inst), vec![id]);
            let nesting = a.nesting(inst);
            c.nodes[id.0 as usize] =
                Some(Cluster { shape, dims, members, succ: AHashSet::new(), pred, nesting, version: 0 });
            c.seq[id.0 as usize] = Some(id.0);
        }
        c
    }

    pub(crate) fn find(&self, id: InstId) -> ClusterId {
        let mut k = id.0;
        while self.parent[k as usize] != k {
            k = self.parent[k as usize];
        }
        k
    }

    /// The cluster that now holds what `c` held.
    pub(crate) fn current(&self, c: ClusterId) -> ClusterId {
        self.find(InstId(c))
    }

    /// The cluster that computes `v`; `None` for parameters and constants.
    pub(crate) fn owner(&self, v: Value) -> Option<ClusterId> {
        let d = self.a.g.def(v);
        (self.a.is_node(d) && self.a.is_stored(v)).then(|| self.find(d))
    }

    pub(crate) fn get(&self, c: ClusterId) -> &Cluster {
        match &self.nodes[c as usize] {
            Some(node) => node,
            None => unreachable!("cluster {c} was merged away"),
        }
    }

    /// All clusters in a topological order.
    pub(crate) fn order(&self) -> Vec<ClusterId> {
        self.seq.iter().flatten().copied().collect()
    }

    pub(crate) fn position(&self, c: ClusterId) -> u32 {
        self.ord[c as usize]
    }

    /// Whether merging the two would close a cycle: there is a path between them through a third.
    pub(crate) fn path_between(&self, a: ClusterId, b: ClusterId) -> Result<Vec<ClusterId>, Reason> {
        let (first, last) = if self.ord[a as usize] < self.ord[b as usize] { (a, b) } else { (b, a) };
        let end = self.ord[last as usize];
        let mut seen: Vec<ClusterId> = Vec::new();
        let mut marked = AHashSet::new();
        let mut stack: Vec<ClusterId> = self.get(first).succ.iter().copied().collect();
        while let Some(c) = stack.pop() {
            if c == last || self.ord[c as usize] > end || !marked.insert(c) {
                continue;
            }
            let node = self.get(c);
            if node.succ.contains(&last) {
                return Err(Reason::Cycle);
            }
            seen.push(c);
            if seen.len() > SEARCH_LIMIT {
                return Err(Reason::SearchLimit);
            }
            stack.extend(node.succ.iter().copied());
        }
        Ok(seen)
    }

    /// Merges `a` and `b` into a cluster of the given shape and space. `between` is what [`Clusters::path_between`] found:
    /// what depends on the earlier one and has to come after the merged cluster.
    pub(crate) fn merge(
        &mut self,
        a: ClusterId,
        b: ClusterId,
        (shape, dims): (Shape, Dims),
        between: &[ClusterId],
    ) -> ClusterId {
        let (first, last) = if self.ord[a as usize] < self.ord[b as usize] { (a, b) } else { (b, a) };
        let (Some(x), Some(y)) = (self.nodes[first as usize].take(), self.nodes[last as usize].take()) else {
            unreachable!("merged clusters exist")
        };
        // New order of the places from `first` to `last`: what is not after `first`, the merged one, what is.
        let (from, to) = (self.ord[first as usize] as usize, self.ord[last as usize] as usize);
        let after: AHashSet<ClusterId> = between.iter().copied().collect();
        let window: Vec<ClusterId> =
            self.seq[from..=to].iter().flatten().copied().filter(|&c| c != first && c != last).collect();
        let (late, early): (Vec<ClusterId>, Vec<ClusterId>) = window.into_iter().partition(|c| after.contains(c));
        let mut at = from;
        for c in early.into_iter().chain([last]).chain(late) {
            self.seq[at] = Some(c);
            self.ord[c as usize] = at as u32;
            at += 1;
        }
        self.seq[at..=to].fill(None);

        self.parent[first as usize] = last;
        let mut members = Vec::with_capacity(x.members.len() + y.members.len());
        members.extend(x.members);
        members.extend(y.members);
        members.sort_unstable();
        let rename = |set: AHashSet<ClusterId>| set.into_iter().filter(|&c| c != first && c != last);
        let succ: AHashSet<ClusterId> = rename(x.succ).chain(rename(y.succ)).collect();
        let pred: AHashSet<ClusterId> = rename(x.pred).chain(rename(y.pred)).collect();
        for &s in &succ {
            if let Some(node) = &mut self.nodes[s as usize] {
                node.pred.remove(&first);
                node.pred.insert(last);
            }
        }
        for &p in &pred {
            if let Some(node) = &mut self.nodes[p as usize] {
                node.succ.remove(&first);
                node.succ.insert(last);
            }
        }
        let (version, nesting) = (x.version.max(y.version) + 1, x.nesting + y.nesting);
        self.nodes[last as usize] = Some(Cluster { shape, dims, members, succ, pred, nesting, version });
        last
    }

    /// True if all instructions of `c` are elementwise (a contraction aside).
    pub(crate) fn is_elementwise(&self, c: ClusterId) -> bool {
        self.get(c).members.iter().all(|&m| {
            let class = self.a.g.inst(m).kind.class();
            class == Class::Elementwise || class == Class::Contraction
        })
    }
}
