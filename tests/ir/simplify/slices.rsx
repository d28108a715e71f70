// test: pass=simplify
// Slices of slices, concatenations, paddings and broadcasts; dynamic slices with known starts; slices put together again.
func @slices(%x: tensor<8x6xf32>, %y: tensor<4x6xf32>, %p: tensor<f32>, %v: tensor<6xf32>) {
  %a = slice %x {start = [2, 0], limit = [8, 6], stride = [1, 2]} : tensor<6x3xf32>
  %b = slice %a {start = [1, 1], limit = [5, 3], stride = [2, 1]} : tensor<2x2xf32>
  %c = concatenate %x, %y {dim = 0} : tensor<12x6xf32>
  %d = slice %c {start = [8, 0], limit = [12, 6], stride = [1, 1]} : tensor<4x6xf32>
  %e = pad %y, %p {lo = [2, 0], hi = [2, 0], interior = [0, 0]} : tensor<8x6xf32>
  %f = slice %e {start = [3, 0], limit = [5, 6], stride = [1, 1]} : tensor<2x6xf32>
  %g = slice %e {start = [0, 0], limit = [2, 6], stride = [1, 1]} : tensor<2x6xf32>
  %h = broadcast_in_dim %v {dims = [1]} : tensor<9x6xf32>
  %i = slice %h {start = [1, 2], limit = [4, 5], stride = [1, 1]} : tensor<3x3xf32>
  return %b, %d, %f, %g, %i
}

func @dynamic(%x: tensor<8x6xf32>, %s: scalar<i64>) {
  %a = constant dense<7> : tensor<i64>
  %b = constant dense<2> : tensor<i64>
  %c = dynamic_slice %x, %a, %b : tensor<3x2xf32>
  %d = dynamic_slice %x, %s, %b : tensor<3x2xf32>
  return %c, %d
}

func @joined(%x: tensor<8x6xf32>) {
  %a = slice %x {start = [0, 0], limit = [3, 6], stride = [1, 1]} : tensor<3x6xf32>
  %b = slice %x {start = [3, 0], limit = [8, 6], stride = [1, 1]} : tensor<5x6xf32>
  %c = concatenate %a, %b {dim = 0} : tensor<8x6xf32>
  return %c
}
// ----
func @slices(%0: tensor<8x6xf32>, %1: tensor<4x6xf32>, %2: tensor<f32>, %3: tensor<6xf32>) {
  %4 = slice %0 {start = [3, 2], limit = [6, 5], stride = [2, 2]} : tensor<2x2xf32>
  %5 = slice %1 {start = [1, 0], limit = [3, 6], stride = [1, 1]} : tensor<2x6xf32>
  %6 = broadcast_in_dim %2 {dims = []} : tensor<2x6xf32>
  %7 = slice %3 {start = [2], limit = [5], stride = [1]} : tensor<3xf32>
  %8 = broadcast_in_dim %7 {dims = [1]} : tensor<3x3xf32>
  return %4, %1, %5, %6, %8
}

func @dynamic(%0: tensor<8x6xf32>, %1: scalar<i64>) {
  %2 = constant dense<2> : tensor<i64>
  %3 = slice %0 {start = [5, 2], limit = [8, 4], stride = [1, 1]} : tensor<3x2xf32>
  %4 = dynamic_slice %0, %1, %2 : tensor<3x2xf32>
  return %3, %4
}

func @joined(%0: tensor<8x6xf32>) {
  return %0
}
