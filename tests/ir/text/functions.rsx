// test: roundtrip
// Heads, names, donations, nested bodies, empty results.
func @"with \"quotes\""(%a: tensor<2xf32> {donate = 0}) { return %a }

func @nested(%a: tensor<2xf32>) {
  %r = fusion %a, %a {kind = row} : tensor<2xf32> {
    func @outer(%x: tensor<2xf32>, %y: tensor<2xf32>) {
      %z = fusion %x {kind = loop} : tensor<2xf32> { func @inner(%x: tensor<2xf32>) { %y = tanh %x : tensor<2xf32> return %y } }
      %w = add %z, %y : tensor<2xf32>
      return %w
    }
  }
  %20:0 = optimization_barrier
  return
}

func @many_parameters(%aa: tensor<128x256xf32>, %bb: tensor<128x256xf32>, %cc: tensor<128x256xf32> {donate = 1}, %dd: scalar<f64>) { return %aa, %cc }
// ----
func @"with \"quotes\""(%0: tensor<2xf32> {donate = 0}) {
  return %0
}

func @nested(%0: tensor<2xf32>) {
  %1 = fusion %0, %0 {kind = row} : tensor<2xf32> {
    func @outer(%0: tensor<2xf32>, %1: tensor<2xf32>) {
      %2 = fusion %0 {kind = loop} : tensor<2xf32> {
        func @inner(%0: tensor<2xf32>) {
          %1 = tanh %0 : tensor<2xf32>
          return %1
        }
      }
      %3 = add %2, %1 : tensor<2xf32>
      return %3
    }
  }
  %2:0 = optimization_barrier
  return
}

func @many_parameters(
    %0: tensor<128x256xf32>,
    %1: tensor<128x256xf32>,
    %2: tensor<128x256xf32> {donate = 1},
    %3: scalar<f64>) {
  return %0, %2
}
