//! Round trips and error messages of the text form.
use super::{parse, parse_literals, print_literal};
use crate::ir::{DType, Literal, TensorType};

const ALL: &str = r#"func @all(
    %0: tensor<4x8xf32> {donate = 0},
    %1: scalar<f64>,
    %2: tensor<2x3x5x5xbf16>,
    %3: tensor<4x3x2x2xbf16>) {
  %4 = constant dense<1.5> : tensor<4x8xf32>
  %5 = add %0, %4 : tensor<4x8xf32>
  %6:2 = sort %5 {dim = 1, descending = false} : tensor<4x8xf32>, tensor<4x8xi64>
  %8 = fusion %5, %6 {kind = loop} : tensor<4x8xf32> {
    func @"a \"body\""(%0: tensor<4x8xf32>, %1: tensor<4x8xf32>) {
      %2 = multiply %0, %1 : tensor<4x8xf32>
      return %2
    }
  }
  %9 = convolution %2, %3 {dims = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], size = [2, 2], stride = [2, 1], pad_lo = [1, 0], pad_hi = [0, -1], reversed = [0]} : tensor<2x4x3x3xbf16>
  %10 = constant dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>
  %11 = constant dense<[]> : tensor<0x2xi32>
  %12 = concatenate %11, %10 {dim = 0} : tensor<2x2xi32>
  %13:0 = optimization_barrier
  return %8, %9, %7, %12
}"#;

#[test]
fn round_trip() {
    let graph = parse(ALL).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(graph.to_string(), ALL);
}

#[test]
fn names_are_renumbered() {
    let graph = parse("func @f(%x: tensor<f32>) { %y = tanh %x : tensor<f32> // a comment\n return %y }").unwrap();
    assert_eq!(graph.to_string(), "func @f(%0: tensor<f32>) {\n  %1 = tanh %0 : tensor<f32>\n  return %1\n}");
}

#[test]
fn errors_say_where_and_what() {
    let head = "func @f(%0: tensor<4xf32>) {\n";
    let cases: &[(&str, &str, &str)] = &[
        ("", "func f", "1:6: expected `@`, found `f`"),
        ("", "func @f() {\n  %0 = foo : tensor<f32>\n}", "2:8: `foo` is no op"),
        (
            "",
            "func @f(%0: tensor<4xf33>) {",
            "1:20: expected an element type (i1, ui8, i8, i16, ui16, i32, ui32, i64, ui64, f16, bf16, f32, f64), found `f33`",
        ),
        (head, "  %1 = tanh %9 : tensor<4xf32>\n", "2:13: `%9` is not defined here"),
        (head, "  %1 = tanh %0 : tensor<5xf32>\n", "2:8: tanh: the text says tensor<5xf32>, the rule tensor<4xf32>"),
        (head, "  %1 = reduce %0 {dims = [0]} : tensor<f32>\n", "2:18: expected attribute `kind`"),
        (
            head,
            "  %1 = reduce %0 {kind = avg, dims = [0]} : tensor<f32>\n",
            "2:19: `kind` must be one of sum, prod, max, min, and, or, found `avg`",
        ),
        (head, "  %1 = tanh %0 {dim = 0} : tensor<4xf32>\n", "2:17: `tanh` has no attribute `dim`"),
        (head, "  %0 = tanh %0 : tensor<4xf32>\n", "2:3: `%0` is defined twice"),
        ("", "func @f(%0: tensor<4xf32> {donate = 1}) { return %0 }", "1:27: donation to result 1 of 1"),
        (
            "",
            "func @f() { %0 = constant dense<[1, 2]> : tensor<3xi8> return }",
            "1:33: 2 elements of sizes [2] for tensor<3xi8>",
        ),
        ("", "func @f() { %0 = constant dense<200> : tensor<3xi8> return }", "1:33: `200` is no element of type i8"),
        ("", "func @f() { return } x", "1:22: expected the end of the text, found `x`"),
    ];
    for (head, text, want) in cases {
        match parse(&format!("{head}{text}")) {
            Ok(g) => panic!("{text}\nparsed to\n{g}"),
            Err(e) => assert_eq!(e.to_string(), *want, "{text}"),
        }
    }
}

#[test]
fn literals() {
    let text = "dense<[[true, false]]> : tensor<1x2xi1>, dense<-0.0> : tensor<f64>, dense<0xFFC00001> : tensor<2xf32>";
    let back: Vec<String> = parse_literals(text).unwrap().iter().map(print_literal).collect();
    assert_eq!(back.join(", "), text);
    let big = Literal { ty: TensorType::new(DType::U8, [100]), bytes: (0..100).collect() };
    assert_eq!(parse_literals(&print_literal(&big)).unwrap(), [big]);
}

/// Whatever the text, parsing gives a graph or an error, and the verifier can look at any graph that comes out.
#[test]
fn broken_texts_do_not_panic() {
    let tokens =
        ["%", "-1", "0", "99999999999", "{", "}", "[", "]", "x", "tensor<", "f64>", "1099511627776", "\"", "é"];
    let mut random = 1u32;
    let mut next = |n: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) as usize % n
    };
    for _ in 0..3000 {
        let mut text = ALL.to_string();
        for _ in 0..1 + next(3) {
            let chars: Vec<usize> = text.char_indices().map(|(i, _)| i).collect();
            let (from, to) = (next(chars.len()), next(4));
            let (from, to) = (chars[from], chars[(from + to).min(chars.len() - 1)]);
            let insert = if next(2) == 0 { "" } else { tokens[next(tokens.len())] };
            text.replace_range(from..to.max(from), insert);
        }
        if let Ok(graph) = super::parse(&text) {
            assert_eq!(crate::verify::check(&graph), Ok(()), "{text}");
        }
        if let Ok(graph) = super::parse_unchecked(&text) {
            let _ = crate::verify::verify(&graph);
            let _ = graph.to_string();
        }
    }
}
