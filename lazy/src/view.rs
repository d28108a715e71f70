//! Strided views as IR: reading a geometry from a storage's value and writing one into it.
//!
//! A storage's value is kept as a dense row-major tensor (the *base*) whose elements are the storage's elements in
//! memory order. A geometry whose strides nest (every view that slicing, transposing, expanding, splitting and
//! reshaping can make) is a chain reshape → slice → transpose → reshape → broadcast of the base; anything else
//! (overlapping windows) is a gather by computed element numbers.
use rsx_compiler::ir::{Builder, DType, Dims, ScatterKind, TensorType, Value};

/// Sizes, strides and offset (elements) of a view on a storage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    pub sizes: Dims,
    pub strides: Dims,
    pub offset: i64,
}

/// A nested geometry, as positions in a mixed-radix frame over a range of the storage.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    /// First element and length of the range that the frame covers.
    start: i64,
    len: i64,
    /// Elements by which the range reaches beyond the storage: the last row of a strided view may be cut short.
    over: i64,
    /// Radices, outermost first; their product is `len`.
    radix: Dims,
    /// Where the view begins and how far it goes in each radix.
    at: Dims,
    size: Dims,
    /// For each frame dimension, the view dimension it is; `None` for the inner remainder of a strided innermost.
    dim: Vec<Option<usize>>,
}

impl Geometry {
    pub fn new(sizes: &[i64], strides: &[i64], offset: i64) -> Self {
        Geometry { sizes: Dims::from_slice(sizes), strides: Dims::from_slice(strides), offset }
    }

    pub fn numel(&self) -> i64 {
        self.sizes.iter().product()
    }

    /// View dimensions that advance through memory, by decreasing stride. Size-1 and expanded dimensions do not.
    fn core(&self) -> Vec<usize> {
        let mut core: Vec<usize> =
            (0..self.sizes.len()).filter(|&d| self.sizes[d] > 1 && self.strides[d] != 0).collect();
        core.sort_by_key(|&d| (-self.strides[d], d));
        core
    }

    /// If the geometry covers all `n` elements of a storage exactly once: its sizes in memory order.
    ///
    /// This is the shape under which a value written or first read so is kept.
    pub fn dense_dims(&self, n: i64) -> Option<Dims> {
        if self.offset != 0 || self.numel() != n || n == 0 {
            return None;
        }
        let core = self.core();
        let mut expected = 1;
        for &d in core.iter().rev() {
            if self.strides[d] != expected {
                return None;
            }
            expected *= self.sizes[d];
        }
        (expected == n).then(|| core.iter().map(|&d| self.sizes[d]).collect())
    }

    fn frame(&self, n: i64) -> Option<Frame> {
        let core = self.core();
        // Strides must nest: each a multiple of the next, with room for the next dimension inside.
        for w in core.windows(2) {
            let (outer, inner) = (self.strides[w[0]], self.strides[w[1]]);
            if outer % inner != 0 || outer / inner < self.sizes[w[1]] {
                return None;
            }
        }
        self.aligned(&core, n).or_else(|| self.shifted(&core, n))
    }

    fn radices(&self, core: &[usize]) -> (Dims, Vec<Option<usize>>) {
        let mut radix = Dims::new();
        let mut dim = Vec::new();
        for (k, &d) in core.iter().enumerate() {
            radix.push(if k == 0 { 0 } else { self.strides[core[k - 1]] / self.strides[d] });
            dim.push(Some(d));
        }
        let inner = core.last().map_or(1, |&d| self.strides[d]);
        if inner > 1 {
            radix.push(inner);
            dim.push(None);
        }
        (radix, dim)
    }

