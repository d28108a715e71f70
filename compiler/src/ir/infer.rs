//! Type rules: result types of every op from operand types and attributes.
use super::{Attrs, DType, Dims, OpKind, ReduceKind, TensorType, TypeError, WindowDim};

type Types = Vec<TensorType>;

macro_rules! ensure {
    ($cond:expr, $($arg:tt)*) => { if !$cond { return Err(TypeError::new(format!($($arg)*))) } };
}

fn bad_attrs(kind: OpKind, attrs: &Attrs) -> TypeError {
    TypeError::new(format!("{kind}: unexpected attributes {attrs:?}"))
}

/// Result types of `kind` applied to operands of types `ops`.
///
/// `declared` carries the result types of ops that cannot derive them (parameter, constant, iota, convert, reshape,
/// broadcasts, slices by run-time starts, contractions' element type); it is checked against what can be derived.
pub fn infer(kind: OpKind, attrs: &Attrs, ops: &[&TensorType], declared: &[TensorType]) -> Result<Types, TypeError> {
    if let Some(n) = kind.arity() {
        ensure!(ops.len() == n, "{kind}: expected {n} operands, got {}", ops.len());
    }
    if kind.is_elementwise() && kind != OpKind::Compare {
        ensure!(*attrs == Attrs::None, "{kind}: unexpected attributes {attrs:?}");
    }
    let declared1 = || declared.first().cloned().ok_or_else(|| TypeError::new(format!("{kind}: no declared type")));
    use OpKind as K;
    let one = |t: TensorType| Ok(vec![t]);
    match kind {
        K::Parameter => match attrs {
            Attrs::Index(_) => one(declared1()?),
            _ => Err(bad_attrs(kind, attrs)),
        },
        K::Iota => {
            let (Attrs::Dim(dim), t) = (attrs, declared1()?) else { return Err(bad_attrs(kind, attrs)) };
            ensure!(distinct(&[*dim], &t), "{kind}: dimension {dim} of {t}");
            ensure!(t.dtype != DType::Bool, "{kind}: {t}");
            one(t)
        }
        K::Constant => match attrs {
            Attrs::Literal(l) => {
                let whole = l.is_splat() || l.bytes.len() as u64 == l.ty.bytes();
                ensure!(whole, "{kind}: {} bytes for {}", l.bytes.len(), l.ty);
                one(l.ty.clone())
            }
            _ => Err(bad_attrs(kind, attrs)),
        },
        K::Abs | K::Negate | K::Sign => one(ops[0].clone()),
        K::Not => {
            ensure!(!ops[0].dtype.is_float(), "{kind}: expected an integer operand, got {}", ops[0]);
            one(ops[0].clone())
        }
        K::Exp
        | K::Expm1
        | K::Log
        | K::Log1p
        | K::Sqrt
        | K::Rsqrt
        | K::Sin
        | K::Cos
        | K::Tan
        | K::Tanh
        | K::Logistic
        | K::Erf
        | K::Erfc
        | K::ErfInv
        | K::Lgamma
        | K::Digamma
        | K::Asin
        | K::Acos
        | K::Atan
        | K::Sinh
        | K::Cosh
        | K::Asinh
        | K::Acosh
        | K::Atanh
        | K::Floor
        | K::Ceil
        | K::RoundEven
        | K::Trunc => {
            ensure!(ops[0].dtype.is_float(), "{kind}: expected a float operand, got {}", ops[0]);
            one(ops[0].clone())
        }
        K::IsFinite => one(ops[0].with_dtype(DType::Bool)),
        K::Convert | K::BitcastConvert => {
            let t = declared1()?;
            ensure!(t.dims == ops[0].dims, "{kind}: sizes differ: {} to {t}", ops[0]);
            ensure!(
                kind == K::Convert || t.dtype.size() == ops[0].dtype.size(),
                "{kind}: element sizes differ: {} to {t}",
                ops[0]
            );
            one(t)
        }
        K::Add
        | K::Subtract
        | K::Multiply
        | K::Divide
        | K::Remainder
        | K::Power
        | K::Maximum
        | K::Minimum
        | K::Atan2
        | K::NextAfter
        | K::And
        | K::Or
        | K::Xor
        | K::ShiftLeft
        | K::ShiftRight => {
            ensure!(ops[0] == ops[1], "{kind}: operand types differ: {} and {}", ops[0], ops[1]);
            let fits = match kind {
                K::Atan2 | K::NextAfter => ops[0].dtype.is_float(),
                K::And | K::Or | K::Xor => !ops[0].dtype.is_float(),
                K::ShiftLeft | K::ShiftRight => ops[0].dtype.is_int(),
                _ => true,
            };
            ensure!(fits, "{kind}: not defined for {}", ops[0]);
            one(ops[0].clone())
        }
        K::Compare => {
            ensure!(matches!(attrs, Attrs::Compare(_)), "{kind}: unexpected attributes {attrs:?}");
            ensure!(ops[0] == ops[1], "{kind}: operand types differ: {} and {}", ops[0], ops[1]);
            one(ops[0].with_dtype(DType::Bool))
        }
        K::Select => {
            ensure!(ops[0].dtype == DType::Bool, "{kind}: the predicate is {}", ops[0]);
            ensure!(ops[1] == ops[2], "{kind}: branch types differ: {} and {}", ops[1], ops[2]);
            ensure!(ops[0].dims == ops[1].dims, "{kind}: sizes differ: {} and {}", ops[0], ops[1]);
            one(ops[1].clone())
        }
        K::BroadcastInDim => {
            let (Attrs::Dims(dims), t) = (attrs, declared1()?) else { return Err(bad_attrs(kind, attrs)) };
            ensure!(t.dtype == ops[0].dtype, "{kind}: element types differ: {} to {t}", ops[0]);
            ensure!(dims.len() == ops[0].rank(), "{kind}: {} dimension numbers for {}", dims.len(), ops[0]);
            for (i, &d) in dims.iter().enumerate() {
                ensure!((0..t.rank() as i64).contains(&d), "{kind}: dimension {d} of {t}");
                ensure!(i == 0 || dims[i - 1] < d, "{kind}: dimension numbers must increase: {dims:?}");
                let (from, to) = (ops[0].dims[i], t.dims[d as usize]);
                ensure!(from == to || from == 1, "{kind}: size {from} does not broadcast to {to} ({} to {t})", ops[0]);
            }
            one(t)
        }
        K::Reshape => {
            let t = declared1()?;
            ensure!(t.dtype == ops[0].dtype && t.numel() == ops[0].numel(), "{kind}: {} to {t}", ops[0]);
            one(t)
        }
        K::Transpose => {
            let Attrs::Dims(perm) = attrs else { return Err(bad_attrs(kind, attrs)) };
            let mut seen = perm.clone();
            seen.sort_unstable();
            ensure!(
                seen.iter().copied().eq(0..ops[0].rank() as i64),
                "{kind}: {perm:?} is no permutation of the dimensions of {}",
                ops[0]
            );
            one(ops[0].with_dims(perm.iter().map(|&p| ops[0].dims[p as usize]).collect::<Dims>()))
        }
        K::Slice => {
            let Attrs::Slice { start, limit, stride } = attrs else { return Err(bad_attrs(kind, attrs)) };
            let n = ops[0].rank();
            ensure!(start.len() == n && limit.len() == n && stride.len() == n, "{kind}: rank of {}", ops[0]);
            let mut dims = Dims::new();
            for i in 0..n {
                let (s, l, st) = (start[i], limit[i], stride[i]);
                ensure!(0 <= s && s <= l && l <= ops[0].dims[i] && st >= 1, "{kind}: [{s}:{l}:{st}] of {}", ops[0]);
                dims.push((l - s + st - 1) / st);
            }
            one(ops[0].with_dims(dims))
        }
        K::Pad => {
            let Attrs::Pad { lo, hi, interior } = attrs else { return Err(bad_attrs(kind, attrs)) };
            ensure!(*ops[1] == TensorType::scalar(ops[0].dtype), "{kind}: padding value {} for {}", ops[1], ops[0]);
            let n = ops[0].rank();
            ensure!(lo.len() == n && hi.len() == n && interior.len() == n, "{kind}: rank of {}", ops[0]);
            let mut dims = Dims::new();
            for i in 0..n {
                let d = ops[0].dims[i];
                let inner =
                    if d == 0 { 0 } else { (d - 1).saturating_mul(interior[i].saturating_add(1)).saturating_add(1) };
                let size = lo[i].saturating_add(hi[i]).saturating_add(inner);
                ensure!(interior[i] >= 0 && size >= 0, "{kind}: size {size} in dimension {i} of {}", ops[0]);
                dims.push(size);
            }
            one(ops[0].with_dims(dims))
        }
        K::Concatenate => {
            let Attrs::Dim(dim) = *attrs else { return Err(bad_attrs(kind, attrs)) };
            ensure!(!ops.is_empty() && (0..ops[0].rank() as i64).contains(&dim), "{kind}: dimension {dim}");
            let mut t = ops[0].clone();
            t.dims[dim as usize] = 0;
            for o in ops {
                let mut other = (*o).clone();
                ensure!(other.rank() == t.rank(), "{kind}: ranks of {} and {o}", ops[0]);
                let n = std::mem::replace(&mut other.dims[dim as usize], t.dims[dim as usize]);
                ensure!(other == t, "{kind}: {} and {o} along {dim}", ops[0]);
                t.dims[dim as usize] += n;
            }
            one(t)
        }
        K::Reverse => match attrs {
            Attrs::Dims(dims) if distinct(dims, ops[0]) => one(ops[0].clone()),
            _ => Err(bad_attrs(kind, attrs)),
        },
        K::DynamicSlice => {
            let t = declared1()?;
            ensure!(!ops.is_empty(), "{kind}: no operand");
            check_starts(kind, ops[0], &ops[1..])?;
            let fits = t.rank() == ops[0].rank() && t.dims.iter().zip(&ops[0].dims).all(|(a, b)| a <= b);
            ensure!(t.dtype == ops[0].dtype && fits, "{kind}: {t} of {}", ops[0]);
            one(t)
        }
        K::DynamicUpdateSlice => {
            ensure!(ops.len() >= 2, "{kind}: expected operand and update");
            check_starts(kind, ops[0], &ops[2..])?;
            let fits = ops[1].rank() == ops[0].rank() && ops[1].dims.iter().zip(&ops[0].dims).all(|(a, b)| a <= b);
            ensure!(ops[1].dtype == ops[0].dtype && fits, "{kind}: {} into {}", ops[1], ops[0]);
            one(ops[0].clone())
        }
        K::Gather => {
            let Attrs::Dims(dims) = attrs else { return Err(bad_attrs(kind, attrs)) };
            ensure!(ops.len() == 1 + dims.len(), "{kind}: one index tensor per indexed dimension");
            let index_dims = check_indices(kind, ops[0], &ops[1..], dims)?;
            let rest = rest_dims(ops[0], dims);
            one(ops[0].with_dims(index_dims.into_iter().chain(rest).collect::<Dims>()))
        }
        K::Scatter => {
            let Attrs::Scatter { dims, .. } = attrs else { return Err(bad_attrs(kind, attrs)) };
            ensure!(ops.len() == 2 + dims.len(), "{kind}: one index tensor per indexed dimension");
            let index_dims = check_indices(kind, ops[0], &ops[1..ops.len() - 1], dims)?;
            let rest = rest_dims(ops[0], dims);
            let want = ops[0].with_dims(index_dims.into_iter().chain(rest).collect::<Dims>());
            ensure!(*ops[ops.len() - 1] == want, "{kind}: updates are {}, expected {want}", ops[ops.len() - 1]);
            one(ops[0].clone())
        }
        K::Reduce => {
            let Attrs::Reduce { dims, kind: how } = attrs else { return Err(bad_attrs(kind, attrs)) };
            ensure!(distinct(dims, ops[0]), "{kind}: {dims:?} of {}", ops[0]);
            check_reduce_kind(kind, *how, ops[0])?;
            one(ops[0].with_dims(rest_dims(ops[0], dims)))
        }
        K::ArgReduce => {
            let Attrs::ArgReduce { dim, .. } = *attrs else { return Err(bad_attrs(kind, attrs)) };
            ensure!((0..ops[0].rank() as i64).contains(&dim), "{kind}: dimension {dim} of {}", ops[0]);
            one(TensorType::new(DType::I64, rest_dims(ops[0], &[dim])))
        }
        K::Cumulative => match attrs {
            Attrs::Cumulative { dim, .. } if (0..ops[0].rank() as i64).contains(dim) => one(ops[0].clone()),
            _ => Err(bad_attrs(kind, attrs)),
        },
        K::ReduceWindow | K::MaxPoolWithIndex => {
            let Attrs::Window { window, kind: how } = attrs else { return Err(bad_attrs(kind, attrs)) };
            ensure!(window.len() == ops[0].rank(), "{kind}: {} window dimensions for {}", window.len(), ops[0]);
            ensure!(kind == K::ReduceWindow || *how == ReduceKind::Max, "{kind}: combination {how:?}");
            check_reduce_kind(kind, *how, ops[0])?;
            check_window(kind, window)?;
            let dims: Dims = window.iter().zip(&ops[0].dims).map(|(w, &n)| w.output_size(n)).collect();
            let values = ops[0].with_dims(&dims);
            let indices = TensorType::new(DType::I64, &dims);
            Ok(if kind == K::ReduceWindow { vec![values] } else { vec![values, indices] })
        }
        K::DotGeneral => {
            let Attrs::Dot(d) = attrs else { return Err(bad_attrs(kind, attrs)) };
            let (l, r) = (ops[0], ops[1]);
            let pairs = |a: &Dims, b: &Dims| {
                a.len() == b.len() && a.iter().zip(b).all(|(&i, &j)| l.dims[i as usize] == r.dims[j as usize])
            };
            ensure!(l.dtype == r.dtype, "{kind}: element types of {l} and {r}");
            let known = distinct(&[&d.lhs_batch[..], &d.lhs_contract[..]].concat(), l)
                && distinct(&[&d.rhs_batch[..], &d.rhs_contract[..]].concat(), r);
            ensure!(known, "{kind}: dimensions of {l} and {r} under {d:?}");
            ensure!(
                pairs(&d.lhs_batch, &d.rhs_batch) && pairs(&d.lhs_contract, &d.rhs_contract),
                "{kind}: sizes of {l} and {r} under {d:?}"
            );
            let mut dims: Dims = d.lhs_batch.iter().map(|&i| l.dims[i as usize]).collect();
            dims.extend(rest_dims(l, &[&d.lhs_batch[..], &d.lhs_contract[..]].concat()));
            dims.extend(rest_dims(r, &[&d.rhs_batch[..], &d.rhs_contract[..]].concat()));
            one(TensorType::new(declared.first().map_or(l.dtype, |t| t.dtype), dims))
        }
        K::Convolution => {
            let Attrs::Conv { window, dims: d, feature_groups, batch_groups } = attrs else {
                return Err(bad_attrs(kind, attrs));
            };
            let (x, w) = (ops[0], ops[1]);
            ensure!(x.dtype == w.dtype && x.rank() == w.rank(), "{kind}: {x} and {w}");
            ensure!(window.len() + 2 == x.rank(), "{kind}: {} window dimensions for {x}", window.len());
            check_window(kind, window)?;
            for (first, second, spatial) in [
                (d.input_batch, d.input_feature, &d.input_spatial),
                (d.kernel_input_feature, d.kernel_output_feature, &d.kernel_spatial),
                (d.output_batch, d.output_feature, &d.output_spatial),
            ] {
                let mut all: Dims = spatial.iter().copied().chain([first, second]).collect();
                all.sort_unstable();
                ensure!(all.iter().copied().eq(0..x.rank() as i64), "{kind}: dimension numbers {d:?} for {x}");
            }
            let size = |t: &TensorType, i: i64| t.dims[i as usize];
            ensure!(
                size(x, d.input_feature) == size(w, d.kernel_input_feature) * feature_groups,
                "{kind}: features of {x} and {w}, {feature_groups} groups"
            );
            let (fg, bg) = (*feature_groups, *batch_groups);
            let divides = |groups: i64, n: i64| groups >= 1 && n % groups == 0;
            ensure!(
                divides(fg, size(w, d.kernel_output_feature))
                    && divides(bg, size(w, d.kernel_output_feature))
                    && divides(bg, size(x, d.input_batch))
                    && (fg == 1 || bg == 1),
                "{kind}: {fg} feature groups and {bg} batch groups of {x} and {w}"
            );
            let mut out = Dims::from_elem(0, x.rank());
            out[d.output_batch as usize] = size(x, d.input_batch) / batch_groups;
            out[d.output_feature as usize] = size(w, d.kernel_output_feature);
            for (k, win) in window.iter().enumerate() {
                ensure!(win.size == size(w, d.kernel_spatial[k]), "{kind}: window {k} of {w}");
                out[d.output_spatial[k] as usize] = win.output_size(size(x, d.input_spatial[k]));
            }
            one(TensorType::new(declared.first().map_or(x.dtype, |t| t.dtype), out))
        }
        K::Attention => {
            ensure!((4..=5).contains(&ops.len()), "{kind}: {} operands", ops.len());
            let (q, k, v) = (ops[0], ops[1], ops[2]);
            ensure!(q.rank() == 4 && k.rank() == 4 && v.rank() == 4, "{kind}: {q}, {k}, {v}");
            check_attention(kind, attrs, &[q, k, v], ops[3], ops.get(4).copied())?;
            let mut out = q.clone();
            out.dims[3] = v.dims[3];
            Ok(vec![out, TensorType::new(DType::F32, &q.dims[..3])])
        }
        K::AttentionBackward => {
            ensure!((7..=8).contains(&ops.len()), "{kind}: {} operands", ops.len());
            let (q, k, v) = (ops[0], ops[1], ops[2]);
            ensure!(q.rank() == 4 && k.rank() == 4 && v.rank() == 4, "{kind}: {q}, {k}, {v}");
            check_attention(kind, attrs, &[q, k, v], ops[3], ops.get(7).copied())?;
            let mut out = q.clone();
            out.dims[3] = v.dims[3];
            let lse = TensorType::new(DType::F32, &q.dims[..3]);
            ensure!(*ops[4] == out && *ops[6] == out, "{kind}: out {} and dout {}, expected {out}", ops[4], ops[6]);
            ensure!(*ops[5] == lse, "{kind}: logsumexp {}, expected {lse}", ops[5]);
            Ok(vec![ops[0].clone(), ops[1].clone(), ops[2].clone()])
        }
        K::Sort => match attrs {
            Attrs::Sort { dim, .. } if (0..ops[0].rank() as i64).contains(dim) => {
                Ok(vec![ops[0].clone(), ops[0].with_dtype(DType::I64)])
            }
            _ => Err(bad_attrs(kind, attrs)),
        },
        K::TopK => {
            let Attrs::TopK { k, .. } = *attrs else { return Err(bad_attrs(kind, attrs)) };
            let mut t = ops[0].clone();
            let last = t.dims.last_mut().ok_or_else(|| TypeError::new(format!("{kind}: 0-d operand")))?;
            ensure!((0..=*last).contains(&k), "{kind}: k = {k} of {}", ops[0]);
            *last = k;
            Ok(vec![t.clone(), t.with_dtype(DType::I64)])
        }
        K::RngBits => {
            let scalar = TensorType::scalar(DType::I64);
            ensure!(*ops[0] == scalar && *ops[1] == scalar, "{kind}: seed {} and offset {}", ops[0], ops[1]);
            ensure!(matches!(attrs, Attrs::Word(0..4)), "{kind}: unexpected attributes {attrs:?}");
            one(declared1()?.with_dtype(DType::U32))
        }
        K::OptimizationBarrier => Ok(ops.iter().map(|t| (*t).clone()).collect()),
        K::Fusion => {
            let Attrs::Fusion { body, .. } = attrs else { return Err(bad_attrs(kind, attrs)) };
            let same = body.params.len() == ops.len() && body.params.iter().zip(ops).all(|(p, o)| p.ty == **o);
            ensure!(same, "{kind}: operands do not match the parameters of {}", body.name);
            Ok(body.result_types())
        }
    }
}

