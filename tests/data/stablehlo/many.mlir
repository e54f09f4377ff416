module @jit_many attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x8x8x3xf32>, %arg1: tensor<3x3x3x4xf32>, %arg2: tensor<3xi32>) -> (tensor<2x2x4x4xf32> {jax.result_info = "result[0]"}, tensor<2x4x8x4xf32> {jax.result_info = "result[1]"}, tensor<3x4xf32> {jax.result_info = "result[2]"}, tensor<64xf32> {jax.result_info = "result[3][0]"}, tensor<64xf32> {jax.result_info = "result[3][1]"}, tensor<64x4xf32> {jax.result_info = "result[4]"}, tensor<64x4xf32> {jax.result_info = "result[5]"}, tensor<4xui32> {jax.result_info = "result[6]"}, tensor<3xui32> {jax.result_info = "result[7]"}, tensor<64x4xf32> {jax.result_info = "result[8]"}, tensor<64x2xf32> {jax.result_info = "result[9][0]"}, tensor<64x2xi32> {jax.result_info = "result[9][1]"}, tensor<64x4xf32> {jax.result_info = "result[10]"}, tensor<34x4xf32> {jax.result_info = "result[11]"}, tensor<64x64xf32> {jax.result_info = "result[12]"}, tensor<64x4xf32> {jax.result_info = "result[13][0]"}, tensor<64xi32> {jax.result_info = "result[13][1]"}) {
    %c = stablehlo.constant dense<[1, 2]> : tensor<2xui32>
    %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 1], pad = [[0, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<2x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<2x4x8x4xf32>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<f32>
    %2 = "stablehlo.reduce_window"(%0, %1) <{base_dilations = array<i64: 1, 1, 1, 1>, padding = dense<0> : tensor<4x2xi64>, window_dilations = array<i64: 1, 1, 1, 1>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
      %70 = stablehlo.maximum %arg3, %arg4 : tensor<f32>
      stablehlo.return %70 : tensor<f32>
    }) : (tensor<2x4x8x4xf32>, tensor<f32>) -> tensor<2x2x4x4xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x2x4x4xf32>
    %cst_1 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %4 = stablehlo.pad %0, %cst_1, low = [0, 0, 0, 0], high = [0, 0, 0, 0], interior = [0, 0, 0, 0] : (tensor<2x4x8x4xf32>, tensor<f32>) -> tensor<2x4x8x4xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = "stablehlo.select_and_scatter"(%4, %3, %cst_2) <{padding = dense<0> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
      %70 = stablehlo.compare GE, %arg3, %arg4, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %70 : tensor<i1>
    }, {
    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
      %70 = stablehlo.add %arg3, %arg4 : tensor<f32>
      stablehlo.return %70 : tensor<f32>
    }) : (tensor<2x4x8x4xf32>, tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x4x8x4xf32>
    %6 = stablehlo.slice %5 [0:2, 0:4, 0:8, 0:4] : (tensor<2x4x8x4xf32>) -> tensor<2x4x8x4xf32>
    %7 = stablehlo.reshape %0 : (tensor<2x4x8x4xf32>) -> tensor<64x4xf32>
    %c_3 = stablehlo.constant dense<0> : tensor<i32>
    %8 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<i32>) -> tensor<3xi32>
    %9 = stablehlo.compare LT, %arg2, %8, SIGNED : (tensor<3xi32>, tensor<3xi32>) -> tensor<3xi1>
    %c_4 = stablehlo.constant dense<64> : tensor<i32>
    %10 = stablehlo.broadcast_in_dim %c_4, dims = [] : (tensor<i32>) -> tensor<3xi32>
    %11 = stablehlo.add %arg2, %10 : tensor<3xi32>
    %12 = stablehlo.select %9, %11, %arg2 : tensor<3xi1>, tensor<3xi32>
    %13 = stablehlo.broadcast_in_dim %12, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %14 = "stablehlo.gather"(%7, %13) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 4>}> : (tensor<64x4xf32>, tensor<3x1xi32>) -> tensor<3x4xf32>
    %c_5 = stablehlo.constant dense<0> : tensor<i32>
    %15 = stablehlo.broadcast_in_dim %c_5, dims = [] : (tensor<i32>) -> tensor<3xi32>
    %16 = stablehlo.compare LT, %arg2, %15, SIGNED : (tensor<3xi32>, tensor<3xi32>) -> tensor<3xi1>
    %c_6 = stablehlo.constant dense<64> : tensor<i32>
    %17 = stablehlo.broadcast_in_dim %c_6, dims = [] : (tensor<i32>) -> tensor<3xi32>
    %18 = stablehlo.add %arg2, %17 : tensor<3xi32>
    %19 = stablehlo.select %16, %18, %arg2 : tensor<3xi1>, tensor<3xi32>
    %20 = stablehlo.broadcast_in_dim %19, dims = [0] : (tensor<3xi32>) -> tensor<3x1xi32>
    %cst_7 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %21 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
    %22 = "stablehlo.scatter"(%7, %20, %21) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
      %70 = stablehlo.add %arg3, %arg4 : tensor<f32>
      stablehlo.return %70 : tensor<f32>
    }) : (tensor<64x4xf32>, tensor<3x1xi32>, tensor<3x4xf32>) -> tensor<64x4xf32>
    %23 = stablehlo.slice %22 [0:3, 0:4] : (tensor<64x4xf32>) -> tensor<3x4xf32>
    %24 = stablehlo.add %14, %23 : tensor<3x4xf32>
    %25 = stablehlo.slice %7 [0:64, 0:1] : (tensor<64x4xf32>) -> tensor<64x1xf32>
    %26 = stablehlo.reshape %25 : (tensor<64x1xf32>) -> tensor<64xf32>
    %27 = stablehlo.slice %7 [0:64, 1:2] : (tensor<64x4xf32>) -> tensor<64x1xf32>
    %28 = stablehlo.reshape %27 : (tensor<64x1xf32>) -> tensor<64xf32>
    %29:2 = "stablehlo.sort"(%26, %28) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>, %arg5: tensor<f32>, %arg6: tensor<f32>):
      %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %70 = stablehlo.compare EQ, %arg3, %cst_21, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_22 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %71 = stablehlo.select %70, %cst_22, %arg3 : tensor<i1>, tensor<f32>
      %72 = stablehlo.compare NE, %arg3, %arg3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_23 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %73 = stablehlo.select %72, %cst_23, %71 : tensor<i1>, tensor<f32>
      %cst_24 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %74 = stablehlo.compare EQ, %arg4, %cst_24, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_25 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %75 = stablehlo.select %74, %cst_25, %arg4 : tensor<i1>, tensor<f32>
      %76 = stablehlo.compare NE, %arg4, %arg4, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_26 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %77 = stablehlo.select %76, %cst_26, %75 : tensor<i1>, tensor<f32>
      %78 = stablehlo.compare LT, %73, %77, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %78 : tensor<i1>
    }) : (tensor<64xf32>, tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>)
    %c_8 = stablehlo.constant dense<0> : tensor<i32>
    %c_9 = stablehlo.constant dense<0> : tensor<i32>
    %30:3 = stablehlo.while(%iterArg = %c_9, %iterArg_21 = %c_8, %iterArg_22 = %7) : tensor<i32>, tensor<i32>, tensor<64x4xf32>
    cond {
      %c_23 = stablehlo.constant dense<3> : tensor<i32>
      %70 = stablehlo.compare LT, %iterArg, %c_23, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %70 : tensor<i1>
    } do {
      %70:2 = func.call @closed_call(%iterArg_21, %iterArg_22) : (tensor<i32>, tensor<64x4xf32>) -> (tensor<i32>, tensor<64x4xf32>)
      %c_23 = stablehlo.constant dense<1> : tensor<i32>
      %71 = stablehlo.add %iterArg, %c_23 : tensor<i32>
      stablehlo.return %71, %70#0, %70#1 : tensor<i32>, tensor<i32>, tensor<64x4xf32>
    }
    %31 = stablehlo.slice %arg2 [0:1] : (tensor<3xi32>) -> tensor<1xi32>
    %32 = stablehlo.reshape %31 : (tensor<1xi32>) -> tensor<i32>
    %c_10 = stablehlo.constant dense<1> : tensor<i32>
    %33 = stablehlo.compare GT, %32, %c_10, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %34 = stablehlo.convert %33 : (tensor<i1>) -> tensor<i32>
    %35 = "stablehlo.case"(%34) ({
      %70 = stablehlo.cosine %7 : tensor<64x4xf32>
      stablehlo.return %70 : tensor<64x4xf32>
    }, {
      %70 = stablehlo.sine %7 : tensor<64x4xf32>
      stablehlo.return %70 : tensor<64x4xf32>
    }) : (tensor<i32>) -> tensor<64x4xf32>
    %36 = stablehlo.broadcast_in_dim %c, dims = [0] : (tensor<2xui32>) -> tensor<2x2xui32>
    %37 = stablehlo.reshape %36 : (tensor<2x2xui32>) -> tensor<4xui32>
    %38 = stablehlo.reshape %37 : (tensor<4xui32>) -> tensor<2x2xui32>
    %39 = stablehlo.bitcast_convert %38 : (tensor<2x2xui32>) -> tensor<2xui64>
    %output_state, %output = stablehlo.rng_bit_generator %39, algorithm = DEFAULT : (tensor<2xui64>) -> (tensor<2xui64>, tensor<3xui32>)
    %40 = stablehlo.bitcast_convert %output_state : (tensor<2xui64>) -> tensor<2x2xui32>
    %41 = stablehlo.reshape %40 : (tensor<2x2xui32>) -> tensor<4xui32>
    %cst_11 = stablehlo.constant dense<-0.899999976> : tensor<f32>
    %cst_12 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %42 = call @clip(%7, %cst_11, %cst_12) : (tensor<64x4xf32>, tensor<f32>, tensor<f32>) -> tensor<64x4xf32>
    %43 = chlo.erf_inv %42 : tensor<64x4xf32> -> tensor<64x4xf32>
    %cst_13 = stablehlo.constant dense<9.000000e+00> : tensor<f32>
    %44 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<64x4xf32>
    %45 = stablehlo.add %7, %44 : tensor<64x4xf32>
    %46 = chlo.digamma %45 : tensor<64x4xf32> -> tensor<64x4xf32>
    %47 = stablehlo.add %43, %46 : tensor<64x4xf32>
    %values, %indices = chlo.top_k(%7, k = 2) : tensor<64x4xf32> -> (tensor<64x2xf32>, tensor<64x2xi32>)
    %48 = stablehlo.slice %arg2 [0:1] : (tensor<3xi32>) -> tensor<1xi32>
    %49 = stablehlo.reshape %48 : (tensor<1xi32>) -> tensor<i32>
    %c_14 = stablehlo.constant dense<0> : tensor<i32>
    %50 = stablehlo.compare LT, %49, %c_14, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_15 = stablehlo.constant dense<64> : tensor<i32>
    %51 = stablehlo.add %49, %c_15 : tensor<i32>
    %52 = stablehlo.select %50, %51, %49 : tensor<i1>, tensor<i32>
    %c_16 = stablehlo.constant dense<0> : tensor<i32>
    %53 = stablehlo.dynamic_slice %7, %52, %c_16, sizes = [2, 4] : (tensor<64x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
    %54 = stablehlo.slice %arg2 [1:2] : (tensor<3xi32>) -> tensor<1xi32>
    %55 = stablehlo.reshape %54 : (tensor<1xi32>) -> tensor<i32>
    %c_17 = stablehlo.constant dense<0> : tensor<i32>
    %56 = stablehlo.compare LT, %55, %c_17, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_18 = stablehlo.constant dense<64> : tensor<i32>
    %57 = stablehlo.add %55, %c_18 : tensor<i32>
    %58 = stablehlo.select %56, %57, %55 : tensor<i1>, tensor<i32>
    %c_19 = stablehlo.constant dense<0> : tensor<i32>
    %59 = stablehlo.dynamic_update_slice %7, %53, %58, %c_19 : (tensor<64x4xf32>, tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<64x4xf32>
    %c_20 = stablehlo.constant dense<0> : tensor<i32>
    %60 = call @_pad(%7, %c_20) : (tensor<64x4xf32>, tensor<i32>) -> tensor<67x4xf32>
    %61 = stablehlo.reverse %60, dims = [0] : tensor<67x4xf32>
    %62 = stablehlo.slice %61 [0:67:2, 0:4] : (tensor<67x4xf32>) -> tensor<34x4xf32>
    %63 = stablehlo.convert %7 : (tensor<64x4xf32>) -> tensor<64x4xbf16>
    %64 = stablehlo.convert %7 : (tensor<64x4xf32>) -> tensor<64x4xbf16>
    %65 = stablehlo.transpose %64, dims = [1, 0] : (tensor<64x4xbf16>) -> tensor<4x64xbf16>
    %66 = stablehlo.dot_general %63, %65, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<64x4xbf16>, tensor<4x64xbf16>) -> tensor<64x64xbf16>
    %67 = stablehlo.convert %66 : (tensor<64x64xbf16>) -> tensor<64x64xf32>
    %68 = call @cumsum(%7) : (tensor<64x4xf32>) -> tensor<64x4xf32>
    %69 = call @argmax(%7) : (tensor<64x4xf32>) -> tensor<64xi32>
    return %2, %6, %24, %29#0, %29#1, %30#2, %35, %41, %output, %47, %values, %indices, %59, %62, %67, %68, %69 : tensor<2x2x4x4xf32>, tensor<2x4x8x4xf32>, tensor<3x4xf32>, tensor<64xf32>, tensor<64xf32>, tensor<64x4xf32>, tensor<64x4xf32>, tensor<4xui32>, tensor<3xui32>, tensor<64x4xf32>, tensor<64x2xf32>, tensor<64x2xi32>, tensor<64x4xf32>, tensor<34x4xf32>, tensor<64x64xf32>, tensor<64x4xf32>, tensor<64xi32>
  }
  func.func private @closed_call(%arg0: tensor<i32>, %arg1: tensor<64x4xf32>) -> (tensor<i32>, tensor<64x4xf32>) {
    %c = stablehlo.constant dense<1> : tensor<i32>
    %0 = stablehlo.add %arg0, %c : tensor<i32>
    %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<64x4xf32>
    %2 = stablehlo.multiply %arg1, %1 : tensor<64x4xf32>
    %3 = stablehlo.convert %arg0 : (tensor<i32>) -> tensor<f32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<64x4xf32>
    %5 = stablehlo.add %2, %4 : tensor<64x4xf32>
    return %0, %5 : tensor<i32>, tensor<64x4xf32>
  }
  func.func private @clip(%arg0: tensor<64x4xf32>, %arg1: tensor<f32>, %arg2: tensor<f32>) -> tensor<64x4xf32> {
    %0 = stablehlo.convert %arg1 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<64x4xf32>
    %2 = stablehlo.maximum %1, %arg0 : tensor<64x4xf32>
    %3 = stablehlo.convert %arg2 : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<64x4xf32>
    %5 = stablehlo.minimum %4, %2 : tensor<64x4xf32>
    return %5 : tensor<64x4xf32>
  }
  func.func private @_pad(%arg0: tensor<64x4xf32>, %arg1: tensor<i32>) -> tensor<67x4xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.pad %arg0, %0, low = [1, 0], high = [2, 0], interior = [0, 0] : (tensor<64x4xf32>, tensor<f32>) -> tensor<67x4xf32>
    return %1 : tensor<67x4xf32>
  }
  func.func private @cumsum(%arg0: tensor<64x4xf32>) -> tensor<64x4xf32> {
    %0 = call @cumsum_0(%arg0) : (tensor<64x4xf32>) -> tensor<64x4xf32>
    return %0 : tensor<64x4xf32>
  }
  func.func private @cumsum_0(%arg0: tensor<64x4xf32>) -> tensor<64x4xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<f32>
    %1 = "stablehlo.reduce_window"(%arg0, %0) <{base_dilations = array<i64: 1, 1>, padding = dense<[[63, 0], [0, 0]]> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>, window_dimensions = array<i64: 64, 1>, window_strides = array<i64: 1, 1>}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %2 = stablehlo.add %arg1, %arg2 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<64x4xf32>, tensor<f32>) -> tensor<64x4xf32>
    return %1 : tensor<64x4xf32>
  }
  func.func private @argmax(%arg0: tensor<64x4xf32>) -> tensor<64xi32> {
    %0 = stablehlo.iota dim = 1 : tensor<64x4xi32>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = stablehlo.reduce(%arg0 init: %cst), (%0 init: %c) across dimensions = [1] : (tensor<64x4xf32>, tensor<64x4xi32>, tensor<f32>, tensor<i32>) -> (tensor<64xf32>, tensor<64xi32>)
     reducer(%arg1: tensor<f32>, %arg3: tensor<f32>) (%arg2: tensor<i32>, %arg4: tensor<i32>)  {
      %2 = stablehlo.compare GT, %arg1, %arg3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %3 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %4 = stablehlo.or %2, %3 : tensor<i1>
      %5 = stablehlo.compare EQ, %arg1, %arg3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %6 = stablehlo.compare LT, %arg2, %arg4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %7 = stablehlo.and %5, %6 : tensor<i1>
      %8 = stablehlo.or %4, %7 : tensor<i1>
      %9 = stablehlo.select %4, %arg1, %arg3 : tensor<i1>, tensor<f32>
      %10 = stablehlo.select %8, %arg2, %arg4 : tensor<i1>, tensor<i32>
      stablehlo.return %9, %10 : tensor<f32>, tensor<i32>
    }
    return %1#1 : tensor<64xi32>
  }
}