    /// The frame that starts at element 0: keeps the shape under which the base is likely to be known already.
    fn aligned(&self, core: &[usize], n: i64) -> Option<Frame> {
        let (mut radix, dim) = self.radices(core);
        if core.is_empty() {
            return None;
        }
        let outer = self.strides[core[0]];
        let mut rest = self.offset;
        let mut at = Dims::new();
        let mut size = Dims::new();
        for (k, d) in dim.iter().enumerate() {
            let step = match d {
                Some(d) => self.strides[*d],
                None => 1,
            };
            let extent = d.map_or(1, |d| self.sizes[d]);
            let begin = rest / step;
            rest %= step;
            if k > 0 && begin + extent > radix[k] {
                return None;
            }
            at.push(begin);
            size.push(extent);
        }
        // The whole storage if it divides; else the rows that are needed, if they fit.
        radix[0] = if n % outer == 0 { n / outer } else { at[0] + size[0] };
        (at[0] + size[0] <= radix[0] && radix[0] * outer <= n).then(|| Frame {
            start: 0,
            len: radix[0] * outer,
            over: 0,
            radix,
            at,
            size,
            dim,
        })
    }

    /// The frame that starts at the view's own offset.
    fn shifted(&self, core: &[usize], n: i64) -> Option<Frame> {
        let (mut radix, dim) = self.radices(core);
        let size: Dims = dim.iter().map(|d| d.map_or(1, |d| self.sizes[d])).collect();
        let len = match core.first() {
            Some(&d) => {
                radix[0] = self.sizes[d];
                self.sizes[d] * self.strides[d]
            }
            None => 1,
        };
        (self.offset >= 0).then(|| Frame {
            start: self.offset,
            len,
            over: (self.offset + len - n).max(0),
            at: Dims::from_elem(0, radix.len()),
            radix,
            size,
            dim,
        })
    }

    /// Element number of every element of the view, as an i64 tensor of its sizes.
    fn element_numbers(&self, b: &mut Builder) -> Value {
        let ty = TensorType::new(DType::I64, &self.sizes);
        let mut sum = b.splat_i64(&ty, self.offset);
        for d in 0..self.sizes.len() {
            if self.sizes[d] > 1 && self.strides[d] != 0 {
                let i = b.iota(&ty, d);
                let s = b.splat_i64(&ty, self.strides[d]);
                let term = b.mul(i, s);
                sum = b.add(sum, term);
            }
        }
        sum
    }

    /// The view's value, of its sizes, from the base.
    pub fn read(&self, b: &mut Builder, base: Value) -> Value {
        let n = b.ty(base).numel();
        let dtype = b.dtype(base);
        if self.numel() == 0 {
            return b.splat(&TensorType::new(dtype, &self.sizes), 0.0);
        }
        if let Some(dims) = self.dense_dims(n) {
            let dense = b.reshape(base, &dims);
            return self.restore(b, dense);
        }
        let Some(frame) = self.frame(n) else {
            let flat = b.reshape(base, [n]);
            let index = self.element_numbers(b);
            return b.gather(flat, &[0], &[index]);
        };
        let flat = frame.flat(b, base, n);
        let range = frame.range(b, flat, n);
        let framed = b.reshape(range, &frame.radix);
        let limit: Dims = frame.at.iter().zip(&frame.size).map(|(a, s)| a + s).collect();
        let ones = Dims::from_elem(1, limit.len());
        let cut = b.slice(framed, &frame.at, &limit, &ones);
        let core: Dims = frame.dim.iter().zip(&frame.size).filter(|(d, _)| d.is_some()).map(|(_, s)| *s).collect();
        let dense = b.reshape(cut, core);
        self.restore(b, dense)
    }

    /// From the core dimensions in memory order to the view's sizes.
    fn restore(&self, b: &mut Builder, dense: Value) -> Value {
        let core = self.core();
        let mut order: Vec<usize> = (0..core.len()).collect();
        order.sort_by_key(|&k| core[k]);
        let perm: Dims = order.iter().map(|&k| k as i64).collect();
        let x = b.transpose(dense, perm);
        let into: Dims = order.iter().map(|&k| core[k] as i64).collect();
        // Size-1 dimensions first (a bitcast), then the expanded ones.
        let expanded = (0..self.sizes.len()).any(|d| self.sizes[d] > 1 && self.strides[d] == 0);
        if expanded {
            return b.broadcast_in_dim(x, &self.sizes, into);
        }
        b.reshape(x, &self.sizes)
    }

