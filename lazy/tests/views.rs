//! Views read and written through IR against plain loops over their elements.
use rsx_compiler::interp::{self, Tensor};
use rsx_compiler::ir::{Builder, DType, Graph, OpKind, ParamKind, TensorType};
use rsx_lazy::view::Geometry;

/// Deterministic random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as i64
    }
}

fn contiguous(sizes: &[i64]) -> Geometry {
    let mut strides = vec![1; sizes.len()];
    for d in (0..sizes.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * sizes[d + 1];
    }
    Geometry::new(sizes, &strides, 0)
}

/// One random view op on `g`, as PyTorch computes its geometry. `overlap`: windows and expanded dimensions too.
fn step(r: &mut Random, g: &Geometry, overlap: bool) -> Geometry {
    let mut v = g.clone();
    let rank = g.sizes.len();
    if rank == 0 {
        return v;
    }
    let d = r.below(rank as i64) as usize;
    match r.below(if overlap { 8 } else { 6 }) {
        // A slice with a step.
        0 | 1 => {
            let start = r.below(v.sizes[d]);
            let step = 1 + r.below(3);
            let stop = start + 1 + r.below(v.sizes[d] - start);
            v.offset += start * v.strides[d];
            v.sizes[d] = (stop - start + step - 1) / step;
            v.strides[d] *= step;
        }
        2 => {
            let e = r.below(rank as i64) as usize;
            v.sizes.swap(d, e);
            v.strides.swap(d, e);
        }
        // select
        3 => {
            v.offset += r.below(v.sizes[d]) * v.strides[d];
            v.sizes.remove(d);
            v.strides.remove(d);
        }
        // A dimension split in two.
        4 => {
            for k in [2, 3] {
                if v.sizes[d] % k == 0 && v.sizes[d] > k {
                    v.sizes.insert(d + 1, k);
                    v.strides.insert(d + 1, v.strides[d]);
                    v.sizes[d] /= k;
                    v.strides[d] *= k;
                    break;
                }
            }
        }
        // unsqueeze, with a stride nobody should look at
        5 => {
            v.sizes.insert(d, 1);
            v.strides.insert(d, r.below(9));
        }
        // expand
        6 => {
            v.sizes.insert(d, 1 + r.below(3));
            v.strides.insert(d, 0);
        }
        // unfold
        _ => {
            let size = 1 + r.below(v.sizes[d]);
            let step = 1 + r.below(2);
            v.sizes[d] = (v.sizes[d] - size) / step + 1;
            v.sizes.push(size);
            v.strides.push(v.strides[d]);
            v.strides[d] *= step;
        }
    }
    v
}

/// Storage positions of the view's elements, row-major.
fn positions(g: &Geometry) -> Vec<usize> {
    let mut all = vec![g.offset];
    for (&n, &s) in g.sizes.iter().zip(&g.strides) {
        all = all.into_iter().flat_map(|p| (0..n).map(move |i| p + i * s)).collect();
    }
    all.into_iter().map(|p| p as usize).collect()
}

fn tensor(dims: &[i64], values: impl IntoIterator<Item = i64>) -> Tensor {
    let bytes = values.into_iter().flat_map(|v| (v as i32).to_le_bytes()).collect();
    Tensor { ty: TensorType::new(DType::I32, dims), bytes }
}

fn values(t: &Tensor) -> Vec<i64> {
    t.bytes.chunks(4).map(|c| i64::from(i32::from_le_bytes([c[0], c[1], c[2], c[3]]))).collect()
}

fn read_graph(g: &Geometry, base: &[i64]) -> Graph {
    let mut b = Builder::new("read");
    let p = b.parameter(TensorType::new(DType::I32, base), ParamKind::Tensor);
    let v = g.read(&mut b, p);
    b.finish(vec![v]).expect("a view reads")
}

fn write_graph(g: &Geometry, base: &[i64]) -> Graph {
    let mut b = Builder::new("write");
    let p = b.parameter(TensorType::new(DType::I32, base), ParamKind::Tensor);
    let u = b.parameter(TensorType::new(DType::I32, &g.sizes), ParamKind::Tensor);
    let v = g.write(&mut b, p, u);
    b.finish(vec![v]).expect("a view writes")
}

