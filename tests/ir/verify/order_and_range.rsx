// test: verify
func @f(%0: tensor<4xf32>) {
  %1 = add %0, %2 : tensor<4xf32>
  %2 = tanh %0 : tensor<4xf32>
  %3 = tanh %3 : tensor<4xf32>
  %4 = tanh %99 : tensor<4xf32>
  return %1, %50
}
// ----
// @f: %1 = add %0, %2 : tensor<4xf32>: %2 is used before it is defined
// @f: %3 = tanh %3 : tensor<4xf32>: %3 is used before it is defined
// @f: %4 = tanh %99 : tensor<4xf32>: %99 does not exist
// @f: result 1: %50 does not exist
