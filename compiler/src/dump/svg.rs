//! The slab as a picture: time (thunks) to the right, addresses upwards, a rectangle for every storage.
use crate::buffers::{Kind, Plan};
use crate::ir::Graph;
use crate::program::Place;
use std::fmt::Write as _;

const WIDTH: f64 = 1100.0;
const HEIGHT: f64 = 420.0;
const COLORS: &[&str] =
    &["#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#9d755d", "#79706e", "#d67195"];

/// Live slab bytes at every time.
fn profile(plan: &Plan) -> Vec<u64> {
    let mut bytes = vec![0u64; plan.order.len() + 1];
    // Storages that share a place one after the other meet in the thunk that passes it on: counted once there.
    let mut seen: Vec<Vec<u64>> = vec![Vec::new(); bytes.len()];
    for (s, a) in plan.storages.iter().zip(&plan.assigned) {
        let Some(a) = a else { continue };
        let Place::Slab { offset } = a.place else { continue };
        for t in a.from..=a.to.min(bytes.len() - 1) {
            if !seen[t].contains(&offset) {
                seen[t].push(offset);
                bytes[t] += s.bytes;
            }
        }
    }
    plan.work.iter().for_each(|w| bytes[w.time] += w.bytes);
    bytes
}

/// The picture; every rectangle says on hover what it is.
pub(super) fn slab(graph: &Graph, plan: &Plan) -> String {
    let total = plan.memory.temp_bytes.max(1) as f64;
    let steps = plan.order.len().max(1) as f64;
    let (x, y) = (|t: f64| t / steps * WIDTH, |b: f64| HEIGHT - b / total * HEIGHT);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 -16 {WIDTH} {}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect x=\"0\" y=\"0\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#f6f6f6\"/>\n",
        HEIGHT + 36.0
    );
    for (n, (s, a)) in plan.storages.iter().zip(&plan.assigned).enumerate() {
        let (Some(a), Kind::Temp(id)) = (a, s.kind) else { continue };
        let Place::Slab { offset } = a.place else { continue };
        let inst = graph.inst(id);
        let (x0, x1) = (x(a.from as f64), x(a.to as f64 + 1.0));
        let (y0, y1) = (y((offset + s.bytes) as f64), y(offset as f64));
        let _ = writeln!(
            out,
            "<rect x=\"{x0:.1}\" y=\"{y0:.1}\" width=\"{:.1}\" height=\"{:.2}\" fill=\"{}\" stroke=\"white\" \
             stroke-width=\"0.3\"><title>storage {n}: {} bytes at {offset}, %{} {}, thunks {} to {}</title></rect>",
            x1 - x0,
            y1 - y0,
            COLORS[inst.kind as usize % COLORS.len()],
            s.bytes,
            inst.first.0,
            inst.kind,
            a.from,
            a.to
        );
    }
    for w in &plan.work {
        let _ = writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.2}\" fill=\"#555\"><title>work memory of thunk {}: {} \
             bytes at {}</title></rect>",
            x(w.time as f64),
            y((w.offset + w.bytes) as f64),
            x(1.0),
            w.bytes as f64 / total * HEIGHT,
            w.time,
            w.bytes,
            w.offset
        );
    }
    let points: Vec<String> = profile(plan)
        .iter()
        .enumerate()
        .map(|(t, &b)| format!("{:.1},{:.1}", x(t as f64 + 0.5), y(b as f64)))
        .collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"black\" stroke-width=\"1\"/>\n<text x=\"4\" y=\"-4\">{} bytes; \
         grey is work memory, the line is what is live</text>\n<text x=\"4\" y=\"{}\">thunk 0</text>\n<text x=\"{}\" y=\"{}\" \
         text-anchor=\"end\">thunk {}</text>\n</svg>",
        points.join(" "),
        plan.memory.temp_bytes,
        HEIGHT + 14.0,
        WIDTH - 4.0,
        HEIGHT + 14.0,
        plan.order.len()
    );
    out
}
