//! What LLVM makes of a program's kernels, in dumps.
use super::executable::in_place_kernels;
use super::kernel::listing;
use super::target::Target;
use rsx_compiler::dump;
use rsx_compiler::program::Program;

/// Adds LLVM IR (after LLVM's passes) and assembly of every kernel to the dump of `program`, if it has one.
///
/// They are written for the program's own sizes: code that kernels of several sizes share differs in that it loads what
/// differs between them.
pub(super) fn attach(program: &Program, target: Target) {
    if !dump::is_open(program) {
        return;
    }
    for (n, (spec, in_place)) in program.kernels.iter().zip(in_place_kernels(program)).enumerate() {
        let [ir, assembly] = listing(spec, target, in_place).unwrap_or_else(|e| [e.to_string(), e.to_string()]);
        let about = format!("{} for {}", spec.name, target.level.name());
        let stage = format!("kernel{n:02}.{}", spec.name);
        dump::attach(program, &stage, "ll", &format!("LLVM IR of {about}"), || ir);
        dump::attach(program, &stage, "s", &format!("assembly of {about}"), || assembly);
    }
}
