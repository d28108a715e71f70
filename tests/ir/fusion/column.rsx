// test: pass=fusion
// Gradients of a layer norm's weights: two reductions that share what they read, and the update of the weight.
func @weights(%dy: tensor<4x6x8xf32>, %n: tensor<4x6x8xf32>, %w: tensor<8xf32> {donate = 0}) {
  %p = multiply %dy, %n : tensor<4x6x8xf32>
  %dw = reduce %p {kind = sum, dims = [0, 1]} : tensor<8xf32>
  %db = reduce %dy {kind = sum, dims = [0, 1]} : tensor<8xf32>
  %w2 = subtract %w, %dw : tensor<8xf32>
  return %w2, %db
}
// ----
func @weights(%0: tensor<4x6x8xf32>, %1: tensor<4x6x8xf32>, %2: tensor<8xf32> {donate = 0}) {
  %3 = reshape %0 : tensor<24x8xf32>
  %4 = reshape %1 : tensor<24x8xf32>
  %5:2 = fusion %3, %2, %4 {kind = column} : tensor<8xf32>, tensor<8xf32> {
    func @fused(%0: tensor<24x8xf32>, %1: tensor<8xf32>, %2: tensor<24x8xf32>) {
      %3 = reduce %0 {kind = sum, dims = [0]} : tensor<8xf32>
      %4 = multiply %0, %2 : tensor<24x8xf32>
      %5 = reduce %4 {kind = sum, dims = [0]} : tensor<8xf32>
      %6 = subtract %1, %5 : tensor<8xf32>
      return %3, %6
    }
  }
  return %6, %5
}
