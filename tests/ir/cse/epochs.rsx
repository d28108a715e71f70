// test: pass=cse
// Equal ops are one, operand order of commuting ones aside; what an elementwise op computes anew after a contraction is
// left alone, a contraction itself is not; nothing is merged across a barrier.
func @merged(%x: tensor<4x4xf32>, %y: tensor<4x4xf32>) {
  %a = add %x, %y : tensor<4x4xf32>
  %b = add %y, %x : tensor<4x4xf32>
  %c = subtract %a, %b : tensor<4x4xf32>
  return %c
}

func @recomputed(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) {
  %a = tanh %x : tensor<4x4xf32>
  %d = dot_general %a, %w {lhs_contract = [1], rhs_contract = [0]} : tensor<4x4xf32>
  %b = tanh %x : tensor<4x4xf32>
  %e = dot_general %a, %w {lhs_contract = [1], rhs_contract = [0]} : tensor<4x4xf32>
  %f = multiply %d, %b : tensor<4x4xf32>
  %g = multiply %e, %f : tensor<4x4xf32>
  return %g
}

func @barrier(%x: tensor<4xf32>) {
  %a = tanh %x : tensor<4xf32>
  %y = optimization_barrier %x : tensor<4xf32>
  %b = tanh %y : tensor<4xf32>
  %c = add %a, %b : tensor<4xf32>
  return %c
}
// ----
func @merged(%0: tensor<4x4xf32>, %1: tensor<4x4xf32>) {
  %2 = add %0, %1 : tensor<4x4xf32>
  %3 = subtract %2, %2 : tensor<4x4xf32>
  return %3
}

func @recomputed(%0: tensor<4x4xf32>, %1: tensor<4x4xf32>) {
  %2 = tanh %0 : tensor<4x4xf32>
  %3 = dot_general %2, %1 {lhs_contract = [1], rhs_contract = [0]} : tensor<4x4xf32>
  %4 = tanh %0 : tensor<4x4xf32>
  %5 = multiply %3, %4 : tensor<4x4xf32>
  %6 = multiply %3, %5 : tensor<4x4xf32>
  return %6
}

func @barrier(%0: tensor<4xf32>) {
  %1 = tanh %0 : tensor<4xf32>
  %2 = optimization_barrier %0 : tensor<4xf32>
  %3 = tanh %2 : tensor<4xf32>
  %4 = add %1, %3 : tensor<4xf32>
  return %4
}
