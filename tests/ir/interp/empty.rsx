// test: interpret
// What comes out of nothing.
func @reduce(%0: tensor<0x2xf32>) {
  %1 = reduce %0 {kind = sum, dims = [0]} : tensor<2xf32>
  %2 = reduce %0 {kind = prod, dims = [0]} : tensor<2xf32>
  %3 = reduce %0 {kind = max, dims = [0]} : tensor<2xf32>
  %4 = reduce %0 {kind = sum, dims = [1]} : tensor<0xf32>
  %5 = arg_reduce %0 {max = true, dim = 0} : tensor<2xi64>
  return %1, %2, %3, %4, %5
}
func @reduce_int(%0: tensor<0xi8>, %1: tensor<0xui8>, %2: tensor<0xi1>) {
  %3 = reduce %0 {kind = max, dims = [0]} : tensor<i8>
  %4 = reduce %1 {kind = min, dims = [0]} : tensor<ui8>
  %5 = reduce %2 {kind = and, dims = [0]} : tensor<i1>
  return %3, %4, %5
}
func @dot(%0: tensor<2x0xf32>, %1: tensor<0x3xf32>) {
  %2 = dot_general %0, %1 {lhs_contract = [1], rhs_contract = [0]} : tensor<2x3xf32>
  return %2
}
func @pad(%0: tensor<0xi32>, %1: tensor<i32>) { %2 = pad %0, %1 {lo = [2], hi = [1], interior = [5]} : tensor<3xi32> return %2 }
func @attention(%0: tensor<1x1x2x2xf32>, %1: tensor<1x1x0x2xf32>, %2: scalar<f64>) {
  %3:2 = attention %0, %1, %1, %2 {causal = false} : tensor<1x1x2x2xf32>, tensor<1x1x2xf32>
  return %3, %4
}

// run: @reduce(dense<[]> : tensor<0x2xf32>) == dense<[0.0, 0.0]> : tensor<2xf32>, dense<[1.0, 1.0]> : tensor<2xf32>, dense<[-inf, -inf]> : tensor<2xf32>, dense<[]> : tensor<0xf32>, dense<[0, 0]> : tensor<2xi64>
// run: @reduce_int(dense<[]> : tensor<0xi8>, dense<[]> : tensor<0xui8>, dense<[]> : tensor<0xi1>) == dense<-128> : tensor<i8>, dense<255> : tensor<ui8>, dense<true> : tensor<i1>
// run: @dot(dense<[]> : tensor<2x0xf32>, dense<[]> : tensor<0x3xf32>) == dense<[[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]> : tensor<2x3xf32>
// run: @pad(dense<[]> : tensor<0xi32>, dense<7> : tensor<i32>) == dense<[7, 7, 7]> : tensor<3xi32>
// run: @attention(dense<1.0> : tensor<1x1x2x2xf32>, dense<[]> : tensor<1x1x0x2xf32>, dense<1.0> : tensor<f64>) == dense<[[[[0.0, 0.0], [0.0, 0.0]]]]> : tensor<1x1x2x2xf32>, dense<[[[-inf, -inf]]]> : tensor<1x1x2xf32>