fn check_read(g: &Geometry, base: &[i64]) {
    let n: i64 = base.iter().product();
    let graph = read_graph(g, base);
    let got = interp::eval(&graph, &[tensor(base, 0..n)]).unwrap_or_else(|e| panic!("{g:?} of {n}: {e}"));
    let want: Vec<i64> = positions(g).into_iter().map(|p| p as i64).collect();
    assert_eq!(got[0].ty.dims, g.sizes, "{g:?}");
    assert_eq!(values(&got[0]), want, "read {g:?} of {base:?}\n{}", text(&graph));
}

fn check_write(g: &Geometry, base: &[i64]) {
    let n: i64 = base.iter().product();
    let graph = write_graph(g, base);
    let update = tensor(&g.sizes, (0..g.numel()).map(|i| 1000 + i));
    let got = interp::eval(&graph, &[tensor(base, 0..n), update]).unwrap_or_else(|e| panic!("{g:?} of {n}: {e}"));
    let mut want: Vec<i64> = (0..n).collect();
    for (i, p) in positions(g).into_iter().enumerate() {
        want[p] = 1000 + i as i64;
    }
    assert_eq!(values(&got[0]), want, "write {g:?} of {base:?}\n{}", text(&graph));
}

#[test]
fn random_views_read_and_write() {
    let mut r = Random(0x1234_5678_9abc_def1);
    for round in 0..600 {
        let rank = 1 + r.below(3);
        let sizes: Vec<i64> = (0..rank).map(|_| 1 + r.below(6)).collect();
        let n: i64 = sizes.iter().product();
        // A rest after the last element, as storages that were resized or are shared have it.
        let rest = if round % 3 == 0 { r.below(5) } else { 0 };
        let base: Vec<i64> = if rest == 0 && round % 2 == 0 { sizes.clone() } else { vec![n + rest] };
        let mut g = contiguous(&sizes);
        for _ in 0..r.below(5) {
            g = step(&mut r, &g, false);
        }
        check_read(&g, &base);
        check_write(&g, &base);
        for _ in 0..1 + r.below(2) {
            g = step(&mut r, &g, true);
        }
        check_read(&g, &base);
    }
}

#[test]
fn empty_and_scalar_views() {
    for g in [Geometry::new(&[0], &[1], 0), Geometry::new(&[2, 0, 3], &[0, 3, 1], 4), Geometry::new(&[], &[], 3)] {
        check_read(&g, &[6]);
        check_write(&g, &[6]);
    }
}

/// What slicing, transposing and splitting make must not become gathers: nothing downstream could fuse or tile them.
#[test]
fn ordinary_views_are_movement() {
    for (name, g, n) in [
        ("rows of a matrix", Geometry::new(&[3, 8], &[8, 1], 16), 64),
        ("columns of a matrix", Geometry::new(&[8, 3], &[8, 1], 2), 64),
        ("a transposed matrix", Geometry::new(&[8, 8], &[1, 8], 0), 64),
        ("one row", Geometry::new(&[8], &[1], 24), 64),
        ("one column", Geometry::new(&[8], &[8], 5), 64),
        ("every second element", Geometry::new(&[32], &[2], 1), 64),
        ("every second of an odd number", Geometry::new(&[32], &[2], 0), 63),
        ("heads of a packed qkv", Geometry::new(&[2, 4, 3, 5], &[180, 5, 60, 1], 20), 360),
        ("one gate of four", Geometry::new(&[6, 5], &[20, 1], 15), 120),
        ("an expanded row", Geometry::new(&[4, 8], &[0, 1], 8), 64),
        ("channels last", Geometry::new(&[2, 3, 4, 5], &[60, 1, 15, 3], 0), 120),
    ] {
        let graph = read_graph(&g, &[n]);
        let moved = graph.insts.iter().all(|i| i.kind != OpKind::Gather);
        assert!(moved, "{name}:\n{}", text(&graph));
        check_read(&g, &[n]);
    }
}

fn text(graph: &Graph) -> String {
    rsx_compiler::text::print(graph, &Default::default())
}
