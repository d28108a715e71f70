//! Thunks that run side by side.
//!
//! ```text
//! dot0 = x · a     dot1 = x · b     dot2 = dot0 · c          =>      [dot0, dot1], [dot2]
//! ```
//! A large thunk is best run alone, by all threads. Small ones, such as the products of a layer of width 64, are too short
//! to divide: those that do not wait for each other form a *wave*, one fork-join in which each runs on one thread. Waves
//! follow a topological order of the dependency graph, so that results are those of the list's order, bit for bit.
use super::Program;
use petgraph::Direction;
use std::cmp::Reverse;
use std::collections::BTreeSet;

impl Program {
    /// All thunks in an order in which they may run; those of an entry at the same time, up to `widest` of them.
    ///
    /// `cost`: for every thunk that should run beside others, what it costs. Entries have their dearest thunks first.
    /// Without two such thunks the order is the list's.
    pub fn waves(&self, cost: &[Option<u64>], widest: usize) -> Vec<Vec<usize>> {
        let n = self.thunks.len();
        let cost = |n: usize| cost.get(n).copied().flatten();
        if (0..n).filter(|&t| cost(t).is_some()).count() < 2 {
            return (0..n).map(|t| vec![t]).collect();
        }
        let graph = self.thunk_graph();
        let mut waits: Vec<usize> =
            graph.node_indices().map(|t| graph.neighbors_directed(t, Direction::Incoming).count()).collect();
        let mut ready: BTreeSet<usize> = (0..n).filter(|&t| waits[t] == 0).collect();
        let mut out = Vec::with_capacity(n);
        while let Some(first) = ready.pop_first() {
            let mut wave = vec![first];
            if cost(first).is_some() {
                wave.extend(ready.iter().copied().filter(|&t| cost(t).is_some()).take(widest.saturating_sub(1)));
                wave[1..].iter().for_each(|t| {
                    ready.remove(t);
                });
                wave.sort_by_key(|&t| (Reverse(cost(t)), t));
            }
            for &t in &wave {
                for next in graph.neighbors((t as u32).into()) {
                    waits[next.index()] -= 1;
                    if waits[next.index()] == 0 {
                        ready.insert(next.index());
                    }
                }
            }
            out.push(wave);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use crate::ir::{Builder, DType, ParamKind, TensorType};
    use crate::{CompileOptions, compile};

    #[test]
    fn independent_products_run_side_by_side() {
        let mut b = Builder::new("products");
        let ty = TensorType::new(DType::F32, [32, 32]);
        let p: Vec<_> = (0..5).map(|_| b.parameter(ty.clone(), ParamKind::Tensor)).collect();
        let first: Vec<_> = p[1..].iter().map(|&w| b.matmul(p[0], w)).collect();
        let second: Vec<_> = first.windows(2).map(|w| b.matmul(w[0], w[1])).collect();
        let g = b.finish(second).unwrap_or_else(|e| panic!("{e}"));
        let p = compile(g, &CompileOptions::default()).unwrap_or_else(|e| panic!("{e}")).program;
        assert_eq!(p.thunks.len(), 7);
        assert_eq!(p.waves(&[Some(1); 7], 16), [vec![0, 1, 2, 3], vec![4, 5, 6]]);
        // At most two at a time; the dear ones first; large ones alone.
        assert_eq!(p.waves(&[Some(1); 7], 2), [vec![0, 1], vec![2, 3], vec![4, 5], vec![6]]);
        let mut cost = [Some(1); 7];
        (cost[1], cost[3]) = (Some(9), None);
        assert_eq!(p.waves(&cost, 16), [vec![1, 0, 2], vec![3], vec![4, 5, 6]]);
        assert_eq!(p.waves(&[None; 7], 16).concat(), [0, 1, 2, 3, 4, 5, 6]);
    }
}
