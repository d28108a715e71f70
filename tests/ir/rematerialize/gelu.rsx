// test: pass=rematerialize
// The operand of the late matrix product is computed again from %h, which the gradient reads late anyway; the copy meets
// the recorded `tanh` of the gradient.
func @gelu(
    %0: tensor<32x32xf32>,
    %1: tensor<32x32xf32>,
    %2: tensor<32x32xf32>
) {
  %3 = dot_general %0, %1 {lhs_contract = [1], rhs_contract = [0]} : tensor<32x32xf32>
  %4 = tanh %3 : tensor<32x32xf32>
  %5 = multiply %3, %4 : tensor<32x32xf32>
  %6 = dot_general %5, %2 {lhs_contract = [1], rhs_contract = [0]} : tensor<32x32xf32>
  %7 = exponential %6 : tensor<32x32xf32>
  %8 = dot_general %7, %7 {lhs_contract = [1], rhs_contract = [0]} : tensor<32x32xf32>
  %9 = transpose %8 {dims = [1, 0]} : tensor<32x32xf32>
  %10 = dot_general %9, %5 {lhs_contract = [1], rhs_contract = [0]} : tensor<32x32xf32>
  %11 = tanh %3 : tensor<32x32xf32>
  %12 = multiply %8, %11 : tensor<32x32xf32>
  return %10, %12
}
// ----
func @gelu(%0: tensor<32x32xf32>, %1: tensor<32x32xf32>, %2: tensor<32x32xf32>) {
  %3 = dot_general %0, %1 {lhs_contract = [1], rhs_contract = [0]} : tensor<32x32xf32>
  %4 = tanh %3 : tensor<32x32xf32>
  %5 = multiply %3, %4 : tensor<32x32xf32>
  %6 = dot_general %5, %2 {lhs_contract = [1], rhs_contract = [0]} : tensor<32x32xf32>
  %7 = exponential %6 : tensor<32x32xf32>
  %8 = dot_general %7, %7 {lhs_contract = [1], rhs_contract = [0]} : tensor<32x32xf32>
  %9 = transpose %8 {dims = [1, 0]} : tensor<32x32xf32>
  %10 = optimization_barrier %3 : tensor<32x32xf32>
  %11 = tanh %10 : tensor<32x32xf32>
  %12 = multiply %10, %11 : tensor<32x32xf32>
  %13 = dot_general %9, %12 {lhs_contract = [1], rhs_contract = [0]} : tensor<32x32xf32>
  %14 = multiply %8, %11 : tensor<32x32xf32>
  return %13, %14
}
