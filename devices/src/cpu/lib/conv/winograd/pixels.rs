//! Images as pixels: [line][column][channel] of f32 with padding written out, and their way to the domain.

use super::kernels::{Into, kernels};
use crate::cpu::lib::conv::ConvArray;
use crate::cpu::lib::copy::copy;
use crate::cpu::lib::elem::Elem;
use crate::cpu::lib::view::{LibError, Ptr, View};

/// Some channels of an image.
pub(super) struct Pixels {
    /// The first channel's first pixel.
    ptr: Ptr,
    elem: Elem,
    /// Lines and columns.
    sizes: [usize; 2],
    /// Elements between lines, columns and channels.
    strides: [isize; 3],
    channels: usize,
}

/// Where tiles lie in the domain: elements between tiles, vectors of channels and positions.
pub(super) struct Layout {
    pub(super) tile: usize,
    pub(super) vector: usize,
    pub(super) position: usize,
}

impl Pixels {
    /// Of `a`, from element `offset` on.
    pub(super) fn new(a: &ConvArray, offset: isize, strides: [isize; 3], sizes: [usize; 2], channels: usize) -> Pixels {
        let ptr = Ptr(Ptr(a.ptr).at::<u8>(offset * a.elem.size() as isize));
        Pixels { ptr, elem: a.elem, sizes, strides, channels }
    }

    /// Transforms rows of tiles. A tile is made of two lines and columns, the first tile's from `first` on, and `around`
    /// more; `wide`: channels with the last vector full. The pixels go through `room`.
    ///
    /// # Safety
    /// As [`Pixels::fill`]; the kernel is of the present level, and `to` has room for the tiles.
    pub(super) unsafe fn transform(
        &self,
        kernel: Into,
        first: [isize; 2],
        [rows, tiles]: [usize; 2],
        around: usize,
        wide: usize,
        room: *mut f32,
        to: *mut f32,
        layout: &Layout,
    ) -> Result<(), LibError> {
        let (lines, columns) = (2 * rows + around, 2 * tiles + around);
        let (row, lanes) = (columns * wide, kernels().lanes);
        // SAFETY: the caller's buffers.
        unsafe {
            self.fill(first, [lines, columns], wide, room)?;
            for r in 0..rows {
                for v in 0..wide / lanes {
                    let from = room.add(2 * r * row + v * lanes);
                    let to = to.add(r * tiles * layout.tile + v * layout.vector);
                    kernel(from, row, wide, tiles, to, layout.tile, layout.position);
                }
            }
        }
        Ok(())
    }

    /// Copies `count` lines and columns from `first` on; what lies outside the image, and the channels up to `wide`, are
    /// zeros.
    ///
    /// # Safety
    /// The image is live memory, and `to` has room.
    unsafe fn fill(&self, first: [isize; 2], count: [usize; 2], wide: usize, to: *mut f32) -> Result<(), LibError> {
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
