// test: pass=fusion
// Bias and activation run on the product's blocks; dimensions that nobody tells apart are joined.
func @linear(%x: tensor<2x3x8xf32>, %w: tensor<8x10xf32>, %b: tensor<10xf32>) {
  %d = dot_general %x, %w {lhs_contract = [2], rhs_contract = [0]} : tensor<2x3x10xf32>
  %bb = broadcast_in_dim %b {dims = [2]} : tensor<2x3x10xf32>
  %h = add %d, %bb : tensor<2x3x10xf32>
  %t = tanh %h : tensor<2x3x10xf32>
  return %t
}
// ----
func @linear(%0: tensor<2x3x8xf32>, %1: tensor<8x10xf32>, %2: tensor<10xf32>) {
  %3 = reshape %0 : tensor<6x8xf32>
  %4 = fusion %3, %1, %2 {kind = epilogue} : tensor<6x10xf32> {
    func @fused(%0: tensor<6x8xf32>, %1: tensor<8x10xf32>, %2: tensor<10xf32>) {
      %3 = dot_general %0, %1 {lhs_contract = [1], rhs_contract = [0]} : tensor<6x10xf32>
      %4 = broadcast_in_dim %2 {dims = [1]} : tensor<6x10xf32>
      %5 = add %3, %4 : tensor<6x10xf32>
      %6 = tanh %5 : tensor<6x10xf32>
      return %6
    }
  }
  %5 = reshape %4 : tensor<2x3x10xf32>
  return %5
}
