// test: pass=simplify
// Reductions over size-1 dimensions are reshapes; reductions of reductions and of transposes are one.
func @reductions(%x: tensor<4x1x6xf32>, %y: tensor<2x3x4xf32>, %h: tensor<2x3x4xbf16>) {
  %a = reduce %x {kind = sum, dims = [1]} : tensor<4x6xf32>
  %b = reduce %y {kind = sum, dims = [2]} : tensor<2x3xf32>
  %c = reduce %b {kind = sum, dims = [0]} : tensor<3xf32>
  %t = transpose %y {dims = [2, 0, 1]} : tensor<4x2x3xf32>
  %d = reduce %t {kind = max, dims = [1]} : tensor<4x3xf32>
  %e = reduce %h {kind = sum, dims = [2]} : tensor<2x3xbf16>
  %f = reduce %e {kind = sum, dims = [1]} : tensor<2xbf16>
  return %a, %c, %d, %f
}
// ----
func @reductions(%0: tensor<4x1x6xf32>, %1: tensor<2x3x4xf32>, %2: tensor<2x3x4xbf16>) {
  %3 = reshape %0 : tensor<4x6xf32>
  %4 = reduce %1 {kind = sum, dims = [0, 2]} : tensor<3xf32>
  %5 = reduce %1 {kind = max, dims = [0]} : tensor<3x4xf32>
  %6 = transpose %5 {dims = [1, 0]} : tensor<4x3xf32>
  %7 = reduce %2 {kind = sum, dims = [2]} : tensor<2x3xbf16>
  %8 = reduce %7 {kind = sum, dims = [1]} : tensor<2xbf16>
  return %3, %4, %6, %8
}
