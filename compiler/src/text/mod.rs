//! The text form of graphs: printer and parser.
//!
//! One instruction a line, close to StableHLO's form. Values are numbered in the order of the graph, so that equal
//! graphs have equal texts and `%7` in a dump is `Value(7)` in the code:
//!
//! ```text
//! func @step(%0: tensor<4x8xf32> {donate = 0}, %1: scalar<f64>) {
//!   %2 = constant dense<1.5> : tensor<4x8xf32>
//!   %3 = add %0, %2 : tensor<4x8xf32>
//!   %4:2 = sort %3 {dim = 1, descending = false} : tensor<4x8xf32>, tensor<4x8xi64>
//!   %6 = fusion %3 {kind = loop} : tensor<4x8xf32> {
//!     func @body(%0: tensor<4x8xf32>) {
//!       %1 = tanh %0 : tensor<4x8xf32>
//!       return %1
//!     }
//!   }
//!   return %3, %6
//! }
//! ```
//!
//! An instruction with several results is named by its first one and their number (`%4:2` defines `%4` and `%5`).
//! Parameters are listed in the head only. `{donate = n}` is [`Param::donate_to`](crate::ir::Param::donate_to).
//! Elements print as the shortest decimal that reads back to the same bits (`nan` is the canonical quiet NaN, other
//! NaNs are `0x` and their bits); large constants print as one hexadecimal string of their bytes.
mod attrs;
mod element;
mod lex;
mod parse;
mod print;
#[cfg(test)]
mod tests;

pub use parse::{parse, parse_literals, parse_module, parse_unchecked};
pub use print::{PrintOptions, print, print_inst, print_literal};

/// A text that is no graph: where, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{col}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub col: u32,
    pub message: String,
}
