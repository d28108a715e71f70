//! Pages that show a compilation: no scripts, no files from elsewhere.
use super::Written;
use crate::compile::Stats;
use crate::passes::LedgerEntry;
use std::fmt::Write as _;

const STYLE: &str = "body{font:14px sans-serif;max-width:1140px;margin:1em auto;color:#222}table{border-collapse:collapse}\
td,th{padding:2px 10px;border-bottom:1px solid #ddd;text-align:right}td:first-child,th:first-child,td.l{text-align:left}\
h1{font-size:20px}h2{font-size:16px}";

fn escape(s: &str) -> String {
    s.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn document(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style>\n\
         <h1>{title}</h1>\n{body}\n</html>\n"
    )
}

/// Passes with their times, and what the program costs.
pub(super) fn ledger(ledger: &[LedgerEntry], stats: &Stats) -> String {
    let mut out =
        "<h2>Passes</h2>\n<table><tr><th>pass</th><th>&micro;s</th><th>before</th><th>after</th></tr>\n".to_owned();
    for e in ledger {
        let same = if e.changed { "" } else { " (no change)" };
        let _ = writeln!(
            out,
            "<tr><td>{}{same}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(e.pass),
            e.micros,
            e.insts_before,
            e.insts_after
        );
    }
    let (m, c) = (&stats.memory, &stats.cost);
    let rows: &[(&str, f64)] = &[
        ("thunks", stats.thunks as f64),
        ("calls of generated kernels", stats.kernel_calls as f64),
        ("different kernels", stats.kernels as f64),
        ("library calls", stats.library_calls as f64),
        ("of these with an epilogue", stats.epilogues as f64),
        ("copies", stats.copies as f64),
        ("floating-point operations", c.flops),
        ("transcendental elements", c.transcendentals),
        ("bytes moved", c.bytes),
        ("argument bytes", m.argument_bytes as f64),
        ("output bytes", m.output_bytes as f64),
        ("of these in arguments", m.alias_bytes as f64),
        ("slab bytes", m.temp_bytes as f64),
        ("most work memory of a library kernel", m.work_bytes as f64),
        ("live at the peak", m.peak_bytes as f64),
        ("in the memory of results", m.hosted_bytes as f64),
        ("all intermediate values", m.sum_bytes as f64),
        ("constant bytes", m.constant_bytes as f64),
    ];
    out += "</table>\n<h2>Cost and memory of one run</h2>\n<table>\n";
    for (name, value) in rows {
        let _ = writeln!(out, "<tr><td>{name}</td><td>{value:.0}</td></tr>");
    }
    let fragmentation = 100.0 * (m.temp_bytes as f64 / m.peak_bytes.max(1) as f64 - 1.0);
    let _ = writeln!(out, "<tr><td>fragmentation of the slab</td><td>{fragmentation:.1} %</td></tr>\n</table>");
    out
}

/// The page of one compilation.
pub(super) fn page(name: &str, files: &[Written], parts: &[String]) -> String {
    let mut body = "<p><a href=\"index.html\">all compilations</a></p>\n<h2>Stages</h2>\n<table>\n".to_owned();
    for f in files {
        let _ = writeln!(
            body,
            "<tr><td><a href=\"{}\">{}</a></td><td class=\"l\">{}</td></tr>",
            escape(&f.file),
            escape(&f.stage),
            escape(&f.about)
        );
    }
    body += "</table>\n";
    body += &parts.join("\n");
    document(name, &body)
}

/// Links to the pages.
pub(super) fn index(pages: &[String]) -> String {
    let mut body = "<ul>\n".to_owned();
    for p in pages {
        let p = escape(p);
        let _ = writeln!(body, "<li><a href=\"{p}\">{}</a></li>", p.trim_end_matches(".html"));
    }
    document("Compilations", &(body + "</ul>"))
}