/// Sizes of `t` without dimensions `dims`.
fn rest_dims(t: &TensorType, dims: &[i64]) -> Dims {
    (0..t.rank()).filter(|i| !dims.contains(&(*i as i64))).map(|i| t.dims[i]).collect()
}

/// Checks the index operands of `gather` and `scatter` and returns their common sizes.
fn check_indices(kind: OpKind, operand: &TensorType, idx: &[&TensorType], dims: &[i64]) -> Result<Dims, TypeError> {
    ensure!(!idx.is_empty(), "{kind}: no index tensors");
    ensure!(distinct(dims, operand), "{kind}: {dims:?} of {operand}");
    ensure!(idx.iter().all(|t| t.dtype == DType::I64 && t.dims == idx[0].dims), "{kind}: index types differ");
    Ok(idx[0].dims.clone())
}

/// Whether `dims` are distinct dimensions of `t`.
fn distinct(dims: &[i64], t: &TensorType) -> bool {
    dims.iter().enumerate().all(|(i, d)| (0..t.rank() as i64).contains(d) && !dims[..i].contains(d))
}

/// Checks the run-time starts of a slice of `operand`: 0-d i64, one per dimension.
fn check_starts(kind: OpKind, operand: &TensorType, starts: &[&TensorType]) -> Result<(), TypeError> {
    ensure!(starts.len() == operand.rank(), "{kind}: one start per dimension of {operand}, got {}", starts.len());
    let wrong = starts.iter().find(|t| ***t != TensorType::scalar(DType::I64));
    wrong.map_or(Ok(()), |t| Err(TypeError::new(format!("{kind}: a start is {t}"))))
}

