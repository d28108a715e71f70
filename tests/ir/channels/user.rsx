// test: pass=channels
// The user's tensors are channels last: their transposes are the copies, and none is left.
func @user(%x: tensor<8x14x14x256xf32>, %w: tensor<256x256x3x3xf32>) {
  %t = transpose %x {dims = [0, 3, 1, 2]} : tensor<8x256x14x14xf32>
  %c = convolution %t, %w {dims = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], size = [3, 3], pad_lo = [1, 1], pad_hi = [1, 1]} : tensor<8x256x14x14xf32>
  %o = transpose %c {dims = [0, 2, 3, 1]} : tensor<8x14x14x256xf32>
  return %o
}
// ----
func @user(%0: tensor<8x14x14x256xf32>, %1: tensor<256x256x3x3xf32>) {
  %2 = transpose %0 {dims = [0, 3, 1, 2]} : tensor<8x256x14x14xf32>
  %3 = convolution %0, %1 {dims = [b, 0, 1, f]x[o, i, 0, 1]->[b, 0, 1, f], size = [3, 3], pad_lo = [1, 1], pad_hi = [1, 1]} : tensor<8x14x14x256xf32>
  %4 = transpose %3 {dims = [0, 3, 1, 2]} : tensor<8x256x14x14xf32>
  return %3
}
