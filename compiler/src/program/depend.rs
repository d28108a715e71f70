//! Which thunks wait for which: the order in the list is one of many that give the same results.
//!
//! Two thunks keep their order if one writes bytes that the other reads or writes. Everything else may run at once: a
//! device can start a thunk as soon as those it waits for are done.
use super::{KernelCall, Place, Program, Thunk, View};
use petgraph::graph::{DiGraph, NodeIndex};

/// A range of bytes in one memory that no other memory overlaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// The memory; a result in a donated parameter is that parameter, offsets are dropped.
    pub memory: Place,
    pub from: u64,
    pub to: u64,
}

impl Span {
    pub fn meets(&self, other: &Span) -> bool {
        self.memory == other.memory && self.from < other.to && other.from < self.to
    }
}

/// The bytes between the first and the last element of a view; `None` if it has no elements.
pub fn span(program: &Program, view: &View) -> Option<Span> {
    if view.dims.contains(&0) {
        return None;
    }
    let reach = |sign: i64| -> i64 {
        (0..view.dims.len()).map(|i| (view.dims[i] - 1) * view.strides[i]).filter(|&r| r * sign > 0).sum()
    };
    let size = view.dtype.size() as i64;
    let (lo, hi) = ((view.offset + reach(-1)) * size, (view.offset + reach(1) + 1) * size);
    let (memory, base) = match view.place {
        Place::Param(n) => (Place::Param(n), 0),
        Place::Result(n) => match program.results.get(n as usize).and_then(|r| r.alias) {
            Some(p) => (Place::Param(p), 0),
            None => (Place::Result(n), 0),
        },
        Place::Slab { offset } => (Place::Slab { offset: 0 }, offset as i64),
        Place::Constant { offset } => (Place::Constant { offset: 0 }, offset as i64),
        Place::Scalar(n) => (Place::Scalar(0), i64::from(n) * 8),
    };
    Some(Span { memory, from: (base + lo).max(0) as u64, to: (base + hi).max(0) as u64 })
}

/// What a thunk reads and writes.
#[derive(Clone, Debug, Default)]
pub struct BufferUse {
    pub reads: Vec<Span>,
    pub writes: Vec<Span>,
}

impl BufferUse {
    /// The buffer use of `thunk`, from its views.
    pub fn of(program: &Program, thunk: &Thunk) -> BufferUse {
        let mut out = BufferUse::default();
        let mut note = |inputs: &[View], outputs: &[View]| {
            out.reads.extend(inputs.iter().filter_map(|v| span(program, v)));
            out.writes.extend(outputs.iter().filter_map(|v| span(program, v)));
        };
        let mut call = |c: &KernelCall| note(&c.inputs, &c.outputs);
        match thunk {
            Thunk::Kernel(c) => call(c),
            Thunk::Group(calls) => calls.iter().for_each(call),
            Thunk::Copy { from, to, .. } => note(std::slice::from_ref(from), std::slice::from_ref(to)),
            Thunk::Library { inputs, outputs, epilogue, work, .. } => {
                note(inputs, outputs);
                note(&[], work.as_slice());
                if let Some(c) = epilogue {
                    // The first input stands for the op's own result.
                    note(&c.inputs[1.min(c.inputs.len())..], &c.outputs);
                }
            }
        }
        out
    }

    /// One of the two writes what the other touches.
    pub fn conflicts(&self, other: &BufferUse) -> bool {
        let clash = |w: &[Span], o: &BufferUse| w.iter().any(|s| o.reads.iter().chain(&o.writes).any(|x| x.meets(s)));
        clash(&self.writes, other) || clash(&other.writes, self)
    }
}

/// Node n is thunk n; an edge leads from a thunk to one that has to wait for it. Edges that follow from others are left
/// out. The list's order is a topological order of it, and every other one gives the same results.
pub type ThunkGraph = DiGraph<u32, ()>;

impl Program {
    /// The dependency graph of the thunks.
    pub fn thunk_graph(&self) -> ThunkGraph {
        let uses: Vec<BufferUse> = self.thunks.iter().map(|t| BufferUse::of(self, t)).collect();
        let mut graph = ThunkGraph::new();
        let nodes: Vec<NodeIndex> = (0..self.thunks.len() as u32).map(|n| graph.add_node(n)).collect();
        // All thunks that each one waits for, directly or not, as bits.
        let words = self.thunks.len().div_ceil(64);
        let mut behind: Vec<Vec<u64>> = Vec::with_capacity(self.thunks.len());
        for n in 0..self.thunks.len() {
            let mut mine = vec![0u64; words];
            for m in (0..n).rev() {
                // The latest first: what it waits for need not be looked at.
                if mine[m / 64] >> (m % 64) & 1 == 0 && uses[n].conflicts(&uses[m]) {
                    graph.add_edge(nodes[m], nodes[n], ());
                    mine.iter_mut().zip(&behind[m]).for_each(|(a, b)| *a |= b);
                    mine[m / 64] |= 1 << (m % 64);
                }
            }
            behind.push(mine);
        }
        graph
    }
}
