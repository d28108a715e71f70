//! When two clusters can be one, and in which order it is tried.
use super::analysis::Path;
use super::cluster::{ClusterId, Clusters, Reason, Shape};
use super::{Decision, FusionLimits};
use crate::ir::{Dims, InstId, OpKind, Value};
use ahash::{AHashMap, AHashSet};

/// Readers of the same value that a reader is tried with.
const SIBLINGS: usize = 4;

/// Intermediate values of so many bytes may wait for a kernel that reads them together with others.
const WAITING: u64 = 256 << 10;

/// What the merged cluster would be.
type Merged = (Shape, Dims);

/// Runs all merges; `log` gets each decision once.
pub(crate) fn run(c: &mut Clusters<'_, '_>, limits: &FusionLimits, log: &mut Vec<Decision>) {
    Merger { c, limits, log, refused: AHashMap::new(), column_full_results: false }.run();
}

struct Merger<'m, 'a, 'g> {
    c: &'m mut Clusters<'a, 'g>,
    limits: &'m FusionLimits,
    log: &'m mut Vec<Decision>,
    /// Pairs refused, with the versions they had.
    refused: AHashMap<(ClusterId, ClusterId), (u32, u32)>,
    /// Column clusters may have results of the full space.
    column_full_results: bool,
}

