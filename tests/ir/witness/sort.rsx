// test: interpret
// Results of PyTorch 2.13.0, written by tests/witness/gen.py.
func @sort_up(%0: tensor<2x6xf32>) {
  %1:2 = sort %0 {dim = 1, descending = false} : tensor<2x6xf32>, tensor<2x6xi64>
  return %1, %2
}
// run: @sort_up(dense<[[3.0, nan, 1.0, -inf, 3.0, 2.0], [-0.0, 0.0, inf, nan, -1.0, 0.0]]> : tensor<2x6xf32>) ~= dense<[[-inf, 1.0, 2.0, 3.0, 3.0, nan], [-1.0, -0.0, 0.0, 0.0, inf, nan]]> : tensor<2x6xf32>, dense<[[3, 2, 5, 0, 4, 1], [4, 0, 1, 5, 2, 3]]> : tensor<2x6xi64>

func @sort_i8_up(%0: tensor<3x2xi8>) {
  %1:2 = sort %0 {dim = 0, descending = false} : tensor<3x2xi8>, tensor<3x2xi64>
  return %1, %2
}
// run: @sort_i8_up(dense<[[5, -3], [5, 7], [-128, 7]]> : tensor<3x2xi8>) ~= dense<[[-128, -3], [5, 7], [5, 7]]> : tensor<3x2xi8>, dense<[[2, 0], [0, 1], [1, 2]]> : tensor<3x2xi64>

func @topk_smallest(%0: tensor<2x9xf32>) {
  %1:2 = top_k %0 {k = 4, largest = false} : tensor<2x4xf32>, tensor<2x4xi64>
  return %1, %2
}
// run: @topk_smallest(dense<[[0.5, -1.484375, 1.78125, 1.796875, 1.3125, -0.671875, -1.53125, -0.890625, 0.375], [-0.125, -1.484375, -0.96875, -1.078125, 0.6875, 1.953125, -1.65625, -1.140625, -0.625]]> : tensor<2x9xf32>) ~= dense<[[-1.53125, -1.484375, -0.890625, -0.671875], [-1.65625, -1.484375, -1.140625, -1.078125]]> : tensor<2x4xf32>, dense<[[6, 1, 7, 5], [6, 1, 7, 3]]> : tensor<2x4xi64>

func @sort_down(%0: tensor<2x6xf32>) {
  %1:2 = sort %0 {dim = 1, descending = true} : tensor<2x6xf32>, tensor<2x6xi64>
  return %1, %2
}
// run: @sort_down(dense<[[3.0, nan, 1.0, -inf, 3.0, 2.0], [-0.0, 0.0, inf, nan, -1.0, 0.0]]> : tensor<2x6xf32>) ~= dense<[[nan, 3.0, 3.0, 2.0, 1.0, -inf], [nan, inf, -0.0, 0.0, 0.0, -1.0]]> : tensor<2x6xf32>, dense<[[1, 0, 4, 5, 2, 3], [3, 2, 0, 1, 5, 4]]> : tensor<2x6xi64>

func @sort_i8_down(%0: tensor<3x2xi8>) {
  %1:2 = sort %0 {dim = 0, descending = true} : tensor<3x2xi8>, tensor<3x2xi64>
  return %1, %2
}
// run: @sort_i8_down(dense<[[5, -3], [5, 7], [-128, 7]]> : tensor<3x2xi8>) ~= dense<[[5, 7], [5, 7], [-128, -3]]> : tensor<3x2xi8>, dense<[[0, 1], [1, 2], [2, 0]]> : tensor<3x2xi64>

func @topk_largest(%0: tensor<2x9xf32>) {
  %1:2 = top_k %0 {k = 4, largest = true} : tensor<2x4xf32>, tensor<2x4xi64>
  return %1, %2
}
// run: @topk_largest(dense<[[-1.25, 1.640625, 1.65625, -1.328125, 1.1875, 2.078125, 1.84375, -0.265625, 1.0], [-0.125, -0.734375, 0.28125, -0.953125, -0.8125, -1.546875, -1.65625, 0.984375, 1.375]]> : tensor<2x9xf32>) ~= dense<[[2.078125, 1.84375, 1.65625, 1.640625], [1.375, 0.984375, 0.28125, -0.125]]> : tensor<2x4xf32>, dense<[[5, 6, 2, 1], [8, 7, 2, 0]]> : tensor<2x4xi64>
