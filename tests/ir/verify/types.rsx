// test: verify
// Every faulty instruction is reported, not only the first.
func @f(%0: tensor<4x8xf32>, %1: tensor<8xf32>, %2: tensor<4x8xi64>) {
  %3 = add %0, %1 : tensor<4x8xf32>
  %4 = exponential %2 : tensor<4x8xi64>
  %5 = reduce %0 {kind = sum, dims = [2]} : tensor<4x8xf32>
  %6 = reduce %0 {kind = and, dims = [1]} : tensor<4xf32>
  %7 = reduce %0 {kind = sum, dims = [1]} : tensor<8xf32>
  %8 = transpose %0 {dims = [0, 0]} : tensor<4x4xf32>
  %9 = dot_general %0, %1 {lhs_contract = [5], rhs_contract = [0]} : tensor<4xf32>
  %10 = gather %0, %2 {dims = [0, 1]} : tensor<4x8xf32>
  %11 = dynamic_slice %0, %2 : tensor<2x2xf32>
  %12 = convolution %0, %0 {dims = [b, f]x[o, i]->[b, f], size = [], feature_groups = 3} : tensor<4x4xf32>
  %13 = reduce_window %0 {kind = sum, size = [1, 2], stride = [1, 0]} : tensor<4x4xf32>
  %14 = and %0, %0 : tensor<4x8xf32>
  %15 = select %2, %0, %0 : tensor<4x8xf32>
  %16 = tanh %0, %0 : tensor<4x8xf32>
  %17 = slice %0 {start = [0, 0], limit = [4, 9], stride = [1, 1]} : tensor<4x9xf32>
  %18 = rng_bits %2, %2 {word = 0} : tensor<4xui32>
  return %3
}
// ----
// @f: %3 = add %0, %1 : tensor<4x8xf32>: add: operand types differ: tensor<4x8xf32> and tensor<8xf32>
// @f: %4 = exponential %2 : tensor<4x8xi64>: exponential: expected a float operand, got tensor<4x8xi64>
// @f: %5 = reduce %0 {kind = sum, dims = [2]} : tensor<4x8xf32>: reduce: [2] of tensor<4x8xf32>
// @f: %6 = reduce %0 {kind = and, dims = [1]} : tensor<4xf32>: reduce: And of tensor<4x8xf32>
// @f: %7 = reduce %0 {kind = sum, dims = [1]} : tensor<8xf32>: the type rule gives tensor<4xf32>
// @f: %8 = transpose %0 {dims = [0, 0]} : tensor<4x4xf32>: transpose: [0, 0] is no permutation of the dimensions of tensor<4x8xf32>
// @f: %9 = dot_general %0, %1 {lhs_contract = [5], rhs_contract = [0]} : tensor<4xf32>: dot_general: dimensions of tensor<4x8xf32> and tensor<8xf32> under DotDims { lhs_batch: [], rhs_batch: [], lhs_contract: [5], rhs_contract: [0] }
// @f: %10 = gather %0, %2 {dims = [0, 1]} : tensor<4x8xf32>: gather: one index tensor per indexed dimension
// @f: %11 = dynamic_slice %0, %2 : tensor<2x2xf32>: dynamic_slice: one start per dimension of tensor<4x8xf32>, got 1
// @f: %12 = convolution %0, %0 {dims = [b, f]x[o, i]->[b, f], size = [], feature_groups = 3} : tensor<4x4xf32>: convolution: features of tensor<4x8xf32> and tensor<4x8xf32>, 3 groups
// @f: %13 = reduce_window %0 {kind = sum, size = [1, 2], stride = [1, 0]} : tensor<4x4xf32>: reduce_window: window WindowDim { size: 2, stride: 0, pad_lo: 0, pad_hi: 0, base_dilation: 1, window_dilation: 1, reversed: false }
// @f: %14 = and %0, %0 : tensor<4x8xf32>: and: not defined for tensor<4x8xf32>
// @f: %15 = select %2, %0, %0 : tensor<4x8xf32>: select: the predicate is tensor<4x8xi64>
// @f: %16 = tanh %0, %0 : tensor<4x8xf32>: tanh: expected 1 operands, got 2
// @f: %17 = slice %0 {start = [0, 0], limit = [4, 9], stride = [1, 1]} : tensor<4x9xf32>: slice: [0:9:1] of tensor<4x8xf32>
// @f: %18 = rng_bits %2, %2 {word = 0} : tensor<4xui32>: rng_bits: seed tensor<4x8xi64> and offset tensor<4x8xi64>
