// test: parse_error
func @f(%0: tensor<2xf32>) {
  %1 = convolution %0, %0 {dims = [b, f]x[o]->[b, f], size = []} : tensor<2xf32>
  return %1
}
// ----
// 3:28: expected dimension numbers like [b, f, 0]x[o, i, 0]->[b, f, 0], found `[b, f]x[o]->[b, f]`
