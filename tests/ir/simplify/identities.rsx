// test: pass=simplify
// Only identities that hold for every bit pattern: x + 0.0 stays (it turns -0 into 0), x - x of floats stays (NaN).
func @floats(%x: tensor<4xf32>) {
  %zero = constant dense<0.0> : tensor<4xf32>
  %minus = constant dense<-0.0> : tensor<4xf32>
  %one = constant dense<1.0> : tensor<4xf32>
  %four = constant dense<4.0> : tensor<4xf32>
  %three = constant dense<3.0> : tensor<4xf32>
  %two = constant dense<2.0> : tensor<4xf32>
  %a = add %x, %zero : tensor<4xf32>
  %b = add %x, %minus : tensor<4xf32>
  %c = multiply %one, %b : tensor<4xf32>
  %d = divide %c, %four : tensor<4xf32>
  %e = divide %c, %three : tensor<4xf32>
  %f = power %c, %two : tensor<4xf32>
  %g = subtract %x, %x : tensor<4xf32>
  %h = negate %g : tensor<4xf32>
  %i = negate %h : tensor<4xf32>
  return %a, %d, %e, %f, %i
}

func @integers(%x: tensor<4xi32>, %u: tensor<4xui8>) {
  %zero = constant dense<0> : tensor<4xi32>
  %ones = constant dense<255> : tensor<4xui8>
  %a = add %x, %zero : tensor<4xi32>
  %b = subtract %a, %a : tensor<4xi32>
  %c = multiply %x, %zero : tensor<4xi32>
  %d = and %u, %ones : tensor<4xui8>
  %e = or %u, %ones : tensor<4xui8>
  return %a, %b, %c, %d, %e
}

func @choices(%p: tensor<4xi1>, %x: tensor<4xf32>, %y: tensor<4xf32>) {
  %true = constant dense<true> : tensor<4xi1>
  %false = constant dense<false> : tensor<4xi1>
  %a = select %p, %x, %x : tensor<4xf32>
  %b = select %true, %a, %y : tensor<4xf32>
  %n = not %p : tensor<4xi1>
  %c = select %n, %x, %y : tensor<4xf32>
  %d = compare %p, %false {direction = eq} : tensor<4xi1>
  %e = compare %p, %true {direction = eq} : tensor<4xi1>
  return %b, %c, %d, %e
}
// ----
func @floats(%0: tensor<4xf32>) {
  %1 = constant dense<0.0> : tensor<4xf32>
  %2 = constant dense<3.0> : tensor<4xf32>
  %3 = add %0, %1 : tensor<4xf32>
  %4 = constant dense<0.25> : tensor<4xf32>
  %5 = multiply %0, %4 : tensor<4xf32>
  %6 = divide %0, %2 : tensor<4xf32>
  %7 = multiply %0, %0 : tensor<4xf32>
  %8 = subtract %0, %0 : tensor<4xf32>
  return %3, %5, %6, %7, %8
}

func @integers(%0: tensor<4xi32>, %1: tensor<4xui8>) {
  %2 = constant dense<0> : tensor<4xi32>
  %3 = constant dense<255> : tensor<4xui8>
  %4 = constant dense<0> : tensor<4xi32>
  return %0, %4, %2, %1, %3
}

func @choices(%0: tensor<4xi1>, %1: tensor<4xf32>, %2: tensor<4xf32>) {
  %3 = select %0, %2, %1 : tensor<4xf32>
  %4 = not %0 : tensor<4xi1>
  return %1, %3, %4, %0
}
