// test: pass=layout
// A batch of one has been dropped before the transpose: what the product reads is stored, and no copy is left.
func @attention(%q: tensor<1x3x4x8xf32>, %s: tensor<f64>) {
  %10:2 = attention %q, %q, %q, %s {causal = true} : tensor<1x3x4x8xf32>, tensor<1x3x4xf32>
  %r = reshape %10 : tensor<3x4x8xf32>
  %t = transpose %r {dims = [1, 0, 2]} : tensor<4x3x8xf32>
  %m = reshape %t : tensor<4x24xf32>
  return %m
}
// ----
func @attention(%0: tensor<1x3x4x8xf32>, %1: tensor<f64>) {
  %2:2 = attention %0, %0, %0, %1 {causal = true} : tensor<1x3x4x8xf32>, tensor<1x3x4xf32>
  %4 = transpose %2 {dims = [0, 2, 1, 3]} : tensor<1x4x3x8xf32>
  %5 = transpose %4 {dims = [0, 2, 1, 3]} : tensor<1x3x4x8xf32>
  %6 = reshape %4 : tensor<4x3x8xf32>
  %7 = reshape %5 : tensor<3x4x8xf32>
  %8 = reshape %6 : tensor<4x24xf32>
  return %8
}
