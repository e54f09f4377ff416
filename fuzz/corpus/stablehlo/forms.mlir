// Forms of ops that the other fixtures have not: written by hand, read here and by XLA's converter.
module @forms attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x4xf32> {jax.buffer_donor = true}, %arg1: tensor<4xi32>, %arg2: tensor<2x3x4xbf16>, %arg3: tensor<i32>) -> (tensor<3x4xf32>, tensor<4xi32>, tensor<2x3x3xf32>, tensor<f32>, tensor<i32>, tensor<3x4xf32>, tensor<5x3xf32>, tensor<4xi32>, tensor<3x4xbf16>, tensor<4x3x2x4xf32>, tensor<2x2xui8>, tensor<4xi1>, tensor<3xf32>, tensor<3xf32>, tensor<1x4x3xf32>, tensor<2xf64>, tensor<3x4xf32>) {
    %0 = "stablehlo.abs"(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %1 = stablehlo.sqrt %0 : tensor<3x4xf32>
    %2 = stablehlo.logistic %1 : tensor<3x4xf32>
    %3 = stablehlo.round_nearest_even %2 : tensor<3x4xf32>
    %4 = stablehlo.power %2, %1 : tensor<3x4xf32>
    %cst = stablehlo.constant dense<-1.500000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %5 = stablehlo.clamp %cst, %4, %cst_0 : (tensor<f32>, tensor<3x4xf32>, tensor<f32>) -> tensor<3x4xf32>
    %6 = stablehlo.reduce_precision %5, format = e5m7 : tensor<3x4xf32>
    %7 = stablehlo.atan2 %6, %3 : tensor<3x4xf32>
    %c = stablehlo.constant dense<[1, -2, 3, 7]> : tensor<4xi32>
    %8 = stablehlo.shift_left %arg1, %c : tensor<4xi32>
    %9 = stablehlo.remainder %c, %8 : tensor<4xi32>
    %10 = stablehlo.xor %9, %arg1 : tensor<4xi32>
    %11 = stablehlo.popcnt %10 : tensor<4xi32>
    %12 = stablehlo.count_leading_zeros %11 : tensor<4xi32>
    %13 = stablehlo.dot_general %arg2, %arg2, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [HIGHEST, DEFAULT] : (tensor<2x3x4xbf16>, tensor<2x3x4xbf16>) -> tensor<2x3x3xf32>
    %14 = stablehlo.is_finite %13 : (tensor<2x3x3xf32>) -> tensor<2x3x3xi1>
    %15 = stablehlo.not %14 : tensor<2x3x3xi1>
    %16 = stablehlo.select %15, %13, %13 : tensor<2x3x3xi1>, tensor<2x3x3xf32>
    %17 = stablehlo.compare GT, %arg3, %arg3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %18 = "stablehlo.if"(%17) ({
      %60 = stablehlo.add %cst, %cst_0 : tensor<f32>
      stablehlo.return %60 : tensor<f32>
    }, {
      stablehlo.return %cst : tensor<f32>
    }) : (tensor<i1>) -> tensor<f32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %c_2 = stablehlo.constant dense<5> : tensor<i32>
    %19:2 = stablehlo.while(%iterArg = %c_1, %iterArg_3 = %arg0) : tensor<i32>, tensor<3x4xf32>
    cond {
      %60 = stablehlo.compare LT, %iterArg, %c_2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %60 : tensor<i1>
    } do {
      %60 = stablehlo.while(%iterArg_4 = %iterArg) : tensor<i32>
      cond {
        %63 = stablehlo.compare LT, %iterArg_4, %arg3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %63 : tensor<i1>
      } do {
        %c_5 = stablehlo.constant dense<1> : tensor<i32>
        %63 = stablehlo.add %iterArg_4, %c_5 : tensor<i32>
        stablehlo.return %63 : tensor<i32>
      }
      %c_6 = stablehlo.constant dense<1> : tensor<i32>
      %61 = stablehlo.add %60, %c_6 : tensor<i32>
      %62 = stablehlo.multiply %iterArg_3, %5 : tensor<3x4xf32>
      stablehlo.return %61, %62 : tensor<i32>, tensor<3x4xf32>
    }
    %20 = "stablehlo.case"(%19#0) ({
      stablehlo.return %19#1 : tensor<3x4xf32>
    }, {
      %60 = stablehlo.add %19#1, %7 : tensor<3x4xf32>
      stablehlo.return %60 : tensor<3x4xf32>
    }, {
      %60 = stablehlo.negate %7 : tensor<3x4xf32>
      stablehlo.return %60 : tensor<3x4xf32>
    }) : (tensor<i32>) -> tensor<3x4xf32>
    %21 = stablehlo.pad %arg0, %cst, low = [-1, 0], high = [1, 1], interior = [1, 0] : (tensor<3x4xf32>, tensor<f32>) -> tensor<5x5xf32>
    %22 = stablehlo.slice %21 [0:5, 0:5:2] : (tensor<5x5xf32>) -> tensor<5x3xf32>
    %23 = stablehlo.reverse %arg1, dims = [0] : tensor<4xi32>
    %24 = stablehlo.concatenate %23, %arg1, dim = 0 : (tensor<4xi32>, tensor<4xi32>) -> tensor<8xi32>
    %25 = stablehlo.dynamic_slice %24, %arg3, sizes = [4] : (tensor<8xi32>, tensor<i32>) -> tensor<4xi32>
    %cst_7 = stablehlo.constant dense<"0x0040803F404080BFC03F003F80BE003E"> : tensor<8xbf16>
    %26 = stablehlo.slice %cst_7 [0:4] : (tensor<8xbf16>) -> tensor<4xbf16>
    %27 = stablehlo.broadcast_in_dim %26, dims = [1] : (tensor<4xbf16>) -> tensor<3x4xbf16>
    %28 = stablehlo.convert %arg0 : (tensor<3x4xf32>) -> tensor<3x4xbf16>
    %29 = stablehlo.divide %28, %27 : tensor<3x4xbf16>
    %30 = stablehlo.broadcast_in_dim %arg0, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %31 = stablehlo.reshape %30 : (tensor<4x3xf32>) -> tensor<4x3x1x1xf32>
    %32 = stablehlo.broadcast_in_dim %31, dims = [0, 1, 2, 3] : (tensor<4x3x1x1xf32>) -> tensor<4x3x2x4xf32>
    %c_8 = stablehlo.constant dense<[[1, 255], [128, 0]]> : tensor<2x2xui8>
    %33 = stablehlo.maximum %c_8, %c_8 : tensor<2x2xui8>
    %c_9 = stablehlo.constant dense<[true, false, true, true]> : tensor<4xi1>
    %c_10 = stablehlo.constant dense<true> : tensor<4xi1>
    %34 = stablehlo.and %c_9, %c_10 : tensor<4xi1>
    %35 = stablehlo.reduce(%arg0 init: %cst_0) across dimensions = [1] : (tensor<3x4xf32>, tensor<f32>) -> tensor<3xf32>
     reducer(%arg4: tensor<f32>, %arg5: tensor<f32>)  {
      %60 = stablehlo.subtract %arg4, %arg5 : tensor<f32>
      %61 = stablehlo.abs %60 : tensor<f32>
      stablehlo.return %61 : tensor<f32>
    }
    %36 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.minimum across dimensions = [1] : (tensor<3x4xf32>, tensor<f32>) -> tensor<3xf32>
    %37, %38 = stablehlo.optimization_barrier %35, %36 : tensor<3xf32>, tensor<3xf32>
    %39 = stablehlo.optimization_barrier %38 : tensor<3xf32>
    %40 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %41 = stablehlo.reshape %40 : (tensor<4x3xf32>) -> tensor<1x4x3xf32>
    %cst_11 = stablehlo.constant dense<[1.000000e-01, 0x7FF0000000000000]> : tensor<2xf64>
    %42 = stablehlo.exponential_minus_one %cst_11 : tensor<2xf64>
    %43 = func.call @inner(%arg0) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %44 = call @inner(%43) : (tensor<3x4xf32>) -> tensor<3x4xf32>
    return %7, %12, %16, %18, %19#0, %20, %22, %25, %29, %32, %33, %34, %37, %39, %41, %42, %44 : tensor<3x4xf32>, tensor<4xi32>, tensor<2x3x3xf32>, tensor<f32>, tensor<i32>, tensor<3x4xf32>, tensor<5x3xf32>, tensor<4xi32>, tensor<3x4xbf16>, tensor<4x3x2x4xf32>, tensor<2x2xui8>, tensor<4xi1>, tensor<3xf32>, tensor<3xf32>, tensor<1x4x3xf32>, tensor<2xf64>, tensor<3x4xf32>
  }
  func.func private @inner(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    %0 = chlo.square %arg0 : tensor<3x4xf32> -> tensor<3x4xf32>
    %1 = chlo.erf %0 : tensor<3x4xf32> -> tensor<3x4xf32>
    return %1 : tensor<3x4xf32>
  }
}
