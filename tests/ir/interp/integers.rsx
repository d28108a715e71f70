// test: interpret
// Wrapping, division by zero, shifts out of range, negative exponents, logical i1.
func @wrap(%0: tensor<3xi8>, %1: tensor<3xi8>) {
  %2 = add %0, %1 : tensor<3xi8>
  %3 = multiply %0, %1 : tensor<3xi8>
  %4 = divide %0, %1 : tensor<3xi8>
  %5 = remainder %0, %1 : tensor<3xi8>
  %6 = abs %0 : tensor<3xi8>
  return %2, %3, %4, %5, %6
}
func @wide(%0: tensor<2xui64>, %1: tensor<2xui64>) {
  %2 = multiply %0, %1 : tensor<2xui64>
  %3 = compare %0, %1 {direction = lt} : tensor<2xi1>
  %4 = shift_right %0, %1 : tensor<2xui64>
  return %2, %3, %4
}
func @shift(%0: tensor<5xi32>, %1: tensor<5xi32>) {
  %2 = shift_left %0, %1 : tensor<5xi32>
  %3 = shift_right %0, %1 : tensor<5xi32>
  return %2, %3
}
func @power(%0: tensor<5xi32>, %1: tensor<5xi32>) { %2 = power %0, %1 : tensor<5xi32> return %2 }
func @logical(%0: tensor<4xi1>, %1: tensor<4xi1>) {
  %2 = add %0, %1 : tensor<4xi1>
  %3 = multiply %0, %1 : tensor<4xi1>
  %4 = not %0 : tensor<4xi1>
  %5 = reduce %0 {kind = sum, dims = [0]} : tensor<i1>
  return %2, %3, %4, %5
}
func @convert(%0: tensor<5xf32>, %1: tensor<3xi64>) {
  %2 = convert %0 : tensor<5xi32>
  %3 = convert %0 : tensor<5xi1>
  %4 = convert %1 : tensor<3xf32>
  %5 = convert %1 : tensor<3xui8>
  return %2, %3, %4, %5
}

// run: @wrap(dense<[127, -128, 7]> : tensor<3xi8>, dense<[1, -1, 0]> : tensor<3xi8>) == dense<[-128, 127, 7]> : tensor<3xi8>, dense<[127, -128, 0]> : tensor<3xi8>, dense<[127, -128, 0]> : tensor<3xi8>, dense<[0, 0, 0]> : tensor<3xi8>, dense<[127, -128, 7]> : tensor<3xi8>
// run: @wide(dense<[18446744073709551615, 9223372036854775808]> : tensor<2xui64>, dense<[2, 63]> : tensor<2xui64>) == dense<[18446744073709551614, 9223372036854775808]> : tensor<2xui64>, dense<[false, false]> : tensor<2xi1>, dense<[4611686018427387903, 1]> : tensor<2xui64>
// run: @shift(dense<[1, -8, -8, 8, 1]> : tensor<5xi32>, dense<[31, 1, 32, -1, 32]> : tensor<5xi32>) == dense<[-2147483648, -16, 0, 0, 0]> : tensor<5xi32>, dense<[0, -4, -1, 0, 0]> : tensor<5xi32>
// run: @power(dense<[3, -1, 1, 2, 0]> : tensor<5xi32>, dense<[5, -3, -7, -1, 0]> : tensor<5xi32>) == dense<[243, -1, 1, 0, 1]> : tensor<5xi32>
// run: @logical(dense<[true, true, false, false]> : tensor<4xi1>, dense<[true, false, true, false]> : tensor<4xi1>) == dense<[true, true, true, false]> : tensor<4xi1>, dense<[true, false, false, false]> : tensor<4xi1>, dense<[false, false, true, true]> : tensor<4xi1>, dense<true> : tensor<i1>
// run: @convert(dense<[1.9, -1.9, 0.0, -0.0, 2.5]> : tensor<5xf32>, dense<[16777217, 256, -1]> : tensor<3xi64>) == dense<[1, -1, 0, 0, 2]> : tensor<5xi32>, dense<[true, true, false, false, true]> : tensor<5xi1>, dense<[16777216.0, 256.0, -1.0]> : tensor<3xf32>, dense<[1, 0, 255]> : tensor<3xui8>
