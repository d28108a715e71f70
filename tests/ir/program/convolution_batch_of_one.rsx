// test: program
// A batch of one has its bias and activation in the convolution's epilogue like any other (and the sum with its input), channels last
// (rows of 14) and channels first (rows of 32); so has an image of one feature.
func @last(%x: tensor<1x256x14x14xf32>, %v: tensor<256x256x5x5xf32>, %w: tensor<256x256x5x5xf32>, %b: tensor<256xf32>) {
  %c = convolution %x, %v {dims = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], size = [5, 5], pad_lo = [2, 2], pad_hi = [2, 2]} : tensor<1x256x14x14xf32>
  %t = broadcast_in_dim %b {dims = [1]} : tensor<1x256x14x14xf32>
  %a = add %c, %t : tensor<1x256x14x14xf32>
  %k = tanh %a : tensor<1x256x14x14xf32>
  %d = convolution %k, %w {dims = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], size = [5, 5], pad_lo = [2, 2], pad_hi = [2, 2]} : tensor<1x256x14x14xf32>
  %e = add %d, %k : tensor<1x256x14x14xf32>
  %o = transpose %e {dims = [0, 2, 3, 1]} : tensor<1x14x14x256xf32>
  return %o
}

func @first(%x: tensor<1x8x32x32xf32>, %v: tensor<1x8x3x3xf32>, %b: tensor<1xf32>) {
  %c = convolution %x, %v {dims = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], size = [3, 3], pad_lo = [1, 1], pad_hi = [1, 1]} : tensor<1x1x32x32xf32>
  %t = broadcast_in_dim %b {dims = [1]} : tensor<1x1x32x32xf32>
  %a = add %c, %t : tensor<1x1x32x32xf32>
  %k = logistic %a : tensor<1x1x32x32xf32>
  return %k
}

// Statistics of a batch of one are sums over whole rows: one kernel, with the normalisation.
func @norm(%x: tensor<1x8x32x32xf32>, %v: tensor<8x8x3x3xf32>) {
  %c = convolution %x, %v {dims = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], size = [3, 3], pad_lo = [1, 1], pad_hi = [1, 1]} : tensor<1x8x32x32xf32>
  %m = reduce %c {kind = sum, dims = [0, 2, 3]} : tensor<8xf32>
  %t = broadcast_in_dim %m {dims = [1]} : tensor<1x8x32x32xf32>
  %a = subtract %c, %t : tensor<1x8x32x32xf32>
  return %a
}
// ----
// program last: 4 parameters, 0 scalars, 2 thunks, 2 kernels, slab 200704 bytes, constants 0 bytes
// result 0: tensor<1x14x14x256xf32>
// thunk 0: convolution(param0:1x14x14x256xf32 strides [0, 14, 1, 196] offset 0, param1:256x256x5x5xf32) then epilogue_tanh_0(param3:256xf32) -> slab+0:1x14x14x256xf32
// thunk 1: convolution(slab+0:1x14x14x256xf32, param2:256x256x5x5xf32) then epilogue_add_1(slab+0:1x14x14x256xf32) -> result0:1x14x14x256xf32
// program first: 3 parameters, 0 scalars, 1 thunks, 1 kernels, slab 0 bytes, constants 0 bytes
// result 0: tensor<1x1x32x32xf32>
// thunk 0: convolution(param0:1x8x32x32xf32, param1:1x8x3x3xf32) then epilogue_logistic_0(param2:f32) -> result0:1x1x32x32xf32
// program norm: 2 parameters, 0 scalars, 2 thunks, 1 kernels, slab 0 bytes, constants 0 bytes
// result 0: tensor<1x8x32x32xf32>
// thunk 0: convolution(param0:1x8x32x32xf32, param1:8x8x3x3xf32) -> result0:1x8x32x32xf32
// thunk 1: row_subtract_0(result0:8x1024xf32) -> result0:8x1024xf32
