// test: program
// The heads of a batch of one are stored in the order in which the product reads them: two thunks and no copy.
func @attention(%q: tensor<1x3x4x8xf32>, %s: tensor<f64>, %w: tensor<24x16xf32>) {
  %10:2 = attention %q, %q, %q, %s {causal = true} : tensor<1x3x4x8xf32>, tensor<1x3x4xf32>
  %t = transpose %10 {dims = [0, 2, 1, 3]} : tensor<1x4x3x8xf32>
  %m = reshape %t : tensor<4x24xf32>
  %d = dot_general %m, %w {lhs_contract = [1], rhs_contract = [0]} : tensor<4x16xf32>
  return %d
}
// ----
// program attention: 3 parameters, 0 scalars, 2 thunks, 0 kernels, slab 448 bytes, constants 0 bytes
// result 0: tensor<4x16xf32>
// thunk 0: attention(param0:1x3x4x8xf32, param0:1x3x4x8xf32, param0:1x3x4x8xf32, param1:f64) -> slab+0:1x3x4x8xf32 strides [96, 8, 24, 1] offset 0, slab+384:1x3x4xf32
// thunk 1: dot_general(slab+0:4x24xf32, param2:24x16xf32) -> result0:4x16xf32
