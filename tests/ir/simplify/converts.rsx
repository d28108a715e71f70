// test: pass=simplify
// A conversion that loses nothing disappears in the next one; one that loses stays. Constants are folded.
func @converts(%h: tensor<4xbf16>, %x: tensor<4xf32>, %b: tensor<4xi1>) {
  %a = convert %h : tensor<4xf32>
  %c = convert %a : tensor<4xbf16>
  %d = convert %x : tensor<4xbf16>
  %e = convert %d : tensor<4xf32>
  %f = convert %b : tensor<4xi64>
  %g = convert %f : tensor<4xf32>
  %k = constant dense<3> : tensor<4xi64>
  %l = convert %k : tensor<4xf32>
  %m = multiply %l, %g : tensor<4xf32>
  return %c, %e, %m
}
// ----
func @converts(%0: tensor<4xbf16>, %1: tensor<4xf32>, %2: tensor<4xi1>) {
  %3 = convert %1 : tensor<4xbf16>
  %4 = convert %3 : tensor<4xf32>
  %5 = convert %2 : tensor<4xf32>
  %6 = constant dense<3.0> : tensor<4xf32>
  %7 = multiply %6, %5 : tensor<4xf32>
  return %0, %4, %7
}
