// test: program
// Updates in place; a parameter that is read after its update's thunk would be overwritten: no donation; a result given
// twice is copied.
func @update(%p: tensor<64xf32> {donate = 0}, %g: tensor<64xf32>) {
  %n = subtract %p, %g : tensor<64xf32>
  return %n
}

func @late(%p: tensor<64x64xf32> {donate = 0}, %g: tensor<64x64xf32>) {
  %n = subtract %p, %g : tensor<64x64xf32>
  %d = dot_general %n, %p {lhs_contract = [1], rhs_contract = [0]} : tensor<64x64xf32>
  return %n, %d
}

func @twice(%p: tensor<64xf32>) {
  %n = negate %p : tensor<64xf32>
  return %n, %n, %p
}
// ----
// program update: 2 parameters, 0 scalars, 1 thunks, 1 kernels, slab 0 bytes, constants 0 bytes
// result 0: tensor<64xf32> in param0
// thunk 0: loop_subtract_0(param0:64xf32, param1:64xf32) -> result0:64xf32
// program late: 2 parameters, 0 scalars, 2 thunks, 1 kernels, slab 0 bytes, constants 0 bytes
// result 0: tensor<64x64xf32>
// result 1: tensor<64x64xf32>
// thunk 0: loop_subtract_0(param0:4096xf32, param1:4096xf32) -> result0:4096xf32
// thunk 1: dot_general(result0:64x64xf32, param0:64x64xf32) -> result1:64x64xf32
// program twice: 1 parameters, 0 scalars, 3 thunks, 1 kernels, slab 0 bytes, constants 0 bytes
// result 0: tensor<64xf32>
// result 1: tensor<64xf32>
// result 2: tensor<64xf32>
// thunk 0: loop_negate_0(param0:64xf32) -> result0:64xf32
// thunk 1: copy(result0:64xf32) -> result1:64xf32 // the value is another result already
// thunk 2: copy(param0:64xf32) -> result2:64xf32 // the result is a parameter or a constant
