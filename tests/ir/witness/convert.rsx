// test: interpret
// Results of PyTorch 2.13.0, written by tests/witness/gen.py.
func @f64_to_f32(%0: tensor<9xf64>) {
  %1 = convert %0 : tensor<9xf32>
  return %1
}
// run: @f64_to_f32(dense<[0.0, -0.0, 1.9, -1.9, 100.5, 3e-05, 0.1, 65519.0, 1e-40]> : tensor<9xf64>) ~= dense<[0.0, -0.0, 1.9, -1.9, 100.5, 3e-05, 0.1, 65519.0, 1e-40]> : tensor<9xf32>

func @f64_to_bf16(%0: tensor<9xf64>) {
  %1 = convert %0 : tensor<9xbf16>
  return %1
}
// run: @f64_to_bf16(dense<[0.0, -0.0, 1.9, -1.9, 100.5, 3e-05, 0.1, 65519.0, 1e-40]> : tensor<9xf64>) ~= dense<[0.0, -0.0, 1.8984375, -1.8984375, 100.5, 3.0040741e-05, 0.100097656, 65536.0, 9.1835e-41]> : tensor<9xbf16>

func @f64_to_f16(%0: tensor<9xf64>) {
  %1 = convert %0 : tensor<9xf16>
  return %1
}
// run: @f64_to_f16(dense<[0.0, -0.0, 1.9, -1.9, 100.5, 3e-05, 0.1, 65519.0, 1e-40]> : tensor<9xf64>) ~= dense<[0.0, -0.0, 1.9003906, -1.9003906, 100.5, 2.9981136e-05, 0.099975586, 65504.0, 0.0]> : tensor<9xf16>

func @f64_to_i1(%0: tensor<9xf64>) {
  %1 = convert %0 : tensor<9xi1>
  return %1
}
// run: @f64_to_i1(dense<[0.0, -0.0, 1.9, -1.9, 100.5, 3e-05, 0.1, 65519.0, 1e-40]> : tensor<9xf64>) ~= dense<[false, false, true, true, true, true, true, true, true]> : tensor<9xi1>

func @f32_to_i8(%0: tensor<7xf32>) {
  %1 = convert %0 : tensor<7xi8>
  return %1
}
// run: @f32_to_i8(dense<[0.0, -0.0, 1.9, -1.9, 100.5, 3e-05, 0.1]> : tensor<7xf32>) ~= dense<[0, 0, 1, -1, 100, 0, 0]> : tensor<7xi8>

func @f32_to_i32(%0: tensor<7xf32>) {
  %1 = convert %0 : tensor<7xi32>
  return %1
}
// run: @f32_to_i32(dense<[0.0, -0.0, 1.9, -1.9, 100.5, 3e-05, 0.1]> : tensor<7xf32>) ~= dense<[0, 0, 1, -1, 100, 0, 0]> : tensor<7xi32>

func @f32_to_i64(%0: tensor<7xf32>) {
  %1 = convert %0 : tensor<7xi64>
  return %1
}
// run: @f32_to_i64(dense<[0.0, -0.0, 1.9, -1.9, 100.5, 3e-05, 0.1]> : tensor<7xf32>) ~= dense<[0, 0, 1, -1, 100, 0, 0]> : tensor<7xi64>

func @f32_to_f64(%0: tensor<7xf32>) {
  %1 = convert %0 : tensor<7xf64>
  return %1
}
// run: @f32_to_f64(dense<[0.0, -0.0, 1.9, -1.9, 100.5, 3e-05, 0.1]> : tensor<7xf32>) ~= dense<[0.0, -0.0, 1.899999976158142, -1.899999976158142, 100.5, 2.9999999242136255e-05, 0.10000000149011612]> : tensor<7xf64>

func @f32_to_bf16(%0: tensor<7xf32>) {
  %1 = convert %0 : tensor<7xbf16>
  return %1
}
// run: @f32_to_bf16(dense<[0.0, -0.0, 1.9, -1.9, 100.5, 3e-05, 0.1]> : tensor<7xf32>) ~= dense<[0.0, -0.0, 1.8984375, -1.8984375, 100.5, 3.0040741e-05, 0.100097656]> : tensor<7xbf16>

