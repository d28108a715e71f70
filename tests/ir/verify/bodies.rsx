// test: verify
// Bodies of fusions are verified too, and a fusion must match its body.
func @f(%0: tensor<4xf32>, %1: tensor<8xf32>) {
  %2 = fusion %0 {kind = loop} : tensor<8xf32> {
    func @narrow(%0: tensor<8xf32> {donate = 0}) {
      %1 = tanh %0 : tensor<4xf32>
      return %1
    }
  }
  %3 = fusion %1 {kind = loop} : tensor<4xf32> {
    func @other(%0: tensor<8xf32>) {
      %1 = tanh %0 : tensor<8xf32>
      return %1
    }
  }
  %4 = fusion %1 {kind = loop} : tensor<8xf32> {
    func @no_result(%0: tensor<8xf32>) {
      return %77
    }
  }
  return %2
}
// ----
// @f/narrow: %1 = tanh %0 : tensor<4xf32>: the type rule gives tensor<8xf32>
// @f/narrow: parameter 0: tensor<8xf32> donated to result 0 of type tensor<4xf32>
// @f/narrow: parameter 0: a fusion's parameter cannot be donated
// @f: %2 = fusion %0 {kind = loop} : tensor<8xf32>: fusion: operands do not match the parameters of narrow
// @f: %3 = fusion %1 {kind = loop} : tensor<4xf32>: the type rule gives tensor<8xf32>
// @f/no_result: result 0: %77 does not exist
