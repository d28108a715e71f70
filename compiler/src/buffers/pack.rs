//! Packing of lifetimes into one block of memory: dynamic storage allocation.
//!
//! Items are placed one after another, each into the smallest gap between those already placed that are alive at the same
//! time (ties: the lowest). In the order of decreasing size this is how XLA's heap does it, and most programs reach the
//! lower bound that way: what is alive at the worst moment. For the others more orders are tried, and the best one is
//! repaired: what stuck out at the top is placed first the next time.
//!
//! The problem is NP-hard; the number of tries is bounded by the work they take, so that large programs get few.
use super::Time;
use super::bind::ALIGN;
use std::cmp::Reverse;

/// Memory that is needed for some time, both ends included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) bytes: u64,
    pub(super) from: Time,
    pub(super) to: Time,
}

impl Item {
    fn size(&self) -> u64 {
        self.bytes.next_multiple_of(ALIGN)
    }

    fn meets(&self, other: &Item) -> bool {
        other.from <= self.to && self.from <= other.to
    }
}

/// Where every item lies, and the size of the whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Packing {
    pub(super) offsets: Vec<u64>,
    pub(super) bytes: u64,
}

/// Pairs of items looked at in all tries together.
const EFFORT: usize = 4 << 20;
/// Most tries.
const TRIES: usize = 96;

pub(super) fn pack(items: &[Item]) -> Packing {
    let bound = bound(items);
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&k| (Reverse(items[k].bytes), items[k].from));
    let mut best = place(items, &order);
    if best.bytes <= bound {
        return best;
    }
    let mut left = (EFFORT / (items.len() * items.len()).max(1)).min(TRIES);
    let length = |k: usize| (items[k].to - items[k].from + 1) as u64;
    let area = |k: usize| items[k].bytes.saturating_mul(length(k));
    let mut starts = vec![order.clone()];
    order.sort_by_key(|&k| (Reverse(area(k)), items[k].from));
    starts.push(order.clone());
    order.sort_by_key(|&k| (Reverse(length(k)), Reverse(items[k].bytes)));
    starts.push(order.clone());
    order.sort_by_key(|&k| (items[k].from, Reverse(area(k))));
    starts.push(order);
    let each = left.div_ceil(starts.len());
    for mut order in starts {
        for _ in 0..each.min(left) {
            let next = place(items, &order);
            let top = next.bytes;
            // To the front: what reaches beyond the best so far, or at least beyond the others.
            let line = bound.max(if top > best.bytes { best.bytes } else { top - 1 });
            let (mut first, rest): (Vec<usize>, Vec<usize>) =
                order.iter().partition(|&&k| next.offsets[k] + items[k].size() > line);
            first.extend(rest);
            let stuck = first == order;
            order = first;
            if top < best.bytes {
                best = next;
            }
            if best.bytes <= bound || stuck {
                break;
            }
        }
        left = left.saturating_sub(each);
        if best.bytes <= bound {
            break;
        }
    }
    best
}

/// What is alive at the worst moment: no packing is smaller.
pub(super) fn bound(items: &[Item]) -> u64 {
    peak(items.iter().map(|i| Item { bytes: i.size(), ..*i })).0
}

/// The most bytes that are alive at a time, and when that is first.
pub(super) fn peak(items: impl Iterator<Item = Item>) -> (u64, Time) {
    let mut events: Vec<(Time, i64)> =
        items.flat_map(|i| [(i.from, i.bytes as i64), (i.to + 1, -(i.bytes as i64))]).collect();
    events.sort_unstable();
    let (mut now, mut most, mut at) = (0, 0, 0);
    for (time, change) in events {
        now += change;
        if now > most {
            (most, at) = (now, time);
        }
    }
    (most as u64, at)
}

/// Begin of the smallest gap (ties: the lowest) between what is `busy`, in order of begin, that holds `size` bytes; what is
/// left below `end` is one too. Without a gap, the end of what is busy.
pub(super) fn gap(busy: &[(u64, u64)], size: u64, end: u64) -> u64 {
    let (mut at, mut found): (u64, Option<(u64, u64)>) = (0, None);
    for &(from, to) in busy.iter().chain(&[(end, 0)]) {
        if from > at && from - at >= size && found.is_none_or(|(gap, _)| from - at < gap) {
            found = Some((from - at, at));
        }
        at = at.max(to);
    }
    found.map_or(at, |f| f.1)
}

fn place(items: &[Item], order: &[usize]) -> Packing {
    let mut out = Packing { offsets: vec![0; items.len()], bytes: 0 };
    let mut placed: Vec<usize> = Vec::with_capacity(order.len());
    let mut busy: Vec<(u64, u64)> = Vec::new();
    for &k in order {
        let size = items[k].size();
        busy.clear();
        let meeting = placed.iter().filter(|&&p| items[p].meets(&items[k]));
        busy.extend(meeting.map(|&p| (out.offsets[p], out.offsets[p] + items[p].size())));
        busy.sort_unstable();
        out.offsets[k] = gap(&busy, size, 0);
        out.bytes = out.bytes.max(out.offsets[k] + size);
        placed.push(k);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Rng;

    fn items(list: &[(u64, Time, Time)]) -> Vec<Item> {
        list.iter().map(|&(units, from, to)| Item { bytes: units * ALIGN, from, to }).collect()
    }

    fn check(items: &[Item]) -> Packing {
        let p = pack(items);
        for (i, a) in items.iter().enumerate() {
            assert!(p.offsets[i] + a.size() <= p.bytes);
            for (j, b) in items.iter().enumerate().skip(i + 1) {
                let apart = p.offsets[i] + a.size() <= p.offsets[j] || p.offsets[j] + b.size() <= p.offsets[i];
                assert!(apart || !a.meets(b) || a.bytes == 0 || b.bytes == 0, "{i} and {j} lie over each other");
            }
        }
        assert!(p.bytes >= bound(items));
        p
    }

    /// By decreasing size, 4 and 3 lie at 0 and the 2 that outlives both sits on top, where the next 3 has no room.
    #[test]
    fn repairs_what_sticks_out() {
        let list = items(&[(4, 0, 1), (2, 1, 3), (3, 2, 2), (3, 3, 4), (4, 4, 5), (1, 0, 5), (2, 4, 4)]);
        assert_eq!(check(&list).bytes, bound(&list));
    }

    #[test]
    fn random_lifetimes_are_packed_apart_and_close_to_the_bound() {
        let mut rng = Rng::new(7);
        let mut next = |n: usize| rng.below(n);
        let (mut packed, mut least) = (0, 0);
        for _ in 0..60 {
            let n = 2 + next(60);
            let list: Vec<Item> = (0..n)
                .map(|_| {
                    let from = next(40);
                    Item { bytes: next(9) as u64 * ALIGN, from, to: from + next(12) }
                })
                .collect();
            packed += check(&list).bytes;
            least += bound(&list);
        }
        assert!(packed as f64 <= least as f64 * 1.03, "{packed} of {least}");
    }

    #[test]
    fn nothing_to_pack() {
        assert_eq!(pack(&[]).bytes, 0);
    }
}
