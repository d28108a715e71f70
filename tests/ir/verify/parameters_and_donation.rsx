// test: verify
func @f(%0: tensor<4xf32> {donate = 0}, %1: tensor<4xf32> {donate = 0}, %2: tensor<8xf32> {donate = 1}, %3: scalar<f32>, %4: scalar<i64> {donate = 9}) {
  %5 = parameter {index = 0} : tensor<4xf32>
  %6 = parameter {index = 7} : tensor<4xf32>
  return %0, %1
}
// ----
// @f: %5 = parameter {index = 0} : tensor<4xf32>: parameter 0 has a second instruction
// @f: %6 = parameter {index = 7} : tensor<4xf32>: the function has 5 parameters
// @f: parameter 3: a runtime scalar of type tensor<f32>
// @f: parameter 1: result 0 already takes the memory of parameter 0
// @f: parameter 2: tensor<8xf32> donated to result 1 of type tensor<4xf32>
// @f: parameter 4: a runtime scalar cannot be donated
// @f: parameter 4: donated to result 9 of 2
