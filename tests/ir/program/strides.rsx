// test: program
// Transposes, slices and broadcasts that only contractions read are strides.
func @strides(%x: tensor<8x6xf32>, %w: tensor<20x8xf32>) {
  %xt = transpose %x {dims = [1, 0]} : tensor<6x8xf32>
  %part = slice %w {start = [4, 0], limit = [14, 8], stride = [1, 1]} : tensor<10x8xf32>
  %wt = transpose %part {dims = [1, 0]} : tensor<8x10xf32>
  %d = dot_general %xt, %wt {lhs_contract = [1], rhs_contract = [0]} : tensor<6x10xf32>
  return %d
}
// ----
// program strides: 2 parameters, 0 scalars, 1 thunks, 0 kernels, slab 0 bytes, constants 0 bytes
// result 0: tensor<6x10xf32>
// thunk 0: dot_general(param0:6x8xf32 strides [1, 6] offset 0, param1:8x10xf32 strides [1, 8] offset 32) -> result0:6x10xf32
