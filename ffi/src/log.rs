//! Logs: `RSX_LOG` takes `tracing_subscriber` filters (`info`, `rsx::wait=debug`); warnings only when unset.

use tracing_subscriber::EnvFilter;

/// Sends the logs of all crates to stderr. A wrong filter is reported and replaced by the default.
pub(crate) fn init() {
    let filter = match std::env::var("RSX_LOG") {
        Ok(text) if !text.trim().is_empty() => EnvFilter::try_new(&text).unwrap_or_else(|e| {
            eprintln!("rsx: RSX_LOG={text}: {e}; showing warnings only");
            EnvFilter::new("warn")
        }),
        _ => EnvFilter::new("warn"),
    };
    // Another subscriber in the process (a Rust program that embeds Python) stays in charge.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).compact().try_init();
}
