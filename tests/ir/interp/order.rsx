// test: interpret
// Sorts are stable and put NaN last (descending: first); the first extreme element wins, and NaN over all.
func @sort(%0: tensor<6xf32>) {
  %1:2 = sort %0 {dim = 0, descending = false} : tensor<6xf32>, tensor<6xi64>
  %3:2 = sort %0 {dim = 0, descending = true} : tensor<6xf32>, tensor<6xi64>
  %5:2 = top_k %0 {k = 3, largest = true} : tensor<3xf32>, tensor<3xi64>
  %7:2 = top_k %0 {k = 3, largest = false} : tensor<3xf32>, tensor<3xi64>
  %9 = arg_reduce %0 {max = true, dim = 0} : tensor<i64>
  %10 = arg_reduce %0 {max = false, dim = 0} : tensor<i64>
  return %1, %2, %3, %4, %5, %6, %7, %8, %9, %10
}
func @cumulative(%0: tensor<5xf32>) {
  %1 = cumulative %0 {kind = max, dim = 0} : tensor<5xf32>
  %2 = cumulative %0 {kind = sum, dim = 0} : tensor<5xf32>
  return %1, %2
}
func @max_pool(%0: tensor<1x4xf32>) {
  %1:2 = max_pool_with_index %0 {kind = max, size = [1, 3], stride = [1, 2], pad_lo = [0, 1], pad_hi = [0, 1]} : tensor<1x2xf32>, tensor<1x2xi64>
  return %1, %2
}

// run: @sort(dense<[2.0, 1.0, 2.0, -inf, 1.0, 2.0]> : tensor<6xf32>) == dense<[-inf, 1.0, 1.0, 2.0, 2.0, 2.0]> : tensor<6xf32>, dense<[3, 1, 4, 0, 2, 5]> : tensor<6xi64>, dense<[2.0, 2.0, 2.0, 1.0, 1.0, -inf]> : tensor<6xf32>, dense<[0, 2, 5, 1, 4, 3]> : tensor<6xi64>, dense<[2.0, 2.0, 2.0]> : tensor<3xf32>, dense<[0, 2, 5]> : tensor<3xi64>, dense<[-inf, 1.0, 1.0]> : tensor<3xf32>, dense<[3, 1, 4]> : tensor<3xi64>, dense<0> : tensor<i64>, dense<3> : tensor<i64>
// run: @sort(dense<[2.0, nan, -0.0, 0.0, nan, inf]> : tensor<6xf32>) == dense<[-0.0, 0.0, 2.0, inf, nan, nan]> : tensor<6xf32>, dense<[2, 3, 0, 5, 1, 4]> : tensor<6xi64>, dense<[nan, nan, inf, 2.0, -0.0, 0.0]> : tensor<6xf32>, dense<[1, 4, 5, 0, 2, 3]> : tensor<6xi64>, dense<[nan, nan, inf]> : tensor<3xf32>, dense<[1, 4, 5]> : tensor<3xi64>, dense<[-0.0, 0.0, 2.0]> : tensor<3xf32>, dense<[2, 3, 0]> : tensor<3xi64>, dense<1> : tensor<i64>, dense<1> : tensor<i64>
// run: @cumulative(dense<[1.0, 3.0, 2.0, nan, 5.0]> : tensor<5xf32>) == dense<[1.0, 3.0, 3.0, nan, nan]> : tensor<5xf32>, dense<[1.0, 4.0, 6.0, nan, nan]> : tensor<5xf32>
// run: @max_pool(dense<[[-5.0, -3.0, -3.0, -inf]]> : tensor<1x4xf32>) == dense<[[-3.0, -3.0]]> : tensor<1x2xf32>, dense<[[1, 1]]> : tensor<1x2xi64>
// run: @max_pool(dense<[[nan, 3.0, -inf, -inf]]> : tensor<1x4xf32>) == dense<[[nan, 3.0]]> : tensor<1x2xf32>, dense<[[0, 1]]> : tensor<1x2xi64>
