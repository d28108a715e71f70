//! Facts about the machine.

/// Bytes of memory in the machine; 0 if it cannot be told.
pub(crate) fn total_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|l| l.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
