// test: pass=dce
// Unused instructions go, unused parameters stay.
func @unused(%x: tensor<4xf32> {donate = 0}, %y: tensor<4xf32>) {
  %a = exponential %x : tensor<4xf32>
  %b = multiply %a, %y : tensor<4xf32>
  %c = negate %x : tensor<4xf32>
  return %c
}
// ----
func @unused(%0: tensor<4xf32> {donate = 0}, %1: tensor<4xf32>) {
  %2 = negate %0 : tensor<4xf32>
  return %2
}
