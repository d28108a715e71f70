// test: parse_error
func @f(%0: tensor<2xf32>, %1: tensor<3xf32> {donate = 0}) {
  return %0
}
// ----
// 3:3: parameter 1: tensor<3xf32> donated to result 0 of type tensor<2xf32>
