// test: interpret
// Indices and starts out of range are clamped; equal indices combine in order.
func @gather(%0: tensor<3x2xi32>, %1: tensor<4xi64>) { %2 = gather %0, %1 {dims = [0]} : tensor<4x2xi32> return %2 }
func @gather_points(%0: tensor<2x3xi32>, %1: tensor<3xi64>, %2: tensor<3xi64>) {
  %3 = gather %0, %1, %2 {dims = [1, 0]} : tensor<3xi32>
  return %3
}
func @scatter_set(%0: tensor<3xi32>, %1: tensor<4xi64>, %2: tensor<4xi32>) {
  %3 = scatter %0, %1, %2 {kind = set, dims = [0]} : tensor<3xi32>
  return %3
}
func @scatter_add(%0: tensor<2x3xf32>, %1: tensor<3xi64>, %2: tensor<3x2xf32>) {
  %3 = scatter %0, %1, %2 {kind = add, dims = [1]} : tensor<2x3xf32>
  return %3
}
func @dynamic_slice(%0: tensor<5xi32>, %1: scalar<i64>) { %2 = dynamic_slice %0, %1 : tensor<2xi32> return %2 }
func @dynamic_update_slice(%0: tensor<5xi32>, %1: tensor<2xi32>, %2: scalar<i64>) {
  %3 = dynamic_update_slice %0, %1, %2 : tensor<5xi32>
  return %3
}

// run: @gather(dense<[[1, 2], [3, 4], [5, 6]]> : tensor<3x2xi32>, dense<[2, 0, -9, 9]> : tensor<4xi64>) == dense<[[5, 6], [1, 2], [1, 2], [5, 6]]> : tensor<4x2xi32>
// run: @gather_points(dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi32>, dense<[2, 0, 1]> : tensor<3xi64>, dense<[0, 1, 1]> : tensor<3xi64>) == dense<[3, 4, 5]> : tensor<3xi32>
// run: @scatter_set(dense<0> : tensor<3xi32>, dense<[0, 2, 0, 7]> : tensor<4xi64>, dense<[1, 2, 3, 4]> : tensor<4xi32>) == dense<[3, 0, 4]> : tensor<3xi32>
// run: @scatter_add(dense<0.5> : tensor<2x3xf32>, dense<[0, 0, -1]> : tensor<3xi64>, dense<[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]> : tensor<3x2xf32>) == dense<[[9.5, 0.5, 0.5], [12.5, 0.5, 0.5]]> : tensor<2x3xf32>
// run: @dynamic_slice(dense<[1, 2, 3, 4, 5]> : tensor<5xi32>, dense<1> : tensor<i64>) == dense<[2, 3]> : tensor<2xi32>
// run: @dynamic_slice(dense<[1, 2, 3, 4, 5]> : tensor<5xi32>, dense<4> : tensor<i64>) == dense<[4, 5]> : tensor<2xi32>
// run: @dynamic_slice(dense<[1, 2, 3, 4, 5]> : tensor<5xi32>, dense<-9223372036854775808> : tensor<i64>) == dense<[1, 2]> : tensor<2xi32>
// run: @dynamic_update_slice(dense<0> : tensor<5xi32>, dense<[1, 2]> : tensor<2xi32>, dense<9> : tensor<i64>) == dense<[0, 0, 0, 1, 2]> : tensor<5xi32>
