// test: program
// The gradients of attention's packed operands, put together as a result: the kernel writes them there, transposed.
func @packed(%x: tensor<2x5x6x8xf32>, %d: tensor<2x2x5x8xf32>, %o: tensor<2x2x5x8xf32>, %l: tensor<2x2x5xf32>) {
  %3 = slice %x {start = [0, 0, 0, 0], limit = [2, 5, 2, 8], stride = [1, 1, 1, 1]} : tensor<2x5x2x8xf32>
  %4 = transpose %3 {dims = [0, 2, 1, 3]} : tensor<2x2x5x8xf32>
  %5 = slice %x {start = [0, 0, 2, 0], limit = [2, 5, 4, 8], stride = [1, 1, 1, 1]} : tensor<2x5x2x8xf32>
  %6 = transpose %5 {dims = [0, 2, 1, 3]} : tensor<2x2x5x8xf32>
  %7 = slice %x {start = [0, 0, 4, 0], limit = [2, 5, 6, 8], stride = [1, 1, 1, 1]} : tensor<2x5x2x8xf32>
  %8 = transpose %7 {dims = [0, 2, 1, 3]} : tensor<2x2x5x8xf32>
  %9 = constant dense<0.35355339059327373> : tensor<f64>
  %16:3 = attention_backward %4, %6, %8, %9, %o, %l, %d {causal = false} : tensor<2x2x5x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x8xf32>
  %19 = transpose %16 {dims = [0, 2, 1, 3]} : tensor<2x5x2x8xf32>
  %20 = transpose %17 {dims = [0, 2, 1, 3]} : tensor<2x5x2x8xf32>
  %21 = transpose %18 {dims = [0, 2, 1, 3]} : tensor<2x5x2x8xf32>
  %22 = concatenate %19, %20, %21 {dim = 2} : tensor<2x5x6x8xf32>
  %23 = reshape %22 : tensor<2x5x48xf32>
  return %23
}
// ----
// program packed: 4 parameters, 0 scalars, 1 thunks, 0 kernels, slab 0 bytes, constants 8 bytes
// result 0: tensor<2x5x48xf32>
// thunk 0: attention_backward(param0:2x2x5x8xf32 strides [240, 8, 48, 1] offset 0, param0:2x2x5x8xf32 strides [240, 8, 48, 1] offset 16, param0:2x2x5x8xf32 strides [240, 8, 48, 1] offset 32, constant+0:f64, param2:2x2x5x8xf32, param3:2x2x5xf32, param1:2x2x5x8xf32) -> result0:2x2x5x8xf32 strides [240, 8, 48, 1] offset 0, result0:2x2x5x8xf32 strides [240, 8, 48, 1] offset 16, result0:2x2x5x8xf32 strides [240, 8, 48, 1] offset 32
