// test: interpret
// A fusion means its body; every op of it rounds to its element type.
func @f(%0: tensor<3xbf16>, %1: scalar<f64>) {
  %2:2 = fusion %0, %1 {kind = loop} : tensor<3xbf16>, tensor<3xbf16> {
    func @body(%0: tensor<3xbf16>, %1: scalar<f64>) {
      %2 = convert %1 : tensor<bf16>
      %3 = broadcast_in_dim %2 {dims = []} : tensor<3xbf16>
      %4 = multiply %0, %3 : tensor<3xbf16>
      %5 = add %4, %0 : tensor<3xbf16>
      return %5, %4
    }
  }
  %4:2 = optimization_barrier %2, %3 : tensor<3xbf16>, tensor<3xbf16>
  return %4, %5
}

// run: @f(dense<[1.0, 3.0, -100.0]> : tensor<3xbf16>, dense<0.1> : tensor<f64>) == dense<[1.1, 3.3, -110.0]> : tensor<3xbf16>, dense<[0.1, 0.3, -10.0]> : tensor<3xbf16>
