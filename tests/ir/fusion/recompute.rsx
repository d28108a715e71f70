// test: pass=fusion
// The normalised input is computed again for the gradient of the weight; two numbers per row are kept instead.
func @norm(%x: tensor<40x64xf32>, %dy: tensor<40x64xf32>) {
  %m = reduce %x {kind = max, dims = [1]} : tensor<40xf32>
  %mb = broadcast_in_dim %m {dims = [0]} : tensor<40x64xf32>
  %n = subtract %x, %mb : tensor<40x64xf32>
  %s = reduce %n {kind = sum, dims = [1]} : tensor<40xf32>
  %p = multiply %dy, %n : tensor<40x64xf32>
  %dw = reduce %p {kind = sum, dims = [0]} : tensor<64xf32>
  return %s, %dw
}
// ----
func @norm(%0: tensor<40x64xf32>, %1: tensor<40x64xf32>) {
  %2:2 = fusion %0 {kind = row} : tensor<40xf32>, tensor<40xf32> {
    func @fused(%0: tensor<40x64xf32>) {
      %1 = reduce %0 {kind = max, dims = [1]} : tensor<40xf32>
      %2 = broadcast_in_dim %1 {dims = [0]} : tensor<40x64xf32>
      %3 = subtract %0, %2 : tensor<40x64xf32>
      %4 = reduce %3 {kind = sum, dims = [1]} : tensor<40xf32>
      return %1, %4
    }
  }
  %4 = fusion %1, %0, %2 {kind = column} : tensor<64xf32> {
    func @fused(%0: tensor<40x64xf32>, %1: tensor<40x64xf32>, %2: tensor<40xf32>) {
      %3 = broadcast_in_dim %2 {dims = [0]} : tensor<40x64xf32>
      %4 = subtract %1, %3 : tensor<40x64xf32>
      %5 = multiply %0, %4 : tensor<40x64xf32>
      %6 = reduce %5 {kind = sum, dims = [0]} : tensor<64xf32>
      return %6
    }
  }
  return %3, %4
}
