// test: pass=reshape_mover
// What takes a scalar gets one, also of parameters, which keep their dimensions of size 1.
func @scalars(%x: tensor<1xi64>, %at: tensor<i64>, %y: tensor<4x6xf32>, %z: tensor<1xf32>) {
  %s = reshape %x : tensor<i64>
  %r = rng_bits %s, %at {word = 0} : tensor<4x6xui32>
  %t = dynamic_slice %y, %s, %at : tensor<2x3xf32>
  %v = reshape %z : tensor<f32>
  %p = pad %y, %v {lo = [1, 0], hi = [0, 2], interior = [0, 0]} : tensor<5x8xf32>
  return %r, %t, %p
}
// ----
func @scalars(%0: tensor<1xi64>, %1: tensor<i64>, %2: tensor<4x6xf32>, %3: tensor<1xf32>) {
  %4 = reshape %0 : tensor<i64>
  %5 = rng_bits %4, %1 {word = 0} : tensor<4x6xui32>
  %6 = reshape %0 : tensor<i64>
  %7 = dynamic_slice %2, %6, %1 : tensor<2x3xf32>
  %8 = reshape %3 : tensor<f32>
  %9 = pad %2, %8 {lo = [1, 0], hi = [0, 2], interior = [0, 0]} : tensor<5x8xf32>
  return %5, %7, %9
}
