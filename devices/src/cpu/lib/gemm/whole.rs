//! Operands packed as a whole: all products of a batch, all blocks of k, all lanes; once for many calls, if they are kept.

use super::pack::{Kept as Keeps, Pack, Unit};
use super::scratch::scratch;
use crate::cpu::lib::view::Ptr;
use crate::cpu::pool;
use crate::kept::{Form, Kept};
use crate::memory::OutOfMemory;
use std::sync::Arc;

/// Sizes of a packed operand: `[product][block of k][panel][unit of k][lane]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    pub(crate) products: usize,
    pub(crate) lanes: usize,
    /// Elements of k.
    pub(crate) k: usize,
    /// Lanes of a panel.
    pub(crate) width: usize,
    /// Units of k in a block; the last may be shorter.
    pub(crate) kc: usize,
}

/// A packed operand.
pub(crate) struct Packed<U> {
    p: *const U,
    /// Units of a product, and lanes with the last panel full.
    one: usize,
    wide: usize,
}

impl<U> Clone for Packed<U> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<U> Copy for Packed<U> {}

// SAFETY: an address that is only read.
unsafe impl<U> Sync for Packed<U> {}

impl<U> Packed<U> {
    /// Of an operand that is not there: for planning.
    pub(super) fn nowhere() -> Packed<U> {
        Packed { p: std::ptr::null(), one: 0, wide: 0 }
    }

    /// The panels of a product from `lane` on (the first of a panel) in the block of `len` units from `k0` on.
    pub(crate) fn at(&self, product: usize, k0: usize, lane: usize, len: usize) -> *const U {
        self.p.wrapping_add(product * self.one + k0 * self.wide + lane * len)
    }

    /// One product's operand by itself.
    pub(crate) fn product(&self, n: usize) -> Packed<U> {
        Packed { p: self.at(n, 0, 0, 0), ..*self }
    }
}

impl Whole {
    fn wide(&self) -> usize {
        self.lanes.next_multiple_of(self.width)
    }

    /// Units of a product.
    fn one<U: Unit>(&self) -> usize {
        self.wide() * self.k.div_ceil(U::K)
    }

    fn bytes<U: Unit>(&self) -> usize {
        self.products * self.one::<U>() * size_of::<U>()
    }

    pub(super) fn packed<U: Unit>(&self, p: *const U) -> Packed<U> {
        Packed { p, one: self.one::<U>(), wide: self.wide() }
    }

    /// Packs everything, on all threads.
    ///
    /// # Safety
    /// The operand covers the lanes and k of all products; `to` has room.
    unsafe fn fill<U: Unit>(&self, pack: &dyn Pack<U>, to: *mut u8) {
        let Whole { products, lanes, width, kc, .. } = *self;
        let (units, one, wide) = (self.k.div_ceil(U::K), self.one::<U>(), self.wide());
        // Parts: product, block of k, lanes.
        let step = lanes.div_ceil(4 * pool::num_threads()).next_multiple_of(width).max(4 * width);
        let (n_blocks, n_steps) = (units.div_ceil(kc), lanes.div_ceil(step));
        let to = Ptr(to);
        pool::parallel_for(products * n_blocks * n_steps, (products * one) as u64 / 3, &|t| {
            let (product, blk, l) = (t / (n_blocks * n_steps), t / n_steps % n_blocks, t % n_steps * step);
            let (k0, len) = (blk * kc, kc.min(units - blk * kc));
            let elements = (len * U::K).min(self.k - k0 * U::K);
            let at = product * one + k0 * wide + l * len;
            // SAFETY: parts of the form, which has room for all; lanes and k lie within the operand.
            unsafe { pack.pack(product, l, step.min(lanes - l), k0 * U::K, elements, width, to.at(at as isize)) };
        });
    }

    /// The packed operand, if it is kept.
    ///
    /// # Safety
    /// As [`Whole::fill`].
    pub(crate) unsafe fn kept<U: Unit>(&self, pack: &dyn Pack<U>, keeps: Keeps) -> Option<Arc<Kept>> {
        let Whole { products, lanes, k, width, kc } = *self;
        let form = || {
            let mut form = keeps.form;
            form.extend([lanes, k, products, width, kc, size_of::<U>(), U::K].map(|n| n as i64));
            Form(form)
        };
        // SAFETY: the form has room for everything.
        let make = |to| unsafe { self.fill(pack, to) };
        keeps.keep.get(form, products * lanes * k * keeps.size, self.bytes::<U>(), make)
    }

    /// Runs `f` on the packed operand: a kept one, or one packed for this call.
    ///
    /// # Safety
    /// As [`Whole::fill`].
    pub(crate) unsafe fn with<U: Unit, R>(
        &self,
        pack: &dyn Pack<U>,
        f: impl FnOnce(&Packed<U>) -> R,
    ) -> Result<R, OutOfMemory> {
        // SAFETY: the caller's contract.
        let kept = pack.keep().and_then(|keeps| unsafe { self.kept(pack, keeps) });
        if let Some(kept) = kept {
            return Ok(f(&self.packed(kept.ptr().cast())));
        }
        scratch([self.bytes::<U>(), 0, 0], |[p, _, _]| {
            // SAFETY: the caller's contract; the buffer has room for everything.
            unsafe { self.fill(pack, p) };
            f(&self.packed(p.cast_const().cast()))
        })
    }
}
