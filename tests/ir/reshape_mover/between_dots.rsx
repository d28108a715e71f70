// test: pass=reshape_mover
// One iteration space between contractions: no reshape is left between the dots.
func @tail(%x: tensor<6x8xf32>, %w: tensor<8x10xf32>, %b: tensor<10xf32>, %v: tensor<10x3xf32>) {
  %d = dot_general %x, %w {lhs_contract = [1], rhs_contract = [0]} : tensor<6x10xf32>
  %r = reshape %d : tensor<2x3x10xf32>
  %bb = broadcast_in_dim %b {dims = [2]} : tensor<2x3x10xf32>
  %h = add %r, %bb : tensor<2x3x10xf32>
  %t = tanh %h : tensor<2x3x10xf32>
  %s = reshape %t : tensor<6x10xf32>
  %e = dot_general %s, %v {lhs_contract = [1], rhs_contract = [0]} : tensor<6x3xf32>
  return %e
}

// Kept dimensions of size 1 vanish.
func @softmax(%x: tensor<4x8xf32>) {
  %m = reduce %x {kind = max, dims = [1]} : tensor<4xf32>
  %k = reshape %m : tensor<4x1xf32>
  %b = broadcast_in_dim %k {dims = [0, 1]} : tensor<4x8xf32>
  %s = subtract %x, %b : tensor<4x8xf32>
  return %s
}

// Sizes without a common refinement keep their reshape.
func @stuck(%x: tensor<4x6xf32>) {
  %a = negate %x : tensor<4x6xf32>
  %b = reshape %a : tensor<3x8xf32>
  %c = reduce %b {kind = sum, dims = [1]} : tensor<3xf32>
  return %c
}
// ----
func @tail(%0: tensor<6x8xf32>, %1: tensor<8x10xf32>, %2: tensor<10xf32>, %3: tensor<10x3xf32>) {
  %4 = reshape %0 : tensor<2x3x8xf32>
  %5 = dot_general %4, %1 {lhs_contract = [2], rhs_contract = [0]} : tensor<2x3x10xf32>
  %6 = broadcast_in_dim %2 {dims = [2]} : tensor<2x3x10xf32>
  %7 = add %5, %6 : tensor<2x3x10xf32>
  %8 = tanh %7 : tensor<2x3x10xf32>
  %9 = dot_general %8, %3 {lhs_contract = [2], rhs_contract = [0]} : tensor<2x3x3xf32>
  %10 = reshape %9 : tensor<6x3xf32>
  return %10
}

func @softmax(%0: tensor<4x8xf32>) {
  %1 = reduce %0 {kind = max, dims = [1]} : tensor<4xf32>
  %2 = broadcast_in_dim %1 {dims = [0]} : tensor<4x8xf32>
  %3 = subtract %0, %2 : tensor<4x8xf32>
  return %3
}

func @stuck(%0: tensor<4x6xf32>) {
  %1 = negate %0 : tensor<4x6xf32>
  %2 = reshape %1 : tensor<3x8xf32>
  %3 = reduce %2 {kind = sum, dims = [1]} : tensor<3xf32>
  return %3
}
