// test: pass=simplify
// Indices that count: a gather by them is a slice, a scatter by all of them is elementwise, comparisons with what they
// cannot reach are known.
func @positions(%table: tensor<8x4xf32>, %updates: tensor<8x4xf32>) {
  %i = iota {dim = 0} : tensor<5xi64>
  %zero = constant dense<0> : tensor<5xi64>
  %eight = constant dense<8> : tensor<5xi64>
  %negative = compare %i, %zero {direction = lt} : tensor<5xi1>
  %wrapped = add %i, %eight : tensor<5xi64>
  %index = select %negative, %wrapped, %i : tensor<5xi64>
  %b = broadcast_in_dim %index {dims = [1]} : tensor<2x5xi64>
  %g = gather %table, %b {dims = [0]} : tensor<2x5x4xf32>
  %all = iota {dim = 0} : tensor<8xi64>
  %s = scatter %table, %all, %updates {kind = add, dims = [0]} : tensor<8x4xf32>
  return %g, %s
}
// ----
func @positions(%0: tensor<8x4xf32>, %1: tensor<8x4xf32>) {
  %2 = slice %0 {start = [0, 0], limit = [5, 4], stride = [1, 1]} : tensor<5x4xf32>
  %3 = broadcast_in_dim %2 {dims = [1, 2]} : tensor<2x5x4xf32>
  %4 = add %0, %1 : tensor<8x4xf32>
  return %3, %4
}