func @i64_to_f32(%0: tensor<6xi64>) {
  %1 = convert %0 : tensor<6xf32>
  return %1
}
// run: @i64_to_f32(dense<[16777217, 9007199254740993, -9223372036854775808, 300, -1, 0]> : tensor<6xi64>) ~= dense<[1.6777216e+07, 9.007199e+15, -9.223372e+18, 300.0, -1.0, 0.0]> : tensor<6xf32>

func @i64_to_f64(%0: tensor<6xi64>) {
  %1 = convert %0 : tensor<6xf64>
  return %1
}
// run: @i64_to_f64(dense<[16777217, 9007199254740993, -9223372036854775808, 300, -1, 0]> : tensor<6xi64>) ~= dense<[16777217.0, 9007199254740992.0, -9.223372036854776e+18, 300.0, -1.0, 0.0]> : tensor<6xf64>

func @i64_to_bf16(%0: tensor<6xi64>) {
  %1 = convert %0 : tensor<6xbf16>
  return %1
}
// run: @i64_to_bf16(dense<[16777217, 9007199254740993, -9223372036854775808, 300, -1, 0]> : tensor<6xi64>) ~= dense<[1.6777216e+07, 9.007199e+15, -9.223372e+18, 300.0, -1.0, 0.0]> : tensor<6xbf16>

func @i64_to_i32(%0: tensor<6xi64>) {
  %1 = convert %0 : tensor<6xi32>
  return %1
}
// run: @i64_to_i32(dense<[16777217, 9007199254740993, -9223372036854775808, 300, -1, 0]> : tensor<6xi64>) ~= dense<[16777217, 1, 0, 300, -1, 0]> : tensor<6xi32>

func @i64_to_ui8(%0: tensor<6xi64>) {
  %1 = convert %0 : tensor<6xui8>
  return %1
}
// run: @i64_to_ui8(dense<[16777217, 9007199254740993, -9223372036854775808, 300, -1, 0]> : tensor<6xi64>) ~= dense<[1, 1, 0, 44, 255, 0]> : tensor<6xui8>

func @i64_to_i8(%0: tensor<6xi64>) {
  %1 = convert %0 : tensor<6xi8>
  return %1
}
// run: @i64_to_i8(dense<[16777217, 9007199254740993, -9223372036854775808, 300, -1, 0]> : tensor<6xi64>) ~= dense<[1, 1, 0, 44, -1, 0]> : tensor<6xi8>

func @i64_to_i1(%0: tensor<6xi64>) {
  %1 = convert %0 : tensor<6xi1>
  return %1
}
// run: @i64_to_i1(dense<[16777217, 9007199254740993, -9223372036854775808, 300, -1, 0]> : tensor<6xi64>) ~= dense<[true, true, true, true, true, false]> : tensor<6xi1>

func @i1_to_f32(%0: tensor<2xi1>) {
  %1 = convert %0 : tensor<2xf32>
  return %1
}
// run: @i1_to_f32(dense<[true, false]> : tensor<2xi1>) ~= dense<[1.0, 0.0]> : tensor<2xf32>

func @i1_to_ui8(%0: tensor<2xi1>) {
  %1 = convert %0 : tensor<2xui8>
  return %1
}
// run: @i1_to_ui8(dense<[true, false]> : tensor<2xi1>) ~= dense<[1, 0]> : tensor<2xui8>

func @bits_f32(%0: tensor<3xf32>) {
  %1 = bitcast_convert %0 : tensor<3xi32>
  return %1
}
// run: @bits_f32(dense<[1.0, -2.5, -0.0]> : tensor<3xf32>) ~= dense<[1065353216, -1071644672, -2147483648]> : tensor<3xi32>

func @bits_bf16(%0: tensor<3xbf16>) {
  %1 = bitcast_convert %0 : tensor<3xi16>
  return %1
}
// run: @bits_bf16(dense<[1.0, -2.5, -0.0]> : tensor<3xbf16>) ~= dense<[16256, -16352, -32768]> : tensor<3xi16>
