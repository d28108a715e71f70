//! Logs: what `RSX_LOG` asks for goes to standard error.
//!
//! The value is a list of directives of `tracing-subscriber` (`info`, `rsx::wait=debug`), or of the short names below,
//! each of which means all messages of one subject: `RSX_LOG=compiles,wait`. Unset, warnings are shown.
use std::sync::Once;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{Directive, LevelFilter};

/// Subjects with a short name: target `rsx::<name>`.
pub const SUBJECTS: [&str; 8] = ["cut", "lower", "compile", "compiles", "execute", "wait", "fallback", "replay"];

/// The directives that a value of `RSX_LOG` stands for.
pub fn directives(value: &str) -> String {
    let expand = |d: &str| if SUBJECTS.contains(&d) { format!("rsx::{d}=debug") } else { d.to_owned() };
    let asked = value.split(',').map(str::trim).filter(|d| !d.is_empty()).map(expand);
    // Warnings stay on unless a plain level replaces them.
    std::iter::once("warn".to_owned()).chain(asked).collect::<Vec<_>>().join(",")
}

/// Does `value` name levels and subjects only? A bare word that is neither would be taken for the name of a target.
pub fn is_filter(value: &str) -> bool {
    let plain = |d: &str| SUBJECTS.contains(&d) || d.parse::<LevelFilter>().is_ok() || d.starts_with("rsx");
    let is_directive = |d: &str| {
        // A directive without its level would be taken for one of level trace.
        (plain(d) || d.contains(['=', '[']))
            && !d.ends_with('=')
            && directives(d).split(',').all(|d| d.parse::<Directive>().is_ok())
    };
    value.split(',').map(str::trim).filter(|d| !d.is_empty()).all(is_directive)
}

/// What [`is_filter`] accepts, in words.
pub const FILTERS: &str = "a list, with commas between, of levels (error, warn, info, debug, trace), subjects (cut, lower, \
                           compile, compiles, execute, wait, fallback, replay) and targets with levels (rsx::cut=debug)";

/// Installs the log once, unless the program has one of its own. Spans are shown with the time spent in them.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // A wrong value is an error at the first use of the device.
        let value = std::env::var("RSX_LOG").ok().filter(|v| is_filter(v)).unwrap_or_default();
        let filter = EnvFilter::builder().parse_lossy(directives(&value));
        let spans = tracing_subscriber::fmt::format::FmtSpan::CLOSE;
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_span_events(spans);
        // Somebody else's log is as good.
        let _ = log.with_writer(std::io::stderr).with_target(true).try_init();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_filter_is_found() {
        for good in ["", "info", "compiles,wait", "rsx::cut=debug", "rsx=trace, warn", "off", "rsx", "h2=info"] {
            assert!(is_filter(good), "{good}");
        }
        for bad in ["verbose", "rsx=loud", "=", "compile=", "info;debug"] {
            assert!(!is_filter(bad), "{bad}");
        }
        assert!(SUBJECTS.iter().all(|s| FILTERS.contains(s)));
    }

    #[test]
    fn short_names_expand() {
        assert_eq!(directives(""), "warn");
        assert_eq!(directives("compiles, wait"), "warn,rsx::compiles=debug,rsx::wait=debug");
        assert_eq!(directives("rsx=trace"), "warn,rsx=trace");
    }
}
