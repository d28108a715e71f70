// test: pass=channels
// Rows of 32 fill vectors: nothing to gain.
func @stays(%x: tensor<32x32x32x32xf32>, %w: tensor<32x32x3x3xf32>) {
  %c = convolution %x, %w {dims = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], size = [3, 3], pad_lo = [1, 1], pad_hi = [1, 1]} : tensor<32x32x32x32xf32>
  return %c
}
// ----
func @stays(%0: tensor<32x32x32x32xf32>, %1: tensor<32x32x3x3xf32>) {
  %2 = convolution %0, %1 {dims = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], size = [3, 3], pad_lo = [1, 1], pad_hi = [1, 1]} : tensor<32x32x32x32xf32>
  return %2
}
