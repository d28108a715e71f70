//! The closed sets of causes.

macro_rules! causes {
    ($( $(#[doc = $doc:literal])+ $Cause:ident = $name:literal, $help:literal; )*) => {
        /// Why a segment ended or the host waited.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum CutCause { $( $(#[doc = $doc])+ $Cause ),* }

        impl CutCause {
            /// All causes, in table order.
            pub const ALL: &'static [CutCause] = &[ $( CutCause::$Cause ),* ];

            /// Name in metrics and reports.
            pub fn name(self) -> &'static str {
                match self { $( CutCause::$Cause => $name ),* }
            }

            /// What a user can do about it; empty where nothing needs doing.
            pub fn help(self) -> &'static str {
                match self { $( CutCause::$Cause => $help ),* }
            }
        }
    };
}

causes! {
    /// `rsx.mark_step()`.
    MarkStep = "mark_step", "";
    /// An optimiser finished its step.
    OptimizerStep = "optimizer_step", "";
    /// A function under `rsx.jit` or `torch.compile` starts or ends.
    Jit = "jit", "";
    /// `.item()`, `float(x)`, `if x:`.
    Item = "item", "read it less often, or keep it on the device";
    /// `print(x)`, `repr(x)`.
    Print = "print", "print it less often";
    /// `.cpu()`, `.to("cpu")`, `cpu_tensor.copy_(x)`.
    CopyToHost = "copy_to_host", "copy less often, or several values at once";
    /// `.numpy()`, `.tolist()`.
    Numpy = "numpy", "keep the value on the device";
    /// `data_ptr()` and everything in PyTorch that takes an address.
    DataPointer = "data_ptr", "use PyTorch ops in place of raw addresses";
    /// The shape of a result depends on values (`nonzero`, boolean masks, `unique`).
    DynamicShape = "data_dependent_shape", "use torch.where, masked_fill or topk in place of nonzero and boolean indexing";
    /// The trace reached its limit of nodes.
    NodeLimit = "node_limit", "call rsx.mark_step() at a natural boundary of the loop";
    /// The trace reached its limit of output bytes.
    ByteLimit = "byte_limit", "call rsx.mark_step() at a natural boundary of the loop";
    /// An op that cannot be recorded ran at once on the host.
    Fallback = "fallback", "see the list of fallbacks";
    /// A construct that cannot be recorded.
    Unsupported = "unsupported", "";
    /// `synchronize()`.
    Synchronize = "synchronize", "";
    /// An event was waited for or timed.
    Event = "event", "";
    /// The host wrote memory of the device in place.
    HostWrite = "host_write", "copy a whole tensor with copy_ in place of writing through its address";
    /// A storage in use was resized.
    Resize = "resize", "";
    /// The process or the device is closing.
    Shutdown = "shutdown", "";
}

impl CutCause {
    /// Inverse of [`CutCause::name`].
    pub fn parse(name: &str) -> Option<CutCause> {
        CutCause::ALL.iter().copied().find(|c| c.name() == name)
    }
}

impl std::fmt::Display for CutCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How an op missed the compiled path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FallbackKind {
    /// It ran at once on the host, which cut the graph.
    Immediate,
    /// It runs through the eager engine inside a compiled program.
    CallNode,
    /// Its results' metadata could not be inferred, so it ran at once.
    InferFailure,
}

impl FallbackKind {
    pub fn name(self) -> &'static str {
        match self {
            FallbackKind::Immediate => "immediate",
            FallbackKind::CallNode => "call",
            FallbackKind::InferFailure => "infer_failure",
        }
    }

    /// The way round, for the warning.
    pub fn help(self) -> &'static str {
        match self {
            FallbackKind::Immediate | FallbackKind::InferFailure => {
                "it cuts the graph and runs on the host; move it out of the training step or write it with other ops"
            }
            FallbackKind::CallNode => "it runs without fusion inside the program; results are the same",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CutCause;

    #[test]
    fn names_are_unique_and_parse() {
        for &c in CutCause::ALL {
            assert_eq!(CutCause::parse(c.name()), Some(c));
        }
    }
}
