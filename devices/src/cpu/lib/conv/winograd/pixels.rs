//! Images as pixels: [line][column][channel] of f32 with padding written out.

use crate::cpu::lib::copy::copy;
use crate::cpu::lib::elem::Elem;
use crate::cpu::lib::view::{LibError, Ptr, View};

/// Some channels of an image.
pub(super) struct Pixels {
    /// The first channel's first pixel.
    pub(super) ptr: Ptr,
    pub(super) elem: Elem,
    /// Lines and columns.
    pub(super) sizes: [usize; 2],
    /// Elements between lines, columns and channels.
    pub(super) strides: [isize; 3],
    pub(super) channels: usize,
}

impl Pixels {
    /// Copies `count` lines and columns from `first` on; what lies outside the image, and the channels up to `wide`, are
    /// zeros.
    ///
    /// # Safety
    /// The image is live memory, and `to` has room.
    pub(super) unsafe fn fill(
        &self,
        first: [isize; 2],
        count: [usize; 2],
        wide: usize,
        to: *mut f32,
    ) -> Result<(), LibError> {
        // What of the copy is image: begin and end.
        let inside = |d: usize| {
            let at = |n: isize| n.clamp(0, count[d] as isize) as usize;
            let lo = at(-first[d]);
            (lo, at(self.sizes[d] as isize - first[d]).max(lo))
        };
        let ((y0, y1), (x0, x1)) = (inside(0), inside(1));
        let row = count[1] * wide;
        // SAFETY: places of the buffer and of the image.
        unsafe {
            if self.channels < wide || y0 == y1 || x0 == x1 {
                to.write_bytes(0, count[0] * row);
            } else {
                to.write_bytes(0, y0 * row);
                to.add(y1 * row).write_bytes(0, (count[0] - y1) * row);
                for y in y0..y1 {
                    to.add(y * row).write_bytes(0, x0 * wide);
                    to.add(y * row + x1 * wide).write_bytes(0, (count[1] - x1) * wide);
                }
            }
            if y0 == y1 || x0 == x1 {
                return Ok(());
            }
            let from = (first[0] + y0 as isize) * self.strides[0] + (first[1] + x0 as isize) * self.strides[1];
            let from = self.ptr.at::<u8>(from * self.elem.size() as isize);
            let dims = [y1 - y0, x1 - x0, self.channels];
            let to = to.add(y0 * row + x0 * wide).cast();
            copy(
                &View::new(to, Elem::F32, &dims, &[row as isize, wide as isize, 1]),
                &View::new(from, self.elem, &dims, &self.strides),
            )
        }
    }
}
