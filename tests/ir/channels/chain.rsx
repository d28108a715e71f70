// test: pass=channels
// Rows of 14 fill no vector: channels last is faster, and the copies are at the ends. The bias is permuted, not copied.
func @chain(%x: tensor<8x256x14x14xf32>, %v: tensor<256x256x5x5xf32>, %w: tensor<256x256x5x5xf32>, %b: tensor<256xf32>) {
  %c = convolution %x, %v {dims = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], size = [5, 5], pad_lo = [2, 2], pad_hi = [2, 2]} : tensor<8x256x14x14xf32>
  %t = broadcast_in_dim %b {dims = [1]} : tensor<8x256x14x14xf32>
  %a = add %c, %t : tensor<8x256x14x14xf32>
  %d = convolution %a, %w {dims = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], size = [5, 5], pad_lo = [2, 2], pad_hi = [2, 2]} : tensor<8x256x14x14xf32>
  return %d
}
// ----
func @chain(
    %0: tensor<8x256x14x14xf32>,
    %1: tensor<256x256x5x5xf32>,
    %2: tensor<256x256x5x5xf32>,
    %3: tensor<256xf32>) {
  %4 = transpose %0 {dims = [0, 2, 3, 1]} : tensor<8x14x14x256xf32>
  %5 = convolution %4, %1 {dims = [b, 0, 1, f]x[o, i, 0, 1]->[b, 0, 1, f], size = [5, 5], pad_lo = [2, 2], pad_hi = [2, 2]} : tensor<8x14x14x256xf32>
  %6 = broadcast_in_dim %3 {dims = [1]} : tensor<8x256x14x14xf32>
  %7 = broadcast_in_dim %3 {dims = [3]} : tensor<8x14x14x256xf32>
  %8 = add %5, %7 : tensor<8x14x14x256xf32>
  %9 = convolution %8, %2 {dims = [b, 0, 1, f]x[o, i, 0, 1]->[b, 0, 1, f], size = [5, 5], pad_lo = [2, 2], pad_hi = [2, 2]} : tensor<8x14x14x256xf32>
  %10 = transpose %9 {dims = [0, 3, 1, 2]} : tensor<8x256x14x14xf32>
  return %10
}