fn check_reduce_kind(kind: OpKind, how: ReduceKind, operand: &TensorType) -> Result<(), TypeError> {
    let logical = matches!(how, ReduceKind::And | ReduceKind::Or);
    ensure!(!logical || operand.dtype == DType::Bool, "{kind}: {how:?} of {operand}");
    Ok(())
}

fn check_window(kind: OpKind, window: &[WindowDim]) -> Result<(), TypeError> {
    for w in window {
        let positive = [w.size, w.stride, w.base_dilation, w.window_dilation].iter().all(|&v| v >= 1);
        ensure!(positive, "{kind}: window {w:?}");
    }
    Ok(())
}

/// Checks what `attention` and its gradient have in common. q, k, v have four dimensions.
fn check_attention(
    kind: OpKind,
    attrs: &Attrs,
    [q, k, v]: &[&TensorType; 3],
    scale: &TensorType,
    bias: Option<&TensorType>,
) -> Result<(), TypeError> {
    ensure!(matches!(attrs, Attrs::Attention { .. }), "{kind}: unexpected attributes {attrs:?}");
    ensure!(
        q.dims[3] == k.dims[3] && k.dims[..3] == v.dims[..3] && q.dims[..2] == k.dims[..2],
        "{kind}: sizes of {q}, {k}, {v}"
    );
    let same = q.dtype == k.dtype && q.dtype == v.dtype && q.dtype.is_float();
    ensure!(same, "{kind}: element types of {q}, {k}, {v}");
    ensure!(*scale == TensorType::scalar(DType::F64), "{kind}: scale {scale}");
    if let Some(bias) = bias {
        let scores = [q.dims[0], q.dims[1], q.dims[2], k.dims[2]];
        let skip = 4usize.checked_sub(bias.rank());
        let fits = skip.is_some_and(|skip| bias.dims.iter().zip(&scores[skip..]).all(|(&b, &s)| b == s || b == 1));
        ensure!(fits && bias.dtype.is_float(), "{kind}: bias {bias} for scores {scores:?}");
    }
    Ok(())
}