impl Merger<'_, '_, '_> {
    fn run(&mut self) {
        // Expression trees first: a value with one reader is computed where it is read.
        self.vertical(true);
        // Then contractions take the trees on their results: the sums are still in registers there, which no other
        // kernel can offer.
        self.epilogues();
        // Then everything that passes a value at the same index, the largest values first.
        self.vertical(false);
        // Last, clusters that read the same memory.
        self.siblings();
        self.vertical(false);
        // Only now may column kernels write what they compute on the way: a row kernel has first choice of it, because
        // it has read the same memory already.
        self.column_full_results = self.limits.column_full_results;
        self.refused.clear();
        self.vertical(false);
        self.scalars();
    }

    /// Merges kernels for single elements (step counters), however little they have to do with each other.
    fn scalars(&mut self) {
        let single = |c: &Clusters<'_, '_>, k: ClusterId| c.get(k).shape == Shape::Loop && c.get(k).dims.is_empty();
        let all: Vec<ClusterId> = self.c.order().into_iter().filter(|&k| single(self.c, k)).collect();
        let mut last: Option<ClusterId> = None;
        for k in all {
            match last {
                Some(l) if self.attempt(l, k, "scalars") => last = Some(self.c.current(k)),
                _ => last = Some(k),
            }
        }
    }

    /// Merges producers into consumers until nothing changes. `trees`: only elementwise ones whose values all go there,
    /// into elementwise ones or reductions.
    fn vertical(&mut self, trees: bool) {
        loop {
            let mut edges: Vec<(u64, ClusterId, ClusterId)> = Vec::new();
            for id in self.c.order() {
                let cluster = self.c.get(id);
                if !self.mergeable(id) {
                    continue;
                }
                let mut bytes: AHashMap<ClusterId, u64> = AHashMap::new();
                let mut seen: AHashSet<Value> = AHashSet::new();
                for &m in &cluster.members {
                    for r in self.c.a.reads(m) {
                        if let Some(p) = self.c.owner(r.value).filter(|&p| p != id) {
                            let first = seen.insert(r.value);
                            *bytes.entry(p).or_default() += if first { self.c.a.g.ty(r.value).bytes() } else { 0 };
                        }
                    }
                }
                for (p, b) in bytes {
                    let tree = self.c.get(p).succ.len() == 1
                        && self.c.get(p).shape == Shape::Loop
                        && self.c.is_elementwise(p)
                        && (cluster.shape != Shape::Loop || self.c.is_elementwise(id))
                        && !matches!(cluster.shape, Shape::Epilogue { .. })
                        && !self.has_results(p);
                    // Each of two contractions gets the ops nearest to it, rather than one the ops of both.
                    let tree = tree && !(self.own_contraction(p).is_some() && self.own_contraction(id).is_some());
                    let contraction = matches!(self.c.get(p).shape, Shape::Epilogue { .. });
                    if self.mergeable(p) && (tree || !trees) && !(contraction && self.single(p)) {
                        edges.push((b, p, id));
                    }
                }
            }
            // Largest values first; ties in program order.
            edges.sort_unstable_by_key(|&(b, p, id)| (std::cmp::Reverse(b), self.c.position(p), self.c.position(id)));
            let mut changed = false;
            for (_, p, id) in edges {
                changed |= self.attempt(p, id, "producer");
            }
            if !changed {
                return;
            }
        }
    }

    /// A contraction without epilogue: left to [`Merger::epilogues`].
    fn single(&self, c: ClusterId) -> bool {
        self.c.get(c).members.len() == 1
    }

    /// The last contraction without epilogue whose result is read by `c` alone.
    fn own_contraction(&self, c: ClusterId) -> Option<ClusterId> {
        let cluster = self.c.get(c);
        let own = |&p: &ClusterId| {
            let x = self.c.get(p);
            matches!(x.shape, Shape::Epilogue { .. })
                && x.members.len() == 1
                && x.succ.len() == 1
                && x.dims == cluster.dims
                && !self.has_results(p)
        };
        cluster.pred.iter().copied().filter(own).max_by_key(|&p| self.c.position(p))
    }

    fn has_results(&self, c: ClusterId) -> bool {
        let g = self.c.a.g;
        self.c.get(c).members.iter().flat_map(|&m| g.inst(m).results()).any(|v| self.c.a.is_result[v.0 as usize])
    }

    fn mergeable(&self, c: ClusterId) -> bool {
        self.c.get(c).shape != Shape::Opaque
    }

    fn epilogues(&mut self) {
        for dot in self.c.order() {
            if !matches!(self.c.get(self.c.current(dot)).shape, Shape::Epilogue { .. }) {
                continue;
            }
            self.join_readers(self.c.current(dot));
            loop {
                let dot = self.c.current(dot);
                let mut readers: Vec<ClusterId> = self.c.get(dot).succ.iter().copied().collect();
                readers.sort_unstable_by_key(|&r| self.c.position(r));
                // A later contraction that feeds the reader takes it: what this one computes is there by then, while
                // the other way round results of many contractions would wait for one (sums of gradients).
                let later =
                    |r: ClusterId| self.own_contraction(r).is_some_and(|o| self.c.position(o) > self.c.position(dot));
                readers.retain(|&r| !later(r));
                if !readers.into_iter().any(|r| self.attempt(dot, r, "epilogue")) {
                    break;
                }
            }
        }
    }

    /// Merges the readers of a contraction if all of them could be in its epilogue: it takes all or none.
    fn join_readers(&mut self, dot: ClusterId) {
        let mut readers: Vec<ClusterId> = self.c.get(dot).succ.iter().copied().collect();
        let dims = self.c.get(dot).dims.clone();
        let fits = |r: &ClusterId| {
            let reader = self.c.get(*r);
            reader.shape == Shape::Loop && reader.dims == dims && self.c.is_elementwise(*r)
        };
        if readers.len() < 2 || readers.len() > self.limits.epilogue_results + 1 || !readers.iter().all(fits) {
            return;
        }
        readers.sort_unstable_by_key(|&r| self.c.position(r));
        for pair in readers.windows(2) {
            self.attempt(pair[0], pair[1], "sibling");
        }
    }

    fn siblings(&mut self) {
        let g = self.c.a.g;
        let mut values: Vec<(u64, Value)> = (0..g.n_values() as u32)
            .map(Value)
            .filter(|&v| self.c.a.readers(v).len() > 1)
            .map(|v| (self.c.a.bytes(v), v))
            .filter(|&(b, _)| b > 0)
            .collect();
        values.sort_unstable_by_key(|&(b, v)| (std::cmp::Reverse(b), v));
        for (_, v) in values {
            let mut readers: Vec<ClusterId> = Vec::new();
            for &r in self.c.a.readers(v) {
                let k = self.c.find(r);
                let direct = self.c.a.reads(r).iter().any(|x| x.value == v && matches!(x.path, Path::Direct));
                if direct && !readers.contains(&k) && self.mergeable(k) {
                    readers.push(k);
                }
            }
            readers.sort_unstable_by_key(|&r| self.c.position(r));
            // Each with the nearest before it that it fits.
            for i in 1..readers.len() {
                for j in (0..i).rev().take(SIBLINGS) {
                    let (x, y) = (self.c.current(readers[j]), self.c.current(readers[i]));
                    if x == y || (self.mergeable(x) && self.mergeable(y) && self.attempt(x, y, "sibling")) {
                        break;
                    }
                }
            }
        }
    }

    /// Merges the two if that is possible.
    fn attempt(&mut self, p: ClusterId, id: ClusterId, how: &'static str) -> bool {
        let (p, id) = (self.c.current(p), self.c.current(id));
        if p == id {
            return false;
        }
        let versions = (self.c.get(p).version, self.c.get(id).version);
        if self.refused.get(&(p, id)) == Some(&versions) {
            return false;
        }
        // The dearer checks after the cheaper ones: most pairs fall at the first.
        let result = self.check(p, id).and_then(|merged| {
            self.check_lifetimes(p, id)?;
            Ok((merged, self.c.path_between(p, id)?))
        });
        let decision = |merged: Result<(), Reason>| Decision { how, from: InstId(p), into: InstId(id), merged };
        match result {
            Ok((merged, between)) => {
                self.log.push(decision(Ok(())));
                self.c.merge(p, id, merged, &between);
                true
            }
            Err(reason) => {
                self.refused.insert((p, id), versions);
                self.log.push(decision(Err(reason)));
                false
            }
        }
    }

    /// Operands of the one have to be kept until those of the other are there (gradients of layer after layer that only
    /// share zeros): what both read, or pass, has to be worth it.
    fn check_lifetimes(&self, p: ClusterId, id: ClusterId) -> Result<(), Reason> {
        let a = self.c.a;
        let reads = |k: ClusterId, from: &dyn Fn(ClusterId) -> bool| -> AHashSet<Value> {
            let values = self.c.get(k).members.iter().flat_map(|&m| a.reads(m)).map(|r| r.value);
            values.filter(|&v| self.c.owner(v).is_some_and(from)).collect()
        };
        // Results of the program are kept anyway.
        let bytes = |values: &mut dyn Iterator<Item = &Value>| values.map(|&v| a.bytes(v)).sum::<u64>();
        let waiting =
            |values: &mut dyn Iterator<Item = &Value>| bytes(&mut values.filter(|v| !a.is_result[v.0 as usize]));
        let (x, y) = (reads(p, &|o| o != p && o != id), reads(id, &|o| o != p && o != id));
        let shared = waiting(&mut x.intersection(&y)) + bytes(&mut reads(id, &|o| o == p).iter());
        let alone = waiting(&mut x.difference(&y)).min(waiting(&mut y.difference(&x)));
        if alone > shared.max(WAITING) { Err(Reason::Lifetimes) } else { Ok(()) }
    }

    /// The form both fit, if every value that passes between them can.
    fn check(&self, p: ClusterId, id: ClusterId) -> Result<Merged, Reason> {
        let (x, y) = (self.c.get(p), self.c.get(id));
        let (shape, dims) = match (&x.shape, &y.shape) {
            (Shape::Opaque, _) | (_, Shape::Opaque) => return Err(Reason::Opaque),
            (Shape::Loop, Shape::Loop) if x.dims == y.dims => (Shape::Loop, x.dims.clone()),
            (Shape::Loop, Shape::Loop) => return Err(Reason::Spaces),
            (Shape::Loop, full @ (Shape::Row { .. } | Shape::Column { .. })) => {
                fits(&x.dims, y).then(|| (full.clone(), y.dims.clone())).ok_or(Reason::Spaces)?
            }
            (full @ (Shape::Row { .. } | Shape::Column { .. }), Shape::Loop) => {
                fits(&y.dims, x).then(|| (full.clone(), x.dims.clone())).ok_or(Reason::Spaces)?
            }
            (Shape::Row { .. }, Shape::Row { .. }) | (Shape::Column { .. }, Shape::Column { .. }) => {
                if x.shape != y.shape || x.dims != y.dims {
                    return Err(Reason::Spaces);
                }
                (x.shape.clone(), x.dims.clone())
            }
            (Shape::Row { .. }, Shape::Column { .. }) | (Shape::Column { .. }, Shape::Row { .. }) => {
                return Err(Reason::Kinds);
            }
            (Shape::Epilogue { .. }, Shape::Loop) if x.dims == y.dims => (x.shape.clone(), x.dims.clone()),
            // What the epilogue reads, or what reads the same memory, in the registers of the epilogue.
            (Shape::Loop, Shape::Epilogue { .. }) if x.dims == y.dims && y.members.len() > 1 => {
                (y.shape.clone(), y.dims.clone())
            }
            (Shape::Epilogue { .. }, Shape::Loop) | (Shape::Loop, Shape::Epilogue { .. }) => {
                return Err(Reason::Spaces);
            }
            (Shape::Epilogue { .. }, _) | (_, Shape::Epilogue { .. }) => return Err(Reason::Kinds),
        };
        if x.members.len() + y.members.len() > self.limits.max_insts || x.nesting + y.nesting > self.limits.max_nesting
        {
            return Err(Reason::Size);
        }
        let merged = super::cluster::Cluster {
            shape,
            dims,
            members: vec![],
            succ: AHashSet::new(),
            pred: AHashSet::new(),
            nesting: x.nesting + y.nesting,
            version: 0,
        };
        self.check_reads(p, id, &merged)?;
        self.check_reads(id, p, &merged)?;
        match merged.shape {
            Shape::Column { .. } if !self.column_full_results => self.check_column(p, id, &merged)?,
            Shape::Epilogue { of } => self.check_epilogue(of, p, id)?,
            Shape::Opaque | Shape::Loop | Shape::Row { .. } | Shape::Column { .. } => {}
        }
        self.check_size(p, id)?;
        Ok((merged.shape, merged.dims))
    }

    /// Values of `p` that `id` reads are read where they are computed.
    fn check_reads(&self, p: ClusterId, id: ClusterId, merged: &super::cluster::Cluster) -> Result<(), Reason> {
        let a = self.c.a;
        let rows = merged.reduced_dims();
        for &m in &self.c.get(id).members {
            let inst = a.g.inst(m);
            for r in a.reads(m) {
                if self.c.owner(r.value) != Some(p) {
                    continue;
                }
                let value_full = *a.g.ty(r.value).dims == *merged.dims;
                let value_row = a.g.ty(r.value).dims == rows;
                let reader_full = *a.space(inst) == *merged.dims;
                let ok = match (r.path, &merged.shape) {
                    (Path::Direct, _) => value_full == reader_full && (value_full || value_row),
                    (Path::Row, Shape::Row { .. }) => value_row && reader_full && !value_full,
                    (Path::Row | Path::Mapped | Path::Reshaped, _) => false,
                };
                if !ok {
                    return Err(Reason::Index);
                }
            }
        }
        Ok(())
    }

    /// Nothing of the full space leaves a column kernel.
    fn check_column(&self, p: ClusterId, id: ClusterId, merged: &super::cluster::Cluster) -> Result<(), Reason> {
        let a = self.c.a;
        for k in [p, id] {
            for &m in &self.c.get(k).members {
                let inst = a.g.inst(m);
                if inst.kind == OpKind::Reduce {
                    continue;
                }
                for v in inst.results().filter(|&v| a.g.ty(v).dims == merged.dims) {
                    let outside = |r: &InstId| ![p, id].contains(&self.c.find(*r));
                    if a.is_result[v.0 as usize] || a.readers(v).iter().any(outside) {
                        return Err(Reason::FullResult);
                    }
                }
            }
        }
        Ok(())
    }

    fn check_epilogue(&self, of: InstId, p: ClusterId, id: ClusterId) -> Result<(), Reason> {
        let a = self.c.a;
        let added = if self.c.find(of) == p { id } else { p };
        if !self.c.is_elementwise(added) {
            return Err(Reason::NotElementwise);
        }
        // Operands come from memory, repeated at most.
        let plain = |m: &InstId| a.g.inst(*m).operands.iter().all(|&v| a.is_plain(v));
        if !self.c.get(added).members.iter().all(plain) {
            return Err(Reason::NotElementwise);
        }
        let outside = |r: &InstId| ![p, id].contains(&self.c.find(*r));
        let leaves = |v: Value| a.is_result[v.0 as usize] || a.readers(v).iter().any(outside);
        if leaves(a.g.inst(of).first) {
            return Err(Reason::OtherReaders);
        }
        let members = self.c.get(p).members.iter().chain(&self.c.get(id).members);
        let results = members.flat_map(|&m| a.g.inst(m).results()).filter(|&v| leaves(v)).count();
        if results > self.limits.epilogue_results {
            return Err(Reason::EpilogueResults);
        }
        let members: Vec<InstId> = self.c.get(p).members.iter().chain(&self.c.get(id).members).copied().collect();
        if !super::dot::epilogue_fits(a, of, &members) {
            return Err(Reason::EpilogueDims);
        }
        Ok(())
    }

    fn check_size(&self, p: ClusterId, id: ClusterId) -> Result<(), Reason> {
        let a = self.c.a;
        let members = || self.c.get(p).members.iter().chain(&self.c.get(id).members);
        let reduces = members().filter(|&&m| a.g.inst(m).kind == OpKind::Reduce).count();
        if reduces > self.limits.max_reduces {
            return Err(Reason::Size);
        }
        if self.c.get(p).members.len() + self.c.get(id).members.len() < self.limits.max_operands / 3 {
            return Ok(());
        }
        let mut outer: AHashSet<Value> = AHashSet::new();
        for &m in members() {
            for r in a.reads(m) {
                if !self.c.owner(r.value).is_some_and(|o| o == p || o == id) {
                    outer.insert(r.value);
                }
            }
        }
        let outside = |r: &InstId| ![p, id].contains(&self.c.find(*r));
        let outputs = members()
            .flat_map(|&m| a.g.inst(m).results())
            .filter(|&v| a.is_result[v.0 as usize] || a.readers(v).iter().any(outside))
            .count();
        if outer.len() + outputs > self.limits.max_operands { Err(Reason::Size) } else { Ok(()) }
    }
}

/// A loop over `dims` fits into a reducing kernel: over the full space, or over the reduced one.
fn fits(dims: &Dims, full: &super::cluster::Cluster) -> bool {
    *dims == full.dims || *dims == full.reduced_dims()
}
