// test: program
// Scatter and slice updates work in place where their operand dies, on a copy where it lives on.
func @dies(%x: tensor<64x4xf32>, %i: tensor<3xi64>, %u: tensor<3x4xf32>) {
  %a = negate %x : tensor<64x4xf32>
  %s = scatter %a, %i, %u {kind = add, dims = [0]} : tensor<64x4xf32>
  return %s
}

func @lives(%x: tensor<64x4xf32>, %i: tensor<3xi64>, %u: tensor<3x4xf32>) {
  %s = scatter %x, %i, %u {kind = add, dims = [0]} : tensor<64x4xf32>
  return %s
}

func @cache(%x: tensor<64x4xf32> {donate = 0}, %u: tensor<1x4xf32>, %at: scalar<i64>) {
  %zero = constant dense<0> : tensor<i64>
  %s = dynamic_update_slice %x, %u, %at, %zero : tensor<64x4xf32>
  return %s
}
// ----
// program dies: 3 parameters, 0 scalars, 2 thunks, 1 kernels, slab 0 bytes, constants 0 bytes
// result 0: tensor<64x4xf32>
// thunk 0: loop_negate_0(param0:256xf32) -> result0:256xf32
// thunk 1: scatter(result0:64x4xf32, param1:3xi64, param2:3x4xf32) -> result0:64x4xf32
// program lives: 3 parameters, 0 scalars, 2 thunks, 0 kernels, slab 0 bytes, constants 0 bytes
// result 0: tensor<64x4xf32>
// thunk 0: copy(param0:64x4xf32) -> result0:64x4xf32 // the op works in place and its operand is needed later, or is no memory of its own
// thunk 1: scatter(result0:64x4xf32, param1:3xi64, param2:3x4xf32) -> result0:64x4xf32
// program cache: 2 parameters, 1 scalars, 1 thunks, 0 kernels, slab 0 bytes, constants 8 bytes
// result 0: tensor<64x4xf32> in param0
// thunk 0: dynamic_update_slice(result0:64x4xf32, param1:1x4xf32, scalar0:i64, constant+0:i64) -> result0:64x4xf32
