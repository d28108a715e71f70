//! Ten thousand segments leave nothing behind. Alone in its process: it counts all storages.
mod common;
use common::*;
use rsx_capture::{Options, Tier};
use rsx_lazy::Storage;

#[test]
fn ten_thousand_segments() {
    for tier in [Tier::Eager, Tier::Auto, Tier::Compiled] {
        let w = World::with(Options { tier, cache_capacity: 64, ..Options::default() });
        let (p, x) = (w.tensor(&[1.0; 16]), w.tensor(&[0.0; 16]));
        let mut before = None;
        for k in 0..10_000u32 {
            w.upload(&x, &[k as f32; 16]);
            let loss = w.step(&p, &x, 0.0);
            // Now and then a segment that was never seen before.
            if k % 100 == 99 {
                for _ in 0..k / 100 {
                    w.do_("add_", &[&loss, &x]);
                }
            }
            w.cut();
            if k % 1000 == 999 {
                w.sync().unwrap();
                drop(loss);
                let m = w.session.metrics();
                assert!(m.cached_segments <= 64, "{} segments", m.cached_segments);
                let now = (Storage::live_count(), m.live_bytes);
                assert_eq!(*before.get_or_insert(now), now, "{tier:?} after {k}");
            }
        }
        assert_eq!(w.values(&p), [1.0; 16]);
    }
}