    /// The view's value brought to its core dimensions in memory order.
    fn to_core(&self, b: &mut Builder, value: Value) -> Value {
        let core = self.core();
        // Expanded dimensions cannot be written meaningfully; element 0 of each stands for all.
        let mut limit = self.sizes.clone();
        for d in 0..limit.len() {
            if self.strides[d] == 0 && limit[d] > 1 {
                limit[d] = 1;
            }
        }
        let zeros = Dims::from_elem(0, limit.len());
        let ones = Dims::from_elem(1, limit.len());
        let x = b.slice(value, &zeros, &limit, &ones);
        let mut by_dim = core.clone();
        by_dim.sort_unstable();
        let x = b.reshape(x, by_dim.iter().map(|&d| self.sizes[d]).collect::<Dims>());
        let perm: Dims = core.iter().map(|d| by_dim.iter().position(|e| e == d).unwrap_or_default() as i64).collect();
        b.transpose(x, perm)
    }

    /// The base after `value` (of the view's sizes) was written through the view.
    pub fn write(&self, b: &mut Builder, base: Value, value: Value) -> Value {
        let n = b.ty(base).numel();
        if self.numel() == 0 {
            return base;
        }
        if self.dense_dims(n).is_some() {
            return self.to_core(b, value);
        }
        let base_dims = b.dims(base);
        let Some(frame) = self.frame(n) else {
            let flat = b.reshape(base, [n]);
            let index = self.element_numbers(b);
            let written = b.scatter(ScatterKind::Set, flat, &[0], &[index], value);
            return b.reshape(written, base_dims);
        };
        let update = self.to_core(b, value);
        let update = b.reshape(update, &frame.size);
        let flat = frame.flat(b, base, n);
        let range = frame.range(b, flat, n);
        let framed = b.reshape(range, &frame.radix);
        let index = TensorType::scalar(DType::I64);
        let starts: Vec<Value> = frame.at.iter().map(|&a| b.splat_i64(&index, a)).collect();
        let written = b.dynamic_update_slice(framed, update, &starts);
        let whole = if frame.covers(n) {
            written
        } else {
            let flat = b.reshape(flat, [n + frame.over]);
            let middle = b.reshape(written, [frame.len]);
            let start = b.splat_i64(&index, frame.start);
            let whole = b.dynamic_update_slice(flat, middle, &[start]);
            b.slice(whole, &[0], &[n], &[1])
        };
        b.reshape(whole, base_dims)
    }

    /// A base made by writing `value` into a storage of `n` elements with undefined contents.
    pub fn write_new(&self, b: &mut Builder, n: i64, value: Value) -> Value {
        if self.dense_dims(n).is_some() {
            return self.to_core(b, value);
        }
        let blank = TensorType::new(b.dtype(value), [n]);
        let base = b.splat(&blank, 0.0);
        self.write(b, base, value)
    }
}

impl Frame {
    /// Does the frame cover exactly the whole base?
    fn covers(&self, n: i64) -> bool {
        self.start == 0 && self.len == n
    }

    /// The base with as many zeros appended as the frame reaches beyond it.
    fn flat(&self, b: &mut Builder, base: Value, n: i64) -> Value {
        if self.over == 0 {
            return base;
        }
        let flat = b.reshape(base, [n]);
        let zero = b.scalar(b.dtype(base), 0.0);
        b.pad(flat, zero, &[0], &[self.over], &[0])
    }

    /// The range of [`Frame::flat`] that the frame covers, 1-d unless it is the whole base.
    fn range(&self, b: &mut Builder, base: Value, n: i64) -> Value {
        if self.covers(n) {
            return base;
        }
        let flat = b.reshape(base, [n + self.over]);
        b.slice(flat, &[self.start], &[self.start + self.len], &[1])
    }
}
