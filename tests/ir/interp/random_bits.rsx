// test: interpret
// Philox4x32-10. The first block (key 0, counter 0) is Random123's known answer 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
func @bits(%0: scalar<i64>, %1: scalar<i64>) {
  %2 = rng_bits %0, %1 {word = 0} : tensor<2xui32>
  %3 = rng_bits %0, %1 {word = 1} : tensor<2xui32>
  %4 = rng_bits %0, %1 {word = 2} : tensor<2xui32>
  %5 = rng_bits %0, %1 {word = 3} : tensor<2xui32>
  return %2, %3, %4, %5
}

// run: @bits(dense<0> : tensor<i64>, dense<0> : tensor<i64>) == dense<[1713891541, 4175744164]> : tensor<2xui32>, dense<[3781805453, 1555169499]> : tensor<2xui32>, dense<[3159862348, 2980410603]> : tensor<2xui32>, dense<[2600524760, 159317863]> : tensor<2xui32>
// run: @bits(dense<-1> : tensor<i64>, dense<-1> : tensor<i64>) == dense<[1293473746, 1923381001]> : tensor<2xui32>, dense<[1124779610, 356992825]> : tensor<2xui32>, dense<[3174015530, 2671882271]> : tensor<2xui32>, dense<[184213773, 578394714]> : tensor<2xui32>
