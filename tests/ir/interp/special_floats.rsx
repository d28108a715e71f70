// test: interpret
// Signs of zero, NaN and infinities where ops are easy to get wrong.
func @sign(%0: tensor<6xf32>) { %1 = sign %0 : tensor<6xf32> return %1 }
func @maximum(%0: tensor<6xf32>, %1: tensor<6xf32>) { %2 = maximum %0, %1 : tensor<6xf32> return %2 }
func @round(%0: tensor<6xf64>) { %1 = round_nearest_even %0 : tensor<6xf64> return %1 }
func @remainder(%0: tensor<6xf32>, %1: tensor<6xf32>) { %2 = remainder %0, %1 : tensor<6xf32> return %2 }
func @not_equal(%0: tensor<6xf32>, %1: tensor<6xf32>) { %2 = compare %0, %1 {direction = ne} : tensor<6xi1> return %2 }
func @next_after(%0: tensor<4xbf16>, %1: tensor<4xbf16>) { %2 = next_after %0, %1 : tensor<4xbf16> return %2 }
func @divide(%0: tensor<3xf16>, %1: tensor<3xf16>) { %2 = divide %0, %1 : tensor<3xf16> return %2 }

// run: @sign(dense<[nan, -inf, -0.0, 0.0, 3.0, -1e-45]> : tensor<6xf32>) == dense<[nan, -1.0, -0.0, 0.0, 1.0, -1.0]> : tensor<6xf32>
// run: @maximum(dense<[nan, 1.0, -0.0, 0.0, -inf, inf]> : tensor<6xf32>, dense<[1.0, nan, 0.0, -0.0, -1.0, nan]> : tensor<6xf32>) == dense<[nan, nan, 0.0, 0.0, -1.0, nan]> : tensor<6xf32>
// run: @round(dense<[0.5, 1.5, 2.5, -0.5, -1.5, 4503599627370497.5]> : tensor<6xf64>) == dense<[0.0, 2.0, 2.0, -0.0, -2.0, 4503599627370498.0]> : tensor<6xf64>
// run: @remainder(dense<[5.5, -5.5, 5.5, 1.0, -0.0, inf]> : tensor<6xf32>, dense<[2.0, 2.0, -2.0, 0.0, 1.0, 1.0]> : tensor<6xf32>) == dense<[1.5, -1.5, 1.5, nan, -0.0, nan]> : tensor<6xf32>
// run: @not_equal(dense<[nan, 0.0, 1.0, inf, 1.0, nan]> : tensor<6xf32>, dense<[nan, -0.0, 1.0, inf, 2.0, 0.0]> : tensor<6xf32>) == dense<[true, false, false, false, true, true]> : tensor<6xi1>
// run: @next_after(dense<[1.0, 0.0, -0.0, 1.0]> : tensor<4xbf16>, dense<[2.0, -1.0, 0.0, nan]> : tensor<4xbf16>) == dense<[1.01, -9e-41, 0.0, nan]> : tensor<4xbf16>
// run: @divide(dense<[1.0, 0.0, 65504]> : tensor<3xf16>, dense<[0.0, 0.0, 0.5]> : tensor<3xf16>) == dense<[inf, nan, inf]> : tensor<3xf16>
