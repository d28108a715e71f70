//! Logs: what `RSX_LOG` asks for goes to standard error.
//!
//! The value is a list of directives of `tracing-subscriber` (`info`, `rsx::wait=debug`), or of the short names below,
//! each of which means all messages of one subject: `RSX_LOG=compiles,wait`. Unset, warnings are shown.
use std::sync::Once;
use tracing_subscriber::EnvFilter;

/// Subjects with a short name: target `rsx::<name>`.
pub const SUBJECTS: [&str; 8] = ["cut", "lower", "compile", "compiles", "execute", "wait", "fallback", "replay"];

/// The directives that a value of `RSX_LOG` stands for.
pub fn directives(value: &str) -> String {
    let expand = |d: &str| if SUBJECTS.contains(&d) { format!("rsx::{d}=debug") } else { d.to_owned() };
    let asked = value.split(',').map(str::trim).filter(|d| !d.is_empty()).map(expand);
    // Warnings stay on unless a plain level replaces them.
    std::iter::once("warn".to_owned()).chain(asked).collect::<Vec<_>>().join(",")
}

/// Installs the log once, unless the program has one of its own. Spans are shown with the time spent in them.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let value = std::env::var("RSX_LOG").unwrap_or_default();
        let filter = EnvFilter::builder().parse_lossy(directives(&value));
        let spans = tracing_subscriber::fmt::format::FmtSpan::CLOSE;
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_span_events(spans);
        // Somebody else's log is as good.
        let _ = log.with_writer(std::io::stderr).with_target(true).try_init();
    });
}

#[cfg(test)]
mod tests {
    use super::directives;

    #[test]
    fn short_names_expand() {
        assert_eq!(directives(""), "warn");
        assert_eq!(directives("compiles, wait"), "warn,rsx::compiles=debug,rsx::wait=debug");
        assert_eq!(directives("rsx=trace"), "warn,rsx=trace");
    }
}
