//! Strided views and the library's error type.

use super::elem::Elem;

/// What a kernel refuses. Shapes are checked by the compiler long before; these are bugs upstream
/// or an exhausted memory limit, and must not take the process down.
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
pub enum LibError {
    #[error("{kernel}: {what}")]
    Shape { kernel: &'static str, what: String },
    #[error(transparent)]
    Memory(#[from] crate::memory::OutOfMemory),
}

impl LibError {
    pub(crate) fn shape(kernel: &'static str, what: impl Into<String>) -> LibError {
        LibError::Shape { kernel, what: what.into() }
    }
}

/// A strided array in memory: element `[i0, i1, ..]` lies at `ptr + size·Σ i·stride`.
///
/// Strides count elements and may be zero or negative. The view does not own its memory.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub ptr: *mut u8,
    pub elem: Elem,
    pub dims: &'a [usize],
    pub strides: &'a [isize],
}

// SAFETY: a view is an address and a layout; the kernels' contracts govern access through it.
unsafe impl Send for View<'_> {}
// SAFETY: as above.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    pub fn new(ptr: *mut u8, elem: Elem, dims: &'a [usize], strides: &'a [isize]) -> View<'a> {
        View { ptr, elem, dims, strides }
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.dims.iter().product()
    }

    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Fails unless there is one stride per dimension.
    pub(crate) fn check(&self, kernel: &'static str) -> Result<(), LibError> {
        if self.dims.len() == self.strides.len() {
            Ok(())
        } else {
            Err(LibError::shape(kernel, format!("{} dims, {} strides", self.dims.len(), self.strides.len())))
        }
    }

    /// True if the elements lie densely in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut want = 1isize;
        for (&d, &s) in self.dims.iter().zip(self.strides).rev() {
            if d != 1 && s != want {
                return self.count() == 0;
            }
            want *= d as isize;
        }
        true
    }
}

/// Row-major strides of a dense array.
pub fn dense_strides(dims: &[usize]) -> Vec<isize> {
    let mut s = vec![1isize; dims.len()];
    for i in (0..dims.len().saturating_sub(1)).rev() {
        s[i] = s[i + 1] * dims[i + 1] as isize;
    }
    s
}

/// A raw address that may cross into the pool's threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ptr(pub(crate) *mut u8);
// SAFETY: users of `Ptr` write disjoint parts from each thread.
unsafe impl Send for Ptr {}
// SAFETY: as above.
unsafe impl Sync for Ptr {}

impl Ptr {
    /// The address `n` elements of `T` further; a method, so closures capture the whole wrapper.
    #[inline(always)]
    pub(crate) fn at<T>(self, n: isize) -> *mut T {
        self.0.cast::<T>().wrapping_offset(n)
    }
}

/// Walks the offsets of several strided arrays of one shape, in row-major order.
pub(crate) struct Walk<const N: usize> {
    dims: smallvec::SmallVec<[usize; 8]>,
    strides: smallvec::SmallVec<[[isize; N]; 8]>,
    index: smallvec::SmallVec<[usize; 8]>,
    /// Current element offset in each array.
    pub(crate) off: [isize; N],
}

impl<const N: usize> Walk<N> {
    /// `strides[j][d]`: stride of array `j` along dimension `d`. Starts at the `start`th position.
    pub(crate) fn new(dims: &[usize], strides: [&[isize]; N], start: usize) -> Walk<N> {
        let mut w = Walk {
            dims: dims.into(),
            strides: (0..dims.len()).map(|d| std::array::from_fn(|j| strides[j][d])).collect(),
            index: smallvec::smallvec![0; dims.len()],
            off: [0; N],
        };
        let mut rest = start;
        for d in (0..dims.len()).rev() {
            let i = if dims[d] == 0 { 0 } else { rest % dims[d] };
            rest = rest.checked_div(dims[d]).unwrap_or(0);
            w.index[d] = i;
            for j in 0..N {
                w.off[j] += i as isize * w.strides[d][j];
            }
        }
        w
    }

    /// Position along dimension `d`.
    pub(crate) fn at(&self, d: usize) -> usize {
        self.index[d]
    }

    /// Moves to the next position; wraps to the first after the last.
    #[inline]
    pub(crate) fn step(&mut self) {
        for d in (0..self.dims.len()).rev() {
            self.index[d] += 1;
            for j in 0..N {
                self.off[j] += self.strides[d][j];
            }
            if self.index[d] < self.dims[d] {
                return;
            }
            for j in 0..N {
                self.off[j] -= self.dims[d] as isize * self.strides[d][j];
            }
            self.index[d] = 0;
        }
    }
}

/// `v` without its entry `d`.
pub(crate) fn without<T: Copy>(v: &[T], d: usize) -> smallvec::SmallVec<[T; 8]>
where
    [T; 8]: smallvec::Array<Item = T>,
{
    v.iter().enumerate().filter(|&(i, _)| i != d).map(|(_, &x)| x).collect()
}
