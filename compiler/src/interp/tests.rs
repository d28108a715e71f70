//! Meanings that are easy to get wrong, spelled out. The bulk of the evidence is in tests/ir.
use super::{InterpError, Tensor, eval};
use crate::ir::Literal;
use crate::text;

/// Results of a one-function text on literal arguments, printed.
fn run(function: &str, args: &str) -> Result<String, InterpError> {
    let graph = text::parse(function).unwrap_or_else(|e| panic!("{e}\n{function}"));
    let args: Vec<Tensor> = text::parse_literals(args).unwrap().iter().map(Tensor::from).collect();
    let results = eval(&graph, &args)?;
    let printed: Vec<String> = results.iter().map(|t| text::print_literal(&Literal::from(t))).collect();
    Ok(printed.join(", "))
}

#[test]
fn a_fusion_is_its_body() {
    let f = "func @f(%0: tensor<2xbf16>) {
        %1 = fusion %0 {kind = loop} : tensor<2xbf16> {
            func @body(%0: tensor<2xbf16>) { %1 = add %0, %0 : tensor<2xbf16> return %1 }
        }
        return %1
    }";
    assert_eq!(run(f, "dense<[1.5, -0.0]> : tensor<2xbf16>").unwrap(), "dense<[3.0, -0.0]> : tensor<2xbf16>");
}

#[test]
fn wrong_arguments_and_empty_dimensions_are_errors() {
    let f =
        "func @f(%0: tensor<0xf32>, %1: tensor<1xi64>) { %2 = gather %0, %1 {dims = [0]} : tensor<1xf32> return %2 }";
    let e = run(f, "dense<1.0> : tensor<0xf32>").unwrap_err();
    assert_eq!(e.to_string(), "arguments: 1 for 2 parameters");
    let e = run(f, "dense<[]> : tensor<0xf32>, dense<[0, 0]> : tensor<2xi64>").unwrap_err();
    assert!(e.to_string().starts_with("arguments: argument 1"), "{e}");
    let e = run(f, "dense<[]> : tensor<0xf32>, dense<[0]> : tensor<1xi64>").unwrap_err();
    assert_eq!(
        e.to_string(),
        "%2 = gather %0, %1 {dims = [0]} : tensor<1xf32>: an index into dimension 0, which has no elements"
    );
}
