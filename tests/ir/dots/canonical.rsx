// test: pass=dots
// Operands come as [batch, m, k] and [batch, k, n]; a result that is only used transposed is computed transposed.
func @linear(%x: tensor<6x8xf32>, %w: tensor<10x8xf32>) {
  %d = dot_general %x, %w {lhs_contract = [1], rhs_contract = [1]} : tensor<6x10xf32>
  return %d
}

func @scores(%q: tensor<2x5x3x8xf32>, %k: tensor<2x7x3x8xf32>) {
  %d = dot_general %q, %k {lhs_batch = [0, 2], rhs_batch = [0, 2], lhs_contract = [3], rhs_contract = [3]} : tensor<2x3x5x7xf32>
  return %d
}

func @gradient(%x: tensor<6x8xf32>, %dy: tensor<6x10xf32>) {
  %xt = transpose %x {dims = [1, 0]} : tensor<8x6xf32>
  %d = dot_general %xt, %dy {lhs_contract = [1], rhs_contract = [0]} : tensor<8x10xf32>
  %t = transpose %d {dims = [1, 0]} : tensor<10x8xf32>
  return %t
}

func @integers(%x: tensor<2x3xi32>, %y: tensor<3x4xi32>) {
  %d = dot_general %x, %y {lhs_contract = [1], rhs_contract = [0]} : tensor<2x4xi32>
  return %d
}
// ----
func @linear(%0: tensor<6x8xf32>, %1: tensor<10x8xf32>) {
  %2 = transpose %1 {dims = [1, 0]} : tensor<8x10xf32>
  %3 = dot_general %0, %2 {lhs_contract = [1], rhs_contract = [0]} : tensor<6x10xf32>
  return %3
}

func @scores(%0: tensor<2x5x3x8xf32>, %1: tensor<2x7x3x8xf32>) {
  %2 = transpose %0 {dims = [0, 2, 1, 3]} : tensor<2x3x5x8xf32>
  %3 = transpose %1 {dims = [0, 2, 3, 1]} : tensor<2x3x8x7xf32>
  %4 = dot_general %2, %3 {lhs_batch = [0, 1], rhs_batch = [0, 1], lhs_contract = [3], rhs_contract = [2]} : tensor<2x3x5x7xf32>
  return %4
}

func @gradient(%0: tensor<6x8xf32>, %1: tensor<6x10xf32>) {
  %2 = transpose %0 {dims = [1, 0]} : tensor<8x6xf32>
  %3 = transpose %1 {dims = [1, 0]} : tensor<10x6xf32>
  %4 = dot_general %3, %0 {lhs_contract = [1], rhs_contract = [0]} : tensor<10x8xf32>
  %5 = transpose %4 {dims = [1, 0]} : tensor<8x10xf32>
  %6 = transpose %5 {dims = [1, 0]} : tensor<10x8xf32>
  return %6
}

func @integers(%0: tensor<2x3xi32>, %1: tensor<3x4xi32>) {
  %2 = transpose %1 {dims = [1, 0]} : tensor<4x3xi32>
  %3 = broadcast_in_dim %0 {dims = [0, 2]} : tensor<2x4x3xi32>
  %4 = broadcast_in_dim %2 {dims = [1, 2]} : tensor<2x4x3xi32>
  %5 = multiply %3, %4 : tensor<2x4x3xi32>
  %6 = reduce %5 {kind = sum, dims = [2]} : tensor<2x4xi32>
  return %6
}
