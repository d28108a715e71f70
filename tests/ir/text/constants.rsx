// test: roundtrip
// Elements print as the shortest decimal that reads back, or as bits.
func @constants() {
  %0 = constant dense<0.1> : tensor<3xf32>
  %1 = constant dense<0.1> : tensor<f64>
  %2 = constant dense<[0.10000001, 3.4028235e38, 1e-45, -0.0, inf, -inf, nan, 0xFFC00001]> : tensor<8xf32>
  %3 = constant dense<[0.1, 65504, 6e-8, 0.333]> : tensor<4xf16>
  %4 = constant dense<[0.1, 3e38, 1e-40, 256.0]> : tensor<4xbf16>
  %5 = constant dense<[[1, 2, 3], [-4, 5, 6]]> : tensor<2x3xi8>
  %6 = constant dense<[18446744073709551615]> : tensor<1xui64>
  %7 = constant dense<[[true, false], [false, 0x02]]> : tensor<2x2xi1>
  %8 = constant dense<[]> : tensor<0x4xf32>
  %9 = constant dense<"0x000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F202122232425262728292A2B2C2D2E2F303132333435363738393A3B3C3D3E3F40"> : tensor<65xui8>
  return
}
// ----
func @constants() {
  %0 = constant dense<0.1> : tensor<3xf32>
  %1 = constant dense<0.1> : tensor<f64>
  %2 = constant dense<[0.10000001, 3.4028235e38, 1e-45, -0.0, inf, -inf, nan, 0xFFC00001]> : tensor<8xf32>
  %3 = constant dense<[0.1, 65500.0, 6e-8, 0.333]> : tensor<4xf16>
  %4 = constant dense<[0.1, 3e38, 9e-41, 256.0]> : tensor<4xbf16>
  %5 = constant dense<[[1, 2, 3], [-4, 5, 6]]> : tensor<2x3xi8>
  %6 = constant dense<18446744073709551615> : tensor<1xui64>
  %7 = constant dense<[[true, false], [false, 0x02]]> : tensor<2x2xi1>
  %8 = constant dense<[]> : tensor<0x4xf32>
  %9 = constant dense<"0x000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F202122232425262728292A2B2C2D2E2F303132333435363738393A3B3C3D3E3F40"> : tensor<65xui8>
  return
}
