// test: parse_error
func @f(%0: tensor<2xf32>, %1: tensor<3xf32>) {
  %2 = add %0, %1 : tensor<2xf32>
  return %2
}
// ----
// 3:8: add: operand types differ: tensor<2xf32> and tensor<3xf32>
