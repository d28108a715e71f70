//! Which rectangle of C each task computes.

use std::ops::Range;

/// A rectangle of C.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Task {
    pub(super) rows: Range<usize>,
    pub(super) cols: Range<usize>,
}

/// What limits tasks: sizes in rows and columns.
pub(super) struct Limits {
    pub(super) threads: usize,
    /// Flops of one element of C.
    pub(super) flops: f64,
    /// Row and column counts are multiples of these (but for the edges of C).
    pub(super) mr: usize,
    pub(super) nr: usize,
    pub(super) max_rows: usize,
    pub(super) max_cols: usize,
    /// Fewest columns when a block of rows is divided.
    pub(super) min_cols: usize,
}

/// Fewest flops worth a task of its own: about 20 µs.
const TASK_FLOPS: f64 = 1.5e6;
/// Panels of rows that a task has at least: they share what is read of B.
const LEAST_PANELS: usize = 4;

/// `total` in equal parts of at most `max`, each a multiple of `of`: the size of a part.
pub(super) fn even(total: usize, max: usize, of: usize) -> usize {
    total.div_ceil(total.div_ceil(max.max(of)).max(1)).next_multiple_of(of)
}

impl Limits {
    /// Flops of the next task when `left` elements of C are not yet assigned: a share, so that the
    /// last ones are small and threads end together.
    fn share(&self, left: usize) -> f64 {
        (left as f64 * self.flops / (2 * self.threads) as f64).max(TASK_FLOPS)
    }

    /// Elements of one dimension, a multiple of `of`, that make the share.
    fn fit(&self, share: f64, other: usize, of: usize) -> usize {
        ((share / (self.flops * other as f64)) as usize / of * of).max(of)
    }

    /// Blocks of all of the rows' columns, or parts of them; large ones first.
    pub(super) fn by_rows(&self, m: usize, n: usize) -> Vec<Task> {
        let part = even(m, self.max_rows, self.mr);
        let mut list = Vec::new();
        let mut r = 0;
        while r < m {
            let share = self.share((m - r) * n);
            let rows = if self.threads == 1 {
                part
            } else {
                self.fit(share, n, self.mr).max(LEAST_PANELS * self.mr).min(part)
            };
            let rows = rows.min(m - r);
            let mut cols = even(n, self.max_cols, self.nr);
            if self.threads > 1 {
                let parts = (rows as f64 * n as f64 * self.flops / share * 0.75).ceil() as usize;
                cols = cols.min(even(n, n.div_ceil(parts.max(1)), self.nr)).max(self.min_cols.min(cols));
            }
            for c in (0..n).step_by(cols) {
                list.push(Task { rows: r..r + rows, cols: c..n.min(c + cols) });
            }
            r += rows;
        }
        list
    }

    /// Ranges of columns of all rows; large ones first.
    pub(super) fn by_cols(&self, m: usize, n: usize) -> Vec<Task> {
        let part = if self.threads == 1 { n } else { even(n, self.max_cols, self.nr) };
        let mut list = Vec::new();
        let mut c = 0;
        while c < n {
            let cols = if self.threads == 1 { n } else { self.fit(self.share(m * (n - c)), m, self.nr).min(part) };
            let cols = cols.min(n - c);
            list.push(Task { rows: 0..m, cols: c..c + cols });
            c += cols;
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_cover_c_once_and_shrink() {
        for threads in [1, 2, 7, 64] {
            for (m, n, k) in [(1, 1, 1), (1024, 256, 256), (1023, 257, 1000), (64, 4096, 4096), (7, 33, 9000)] {
                let l = Limits {
                    threads,
                    flops: 2.0 * k as f64,
                    mr: 6,
                    nr: 16,
                    max_rows: 192,
                    max_cols: 1024,
                    min_cols: 64,
                };
                for list in [l.by_rows(m, n), l.by_cols(m, n)] {
                    let mut seen = vec![0u8; m * n];
                    for t in &list {
                        assert!(t.rows.start % 6 == 0 && t.cols.start % 16 == 0);
                        t.rows.clone().for_each(|r| t.cols.clone().for_each(|c| seen[r * n + c] += 1));
                    }
                    assert!(seen.iter().all(|&s| s == 1));
                    let size = |t: &Task| t.rows.len() * t.cols.len();
                    assert!(threads != 2 || list.first().map(size) >= list.last().map(size));
                }
            }
        }
    }
}
