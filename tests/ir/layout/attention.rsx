// test: pass=layout
// The transposed form is what is stored; the gradient reads it back through strides.
func @attention(%q: tensor<2x3x4x8xf32>, %s: tensor<f64>, %d: tensor<2x3x4x8xf32>) {
  %10:2 = attention %q, %q, %q, %s {causal = true} : tensor<2x3x4x8xf32>, tensor<2x3x4xf32>
  %t = transpose %10 {dims = [0, 2, 1, 3]} : tensor<2x4x3x8xf32>
  %20:3 = attention_backward %q, %q, %q, %s, %10, %11, %d {causal = true} : tensor<2x3x4x8xf32>, tensor<2x3x4x8xf32>, tensor<2x3x4x8xf32>
  return %t, %20
}
// ----
func @attention(%0: tensor<2x3x4x8xf32>, %1: tensor<f64>, %2: tensor<2x3x4x8xf32>) {
  %3:2 = attention %0, %0, %0, %1 {causal = true} : tensor<2x3x4x8xf32>, tensor<2x3x4xf32>
  %5 = transpose %3 {dims = [0, 2, 1, 3]} : tensor<2x4x3x8xf32>
  %6 = transpose %5 {dims = [0, 2, 1, 3]} : tensor<2x3x4x8xf32>
  %7:3 = attention_backward %0, %0, %0, %1, %6, %4, %2 {causal = true} : tensor<2x3x4x8xf32>, tensor<2x3x4x8xf32>, tensor<2x3x4x8xf32>
  return %5, %7
}
