//! Work memory of library kernels: in the slab, where it is free while the thunk runs.
//!
//! It is placed last, into what the values leave over, so that the slab grows only if a thunk that wants some runs at the
//! peak. The largest come first; each takes the place of the one before it if it can, which is still in the cache, else
//! the smallest gap that fits. Where that makes the slab larger than it has to be, values and work memory are packed anew,
//! together.
use super::bind::ALIGN;
use super::pack::{Item, bound, gap, pack};
use super::{Plan, Time};
use crate::program::Place;
use ahash::AHashMap;

/// Work memory of the thunk at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) time: Time,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Part of the slab that packing again has to gain: it gives up places that are still in the cache.
const WORTHWHILE: u64 = 64;

impl Plan {
    /// Finds room for `wanted`: time, a name of the caller's, bytes. Returns name, offset and bytes of each, and whether
    /// values have moved for it.
    pub(crate) fn place_work<N: Copy>(&mut self, wanted: &[(Time, N, u64)]) -> (Vec<(N, u64, u64)>, bool) {
        let mut wanted = wanted.to_vec();
        wanted.sort_by_key(|w| (std::cmp::Reverse(w.2), w.0));
        let mut out = Vec::with_capacity(wanted.len());
        let mut last: Option<u64> = None;
        for (time, name, bytes) in wanted {
            let size = bytes.next_multiple_of(ALIGN);
            let busy = self.busy(time);
            let offset =
                last.filter(|&at| fits(&busy, at, size)).unwrap_or_else(|| gap(&busy, size, self.memory.temp_bytes));
            last = Some(offset);
            self.memory.temp_bytes = self.memory.temp_bytes.max(offset + size);
            self.memory.work_bytes = self.memory.work_bytes.max(size);
            let live = busy.iter().map(|b| b.1 - b.0).sum::<u64>();
            self.memory.peak_bytes = self.memory.peak_bytes.max(live + size);
            self.work.push(Work { time, offset, bytes: size });
            out.push((name, offset, bytes));
        }
        let moved = self.pack_again();
        if moved {
            out.iter_mut().zip(&self.work).for_each(|(o, w)| o.1 = w.offset);
        }
        (out, moved)
    }

    /// Packs values and work memory together if that makes the slab smaller by more than [`WORTHWHILE`].
    fn pack_again(&mut self) -> bool {
        // Storages that share a slot have its place and its lifetime.
        let mut slots: AHashMap<(u64, Time, Time), usize> = AHashMap::new();
        let mut items: Vec<Item> =
            self.work.iter().map(|w| Item { bytes: w.bytes, from: w.time, to: w.time }).collect();
        let mut of_storage = vec![None; self.storages.len()];
        for (s, a) in self.assigned.iter().enumerate() {
            let Some(a) = a else { continue };
            let Place::Slab { offset } = a.place else { continue };
            let bytes = self.storages[s].bytes;
            let k = *slots.entry((offset, a.from, a.to)).or_insert_with(|| {
                items.push(Item { bytes: 0, from: a.from, to: a.to });
                items.len() - 1
            });
            items[k].bytes = items[k].bytes.max(bytes);
            of_storage[s] = Some(k);
        }
        let enough = |bytes: u64| bytes + bytes / WORTHWHILE < self.memory.temp_bytes;
        if !enough(bound(&items)) {
            return false;
        }
        let packing = pack(&items);
        if !enough(packing.bytes) {
            return false;
        }
        for (a, k) in self.assigned.iter_mut().zip(of_storage) {
            if let (Some(a), Some(k)) = (a.as_mut(), k) {
                a.place = Place::Slab { offset: packing.offsets[k] };
            }
        }
        self.work.iter_mut().zip(&packing.offsets).for_each(|(w, &at)| w.offset = at);
        self.memory.temp_bytes = packing.bytes;
        true
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps() {
        let busy = [(64, 128), (256, 320), (384, 448)];
        assert_eq!(gap(&busy, 64, 1024), 0);
        assert_eq!(gap(&busy, 128, 1024), 128);
        // Behind the last, below the end of the slab or beyond.
        assert_eq!(gap(&busy, 512, 1024), 448);
        assert_eq!(gap(&busy, 1024, 1024), 448);
        assert_eq!(gap(&[], 64, 0), 0);
        assert!(fits(&busy, 128, 128) && !fits(&busy, 128, 192) && !fits(&busy, 96, 64));
    }
}
