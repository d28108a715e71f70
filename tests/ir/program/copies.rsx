// test: program
// Kernels that only move elements say which of their outputs are copies and why: results in another order, operands of
// library kernels that strides cannot describe or that have another type, values that several kernels read.
func @results(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) {
  %t = transpose %x {dims = [1, 0]} : tensor<8x4xf32>
  %c = concatenate %x, %y {dim = 0} : tensor<8x8xf32>
  %h = convert %y : tensor<4x8xbf16>
  return %t, %c, %h
}

func @strides(%x: tensor<4x6x8xf32>, %w: tensor<24x10xf32>) {
  %t = transpose %x {dims = [2, 1, 0]} : tensor<8x6x4xf32>
  %r = reshape %t : tensor<8x24xf32>
  %d = dot_general %r, %w {lhs_contract = [1], rhs_contract = [0]} : tensor<8x10xf32>
  return %d
}

func @types(%x: tensor<8x24xf32>, %w: tensor<24x10xbf16>) {
  %h = convert %x : tensor<8x24xbf16>
  %d = dot_general %h, %w {lhs_contract = [1], rhs_contract = [0]} : tensor<8x10xbf16>
  return %d
}

func @apart(%x: tensor<64x300xf32>, %y: tensor<64x300xf32>) {
  %c = concatenate %x, %y {dim = 0} : tensor<128x300xf32>
  %e = exponential %c : tensor<128x300xf32>
  %a = reduce %e {kind = sum, dims = [1]} : tensor<128xf32>
  %b = reduce %c {kind = max, dims = [0]} : tensor<300xf32>
  return %a, %b
}

// Not copies: a fill, and what is computed.
func @others(%s: scalar<f64>, %x: tensor<8x4xf32>) {
  %f = convert %s : tensor<f32>
  %w = broadcast_in_dim %f {dims = []} : tensor<8x4xf32>
  %t = transpose %x {dims = [1, 0]} : tensor<4x8xf32>
  %n = negate %t : tensor<4x8xf32>
  return %w, %n
}
// ----
// program results: 2 parameters, 0 scalars, 1 thunks, 3 kernels, slab 0 bytes, constants 0 bytes
// result 0: tensor<8x4xf32>
// result 1: tensor<8x8xf32>
// result 2: tensor<4x8xbf16>
// thunk 0: group of 3
//     loop_transpose_0(param0:4x8xf32) -> result0:8x4xf32 // output 0 is a copy: it is a result, which needs memory of its own
//     loop_concatenate_1(param0:4x8xf32, param1:4x8xf32) -> result1:8x8xf32 // output 0 is a copy: it is a result, which needs memory of its own
//     loop_convert_2(param1:32xf32) -> result2:32xbf16 // output 0 is a copy: it is a result, which needs memory of its own
// program strides: 2 parameters, 0 scalars, 2 thunks, 1 kernels, slab 768 bytes, constants 0 bytes
// result 0: tensor<8x10xf32>
// thunk 0: loop_transpose_0(param0:4x6x8xf32) -> slab+0:8x6x4xf32 // output 0 is a copy: a library kernel reads it and no strides describe it as a view
// thunk 1: dot_general(slab+0:8x24xf32, param1:24x10xf32) -> result0:8x10xf32
// program types: 2 parameters, 0 scalars, 2 thunks, 1 kernels, slab 384 bytes, constants 0 bytes
// result 0: tensor<8x10xbf16>
// thunk 0: loop_convert_0(param0:192xf32) -> slab+0:192xbf16 // output 0 is a copy: a library kernel reads it in another type than it has in memory
// thunk 1: dot_general(slab+0:8x24xbf16, param1:24x10xbf16) -> result0:8x10xbf16
// program apart: 2 parameters, 0 scalars, 2 thunks, 2 kernels, slab 153600 bytes, constants 0 bytes
// result 0: tensor<128xf32>
// result 1: tensor<300xf32>
// thunk 0: row_reduce_0(param0:64x300xf32, param1:64x300xf32) -> slab+0:128x300xf32, result0:128xf32 // output 0 is a copy: kernels read it that fusion did not make it part of (see the decisions)
// thunk 1: column_reduce_1(slab+0:128x300xf32) -> result1:300xf32
// program others: 1 parameters, 1 scalars, 1 thunks, 2 kernels, slab 0 bytes, constants 0 bytes
// result 0: tensor<8x4xf32>
// result 1: tensor<4x8xf32>
// thunk 0: group of 2
//     loop_broadcast_in_dim_0(scalar0) -> result0:32xf32
//     loop_negate_1(param0:8x4xf32) -> result1:4x8xf32
