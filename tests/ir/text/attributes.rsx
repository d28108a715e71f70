// test: roundtrip
// Every attribute in its printed form.
func @attributes(%x: tensor<4x8xf32>, %i: tensor<3xi64>, %p: tensor<f32>, %s: scalar<i64>, %q: tensor<1x2x3x4xf32>, %c: scalar<f64>) {
  %a = iota {dim = 1} : tensor<2x3xi32>
  %b = broadcast_in_dim %p {dims = []} : tensor<4x8xf32>
  %d = transpose %x {dims = [1, 0]} : tensor<8x4xf32>
  %e = slice %x {start = [0, 1], limit = [4, 7], stride = [1, 2]} : tensor<4x3xf32>
  %f = pad %x, %p {lo = [0, -1], hi = [1, 0], interior = [0, 2]} : tensor<5x21xf32>
  %g = concatenate %x, %b {dim = 0} : tensor<8x8xf32>
  %h = reverse %x {dims = [1]} : tensor<4x8xf32>
  %j = dynamic_slice %x, %s, %s : tensor<2x2xf32>
  %k = gather %x, %i {dims = [0]} : tensor<3x8xf32>
  %l = scatter %x, %i, %k {kind = add, dims = [0]} : tensor<4x8xf32>
  %m = reduce %x {kind = max, dims = [0, 1]} : tensor<f32>
  %n = arg_reduce %x {max = true, dim = 1} : tensor<4xi64>
  %o = cumulative %x {kind = logsumexp, dim = 1} : tensor<4x8xf32>
  %r = reduce_window %x {kind = sum, size = [1, 2], stride = [1, 2]} : tensor<4x4xf32>
  %10:2 = max_pool_with_index %x {kind = max, size = [3, 3], stride = [1, 2], pad_lo = [1, 0], pad_hi = [1, -1], window_dilation = [1, 2], reversed = [1]} : tensor<4x2xf32>, tensor<4x2xi64>
  %t = dot_general %x, %d {lhs_contract = [1], rhs_contract = [0]} : tensor<4x4xbf16>
  %u = compare %x, %b {direction = ge} : tensor<4x8xi1>
  %20:2 = attention %q, %q, %q, %c {causal = true} : tensor<1x2x3x4xf32>, tensor<1x2x3xf32>
  %30:3 = attention_backward %q, %q, %q, %c, %20, %21, %q {causal = true} : tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>
  %40:2 = sort %x {descending = true, dim = 0} : tensor<4x8xf32>, tensor<4x8xi64>
  %50:2 = top_k %x {k = 2, largest = false} : tensor<4x2xf32>, tensor<4x2xi64>
  %v = rng_bits %s, %s {word = 3} : tensor<5xui32>
  %w = convolution %q, %q {dims = [b, f, 0, 1]x[i, o, 0, 1]->[0, b, f, 1], size = [3, 4], pad_lo = [2, 0], base_dilation = [2, 1], feature_groups = 2} : tensor<5x1x2x1xf32> loc(7)
  return %w, %v
}
// ----
func @attributes(
    %0: tensor<4x8xf32>,
    %1: tensor<3xi64>,
    %2: tensor<f32>,
    %3: scalar<i64>,
    %4: tensor<1x2x3x4xf32>,
    %5: scalar<f64>) {
  %6 = iota {dim = 1} : tensor<2x3xi32>
  %7 = broadcast_in_dim %2 {dims = []} : tensor<4x8xf32>
  %8 = transpose %0 {dims = [1, 0]} : tensor<8x4xf32>
  %9 = slice %0 {start = [0, 1], limit = [4, 7], stride = [1, 2]} : tensor<4x3xf32>
  %10 = pad %0, %2 {lo = [0, -1], hi = [1, 0], interior = [0, 2]} : tensor<5x21xf32>
  %11 = concatenate %0, %7 {dim = 0} : tensor<8x8xf32>
  %12 = reverse %0 {dims = [1]} : tensor<4x8xf32>
  %13 = dynamic_slice %0, %3, %3 : tensor<2x2xf32>
  %14 = gather %0, %1 {dims = [0]} : tensor<3x8xf32>
  %15 = scatter %0, %1, %14 {kind = add, dims = [0]} : tensor<4x8xf32>
  %16 = reduce %0 {kind = max, dims = [0, 1]} : tensor<f32>
  %17 = arg_reduce %0 {max = true, dim = 1} : tensor<4xi64>
  %18 = cumulative %0 {kind = logsumexp, dim = 1} : tensor<4x8xf32>
  %19 = reduce_window %0 {kind = sum, size = [1, 2], stride = [1, 2]} : tensor<4x4xf32>
  %20:2 = max_pool_with_index %0 {kind = max, size = [3, 3], stride = [1, 2], pad_lo = [1, 0], pad_hi = [1, -1], window_dilation = [1, 2], reversed = [1]} : tensor<4x2xf32>, tensor<4x2xi64>
  %22 = dot_general %0, %8 {lhs_contract = [1], rhs_contract = [0]} : tensor<4x4xbf16>
  %23 = compare %0, %7 {direction = ge} : tensor<4x8xi1>
  %24:2 = attention %4, %4, %4, %5 {causal = true} : tensor<1x2x3x4xf32>, tensor<1x2x3xf32>
  %26:3 = attention_backward %4, %4, %4, %5, %24, %25, %4 {causal = true} : tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>, tensor<1x2x3x4xf32>
  %29:2 = sort %0 {dim = 0, descending = true} : tensor<4x8xf32>, tensor<4x8xi64>
  %31:2 = top_k %0 {k = 2, largest = false} : tensor<4x2xf32>, tensor<4x2xi64>
  %33 = rng_bits %3, %3 {word = 3} : tensor<5xui32>
  %34 = convolution %4, %4 {dims = [b, f, 0, 1]x[i, o, 0, 1]->[0, b, f, 1], size = [3, 4], pad_lo = [2, 0], base_dilation = [2, 1], feature_groups = 2} : tensor<5x1x2x1xf32>
  return %34, %33
}
