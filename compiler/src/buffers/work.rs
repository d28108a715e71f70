//! Work memory of library kernels: in the slab, where it is free while the thunk runs.
//!
//! It is placed last, into what the values leave over, so that the slab grows only if a thunk that wants some runs at the
//! peak. The largest come first; each takes the place of the one before it if it can, which is still in the cache, else
//! the smallest gap that fits.
use super::bind::ALIGN;
use super::{Plan, Time};
use crate::program::Place;

/// Work memory of the thunk at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) time: Time,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Plan {
    /// Finds room for `wanted`: time, a name of the caller's, bytes. Returns name, offset and bytes of each.
    pub(crate) fn place_work<N: Copy>(&mut self, wanted: &[(Time, N, u64)]) -> Vec<(N, u64, u64)> {
        let mut wanted = wanted.to_vec();
        wanted.sort_by_key(|w| (std::cmp::Reverse(w.2), w.0));
        let mut out = Vec::with_capacity(wanted.len());
        let mut last: Option<u64> = None;
        for (time, name, bytes) in wanted {
            let size = bytes.next_multiple_of(ALIGN);
            let busy = self.busy(time);
            let offset =
                last.filter(|&at| fits(&busy, at, size)).unwrap_or_else(|| best(&busy, size, self.memory.temp_bytes));
            last = Some(offset);
            self.memory.temp_bytes = self.memory.temp_bytes.max(offset + size);
            self.memory.work_bytes = self.memory.work_bytes.max(size);
            let live = busy.iter().map(|b| b.1 - b.0).sum::<u64>();
            self.memory.peak_bytes = self.memory.peak_bytes.max(live + size);
            self.work.push(Work { time, offset, bytes: size });
            out.push((name, offset, bytes));
        }
        out
    }

    /// Ranges of the slab that are in use at `time`, in order and apart.
    fn busy(&self, time: Time) -> Vec<(u64, u64)> {
        let storages = self.storages.iter().zip(&self.assigned).filter_map(|(s, a)| match a {
            Some(a) if a.from <= time && time <= a.to => match a.place {
                Place::Slab { offset } => Some((offset, offset + s.bytes.next_multiple_of(ALIGN))),
                _ => None,
            },
            _ => None,
        });
        let work = self.work.iter().filter(|w| w.time == time).map(|w| (w.offset, w.offset + w.bytes));
        let mut all: Vec<(u64, u64)> = storages.chain(work).filter(|r| r.0 < r.1).collect();
        all.sort_unstable();
        // Storages that pass a place on to each other meet there.
        let mut out: Vec<(u64, u64)> = Vec::with_capacity(all.len());
        for (from, to) in all {
            match out.last_mut() {
                Some(last) if from < last.1 => last.1 = last.1.max(to),
                _ => out.push((from, to)),
            }
        }
        out
    }
}

fn fits(busy: &[(u64, u64)], at: u64, size: u64) -> bool {
    busy.iter().all(|&(from, to)| at + size <= from || to <= at)
}

/// The smallest gap below `end` that holds `size` bytes, else the end of what is in use.
fn best(busy: &[(u64, u64)], size: u64, end: u64) -> u64 {
    let (mut at, mut found): (u64, Option<(u64, u64)>) = (0, None);
    for &(from, to) in busy.iter().chain(&[(end, end)]) {
        if from > at && from - at >= size && found.is_none_or(|(gap, _)| from - at < gap) {
            found = Some((from - at, at));
        }
        at = at.max(to);
    }
    found.map_or_else(|| busy.last().map_or(0, |b| b.1), |f| f.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps() {
        let busy = [(64, 128), (256, 320), (384, 448)];
        assert_eq!(best(&busy, 64, 1024), 0);
        assert_eq!(best(&busy, 128, 1024), 128);
        // Behind the last, below the end of the slab or beyond.
        assert_eq!(best(&busy, 512, 1024), 448);
        assert_eq!(best(&busy, 1024, 1024), 448);
        assert_eq!(best(&[], 64, 0), 0);
        assert!(fits(&busy, 128, 128) && !fits(&busy, 128, 192) && !fits(&busy, 96, 64));
    }
}
