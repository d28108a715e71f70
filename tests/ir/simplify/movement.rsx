// test: pass=simplify
// Movement ops merge: reshape of reshape, transpose of transpose, of a broadcast, and ones that only move size-1
// dimensions.
func @reshape(%x: tensor<6x4xf32>) {
  %a = reshape %x : tensor<24xf32>
  %b = reshape %a : tensor<2x12xf32>
  %c = reshape %b : tensor<6x4xf32>
  %d = negate %c : tensor<6x4xf32>
  return %b, %d
}

func @transpose(%x: tensor<2x3x4xf32>, %v: tensor<5xf32>, %o: tensor<4x1x3xf32>) {
  %a = transpose %x {dims = [2, 0, 1]} : tensor<4x2x3xf32>
  %b = transpose %a {dims = [1, 2, 0]} : tensor<2x3x4xf32>
  %c = transpose %a {dims = [2, 1, 0]} : tensor<3x2x4xf32>
  %d = broadcast_in_dim %v {dims = [0]} : tensor<5x6xf32>
  %e = transpose %d {dims = [1, 0]} : tensor<6x5xf32>
  %f = transpose %o {dims = [1, 0, 2]} : tensor<1x4x3xf32>
  return %b, %c, %e, %f
}

func @broadcast(%x: tensor<4x1xf32>, %s: tensor<f32>) {
  %a = broadcast_in_dim %x {dims = [0, 1]} : tensor<4x3xf32>
  %b = broadcast_in_dim %a {dims = [1, 2]} : tensor<2x4x3xf32>
  %c = broadcast_in_dim %s {dims = []} : tensor<2x2xf32>
  %d = reshape %c : tensor<4xf32>
  %e = broadcast_in_dim %x {dims = [0, 2]} : tensor<4x1x1xf32>
  return %b, %d, %e
}
// ----
func @reshape(%0: tensor<6x4xf32>) {
  %1 = reshape %0 : tensor<2x12xf32>
  %2 = negate %0 : tensor<6x4xf32>
  return %1, %2
}

func @transpose(%0: tensor<2x3x4xf32>, %1: tensor<5xf32>, %2: tensor<4x1x3xf32>) {
  %3 = transpose %0 {dims = [1, 0, 2]} : tensor<3x2x4xf32>
  %4 = broadcast_in_dim %1 {dims = [1]} : tensor<6x5xf32>
  %5 = reshape %2 : tensor<1x4x3xf32>
  return %0, %3, %4, %5
}

func @broadcast(%0: tensor<4x1xf32>, %1: tensor<f32>) {
  %2 = reshape %0 : tensor<4xf32>
  %3 = broadcast_in_dim %2 {dims = [1]} : tensor<2x4x3xf32>
  %4 = broadcast_in_dim %1 {dims = []} : tensor<4xf32>
  %5 = reshape %0 : tensor<4x1x1xf32>
  return %3, %4, %5
}
