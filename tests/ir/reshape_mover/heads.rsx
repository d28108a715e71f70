// test: pass=reshape_mover
// The parts of a fused projection are slices of its heads; their gradients are put together by heads.
func @split(%x: tensor<2x5x24xf32>) {
  %a = slice %x {start = [0, 0, 8], limit = [2, 5, 16], stride = [1, 1, 1]} : tensor<2x5x8xf32>
  %b = reshape %a : tensor<2x5x4x2xf32>
  %c = transpose %b {dims = [0, 2, 1, 3]} : tensor<2x4x5x2xf32>
  return %c
}

func @merge(%q: tensor<2x4x5x2xf32>, %k: tensor<2x4x5x2xf32>) {
  %a = transpose %q {dims = [0, 2, 1, 3]} : tensor<2x5x4x2xf32>
  %b = reshape %a : tensor<2x5x8xf32>
  %c = transpose %k {dims = [0, 2, 1, 3]} : tensor<2x5x4x2xf32>
  %d = reshape %c : tensor<2x5x8xf32>
  %e = concatenate %b, %d {dim = 2} : tensor<2x5x16xf32>
  %f = tanh %e : tensor<2x5x16xf32>
  return %f
}
// ----
func @split(%0: tensor<2x5x24xf32>) {
  %1 = reshape %0 : tensor<2x5x12x2xf32>
  %2 = slice %1 {start = [0, 0, 4, 0], limit = [2, 5, 8, 2], stride = [1, 1, 1, 1]} : tensor<2x5x4x2xf32>
  %3 = transpose %2 {dims = [0, 2, 1, 3]} : tensor<2x4x5x2xf32>
  return %3
}

func @merge(%0: tensor<2x4x5x2xf32>, %1: tensor<2x4x5x2xf32>) {
  %2 = transpose %0 {dims = [0, 2, 1, 3]} : tensor<2x5x4x2xf32>
  %3 = transpose %1 {dims = [0, 2, 1, 3]} : tensor<2x5x4x2xf32>
  %4 = concatenate %2, %3 {dim = 2} : tensor<2x5x8x2xf32>
  %5 = tanh %4 : tensor<2x5x8x2xf32>
  %6 = reshape %5 : tensor<2x5x16xf32>
  return %6
}
