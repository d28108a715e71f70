//! Values that are cheaper to compute again than to write and read back.
//!
//! A stored intermediate value is dropped if all its readers can compute it from values that are stored anyway (or that
//! they read already, or much smaller ones) in less time than its traffic takes. So the normalised input of a layer norm, say, is not kept for
//! the gradient of its weights: the input and two numbers per row are.
use super::Decision;
use super::analysis::Path;
use super::cluster::{ClusterId, Clusters, Reason, Shape};
use crate::cost::DeviceModel;
use crate::ir::{Class, InstId, Value};
use ahash::{AHashMap, AHashSet};

/// Most instructions computed again for one value.
const MAX_CONE: usize = 16;
/// A value this many times smaller than the one in question may be stored in its stead.
const SMALLER: i64 = 8;
/// Part of a value's traffic that not keeping it in memory is worth on top.
const MEMORY_BONUS: f64 = 0.25;

/// Values that clusters compute for themselves though another owns them.
#[derive(Default)]
pub(crate) struct Remat {
    in_cluster: AHashMap<ClusterId, AHashSet<Value>>,
    /// Values no reader needs from memory any more.
    dropped: AHashSet<Value>,
    /// Small values stored so that larger ones need not be.
    added: AHashSet<Value>,
}

impl Remat {
    pub(crate) fn contains(&self, c: ClusterId, v: Value) -> bool {
        self.in_cluster.get(&c).is_some_and(|s| s.contains(&v))
    }
}

/// What computing a value again takes.
struct Cone {
    insts: Vec<InstId>,
    leaves: Vec<Value>,
}

pub(crate) fn run(c: &Clusters<'_, '_>, model: &DeviceModel, log: &mut Vec<Decision>) -> Remat {
    let a = c.a;
    let mut remat = Remat::default();
    // In program order: a value that is dropped is no leaf for later ones.
    for (id, inst) in a.g.iter() {
        if !a.is_fusible(id) || inst.kind.class() != Class::Elementwise {
            continue;
        }
        let v = inst.first;
        let owner = c.find(id);
        let mut readers: Vec<ClusterId> = Vec::new();
        for &r in a.readers(v) {
            let k = c.find(r);
            if k != owner && !readers.contains(&k) {
                readers.push(k);
            }
        }
        if readers.is_empty() || a.is_result[v.0 as usize] {
            continue;
        }
        let decision = |merged| Decision { how: "recompute", from: id, into: InstId(readers[0]), merged };
        let Some(cone) = cone(c, &remat, id) else {
            continue;
        };
        match saving(c, &remat, model, v, owner, &readers, &cone) {
            Ok(()) => {
                log.push(decision(Ok(())));
                remat.dropped.insert(v);
                remat.added.extend(cone.leaves.iter().copied());
                for &k in &readers {
                    let set = remat.in_cluster.entry(k).or_default();
                    set.extend(cone.insts.iter().map(|&i| a.g.inst(i).first));
                }
            }
            Err(reason) => log.push(decision(Err(reason))),
        }
    }
    remat
}

/// `v` is in memory whatever happens to the value in question.
fn is_kept(c: &Clusters<'_, '_>, remat: &Remat, v: Value) -> bool {
    let a = c.a;
    let Some(owner) = c.owner(v) else { return true };
    a.is_result[v.0 as usize] || (!remat.dropped.contains(&v) && a.readers(v).iter().any(|&r| c.find(r) != owner))
}

/// Elementwise instructions from kept values to the result of `id`.
fn cone(c: &Clusters<'_, '_>, remat: &Remat, id: InstId) -> Option<Cone> {
    let a = c.a;
    let mut cone = Cone { insts: vec![], leaves: vec![] };
    let mut stack = vec![id];
    while let Some(i) = stack.pop() {
        if cone.insts.contains(&i) {
            continue;
        }
        if !a.is_fusible(i) || a.g.inst(i).kind.class() != Class::Elementwise || cone.insts.len() == MAX_CONE {
            return None;
        }
        cone.insts.push(i);
        for r in a.reads(i) {
            let d = a.g.def(r.value);
            let small = a.g.ty(r.value).numel() * SMALLER <= a.g.ty(a.g.inst(id).first).numel();
            if is_kept(c, remat, r.value) || (small && a.is_fusible(d)) {
                if !cone.leaves.contains(&r.value) {
                    cone.leaves.push(r.value);
                }
            } else if r.path == Path::Reshaped {
                return None;
            } else {
                stack.push(d);
            }
        }
    }
    Some(cone)
}

fn saving(
    c: &Clusters<'_, '_>,
    remat: &Remat,
    model: &DeviceModel,
    v: Value,
    owner: ClusterId,
    readers: &[ClusterId],
    cone: &Cone,
) -> Result<(), Reason> {
    let a = c.a;
    let bytes = a.bytes(v) as f64;
    let size = a.g.ty(v).dtype.size() as f64;
    let numel = a.g.ty(v).numel() as f64;
    let (mut kept_bytes, mut again_bytes, mut again_ops) = (bytes, 0.0, 0.0);
    for &leaf in cone.leaves.iter().filter(|&&l| !is_kept(c, remat, l)) {
        again_bytes += a.bytes(leaf) as f64;
    }
    for &k in readers {
        let cluster = c.get(k);
        match cluster.shape {
            Shape::Loop | Shape::Row { .. } | Shape::Column { .. } => {}
            Shape::Epilogue { of } => {
                let plain = |i: &InstId| a.g.inst(*i).operands.iter().all(|&o| a.is_plain(o));
                let contraction = a.reads(of).iter().any(|r| r.value == v);
                if contraction || !cone.insts.iter().all(plain) || !super::dot::any_epilogue_fits(a, of) {
                    return Err(Reason::Opaque);
                }
            }
            Shape::Opaque => return Err(Reason::Opaque),
        }
        let mut evals = 0.0;
        let mut already: AHashSet<Value> = AHashSet::new();
        for &m in &cluster.members {
            for r in a.reads(m) {
                already.insert(r.value);
                if r.value == v {
                    if r.path == Path::Reshaped {
                        return Err(Reason::Index);
                    }
                    // A row kernel computes row values once per row.
                    let per_row = r.path == Path::Row && matches!(cluster.shape, Shape::Row { .. });
                    evals += if per_row { numel } else { r.evals as f64 };
                }
            }
        }
        kept_bytes += bytes.min(evals * size);
        for &leaf in &cone.leaves {
            let inside = c.owner(leaf) == Some(k) || remat.contains(k, leaf);
            if !already.contains(&leaf) && !inside {
                let leaf_bytes = a.bytes(leaf) as f64;
                again_bytes += leaf_bytes.min(evals * a.g.ty(leaf).dtype.size() as f64);
            }
        }
        again_ops += evals * cone.insts.iter().map(|&i| a.ops(i)).sum::<f64>();
    }
    debug_assert!(!readers.contains(&owner));
    // Nothing else comes out of its kernel: that goes too.
    let sole = c.get(owner).members.iter().flat_map(|&m| a.g.inst(m).results()).all(|w| {
        let leaves = a.is_result[w.0 as usize] || a.readers(w).iter().any(|&r| c.find(r) != owner);
        w == v || !leaves || remat.dropped.contains(&w)
    });
    let launch = if sole { model.launch_ns } else { 0.0 };
    let kept = launch + kept_bytes * (1.0 + MEMORY_BONUS) / model.bytes_per_ns;
    let again = again_bytes / model.bytes_per_ns + model.compute_ns(again_ops);
    if again < kept { Ok(()) } else { Err(Reason::Cost) }
}
