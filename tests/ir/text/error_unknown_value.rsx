// test: parse_error
func @f(%0: tensor<2xf32>) {
  %1 = add %0, %2 : tensor<2xf32>
  return %1
}
// ----
// 3:16: `%2` is not defined here
