// test: pass=fusion
// A row kernel: both reductions and everything around them.
func @softmax(%x: tensor<4x8xf32>) {
  %m = reduce %x {kind = max, dims = [1]} : tensor<4xf32>
  %mb = broadcast_in_dim %m {dims = [0]} : tensor<4x8xf32>
  %s = subtract %x, %mb : tensor<4x8xf32>
  %e = exponential %s : tensor<4x8xf32>
  %z = reduce %e {kind = sum, dims = [1]} : tensor<4xf32>
  %zb = broadcast_in_dim %z {dims = [0]} : tensor<4x8xf32>
  %p = divide %e, %zb : tensor<4x8xf32>
  return %p
}
// ----
func @softmax(%0: tensor<4x8xf32>) {
  %1 = fusion %0 {kind = row} : tensor<4x8xf32> {
    func @fused(%0: tensor<4x8xf32>) {
      %1 = reduce %0 {kind = max, dims = [1]} : tensor<4xf32>
      %2 = broadcast_in_dim %1 {dims = [0]} : tensor<4x8xf32>
      %3 = subtract %0, %2 : tensor<4x8xf32>
      %4 = exponential %3 : tensor<4x8xf32>
      %5 = reduce %4 {kind = sum, dims = [1]} : tensor<4xf32>
      %6 = broadcast_in_dim %5 {dims = [0]} : tensor<4x8xf32>
      %7 = divide %4, %6 : tensor<4x8xf32>
      return %7
    }
  }
  return %1
}
