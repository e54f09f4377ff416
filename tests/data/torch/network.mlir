module @IrToHlo.87 attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<2x5xi64>, %arg1: tensor<8x6xf32>, %arg2: tensor<6xf32>, %arg3: tensor<6x64xf32>, %arg4: tensor<4xf32>, %arg5: tensor<4x3x3x3xf32>, %arg6: tensor<2x3x8x8xf32>) -> tensor<2x6xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<2x4x8x8xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.convolution(%arg6, %arg5) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<2x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x8x8xf32>
    %1 = stablehlo.broadcast_in_dim %arg4, dims = [1] : (tensor<4xf32>) -> tensor<2x4x8x8xf32>
    %2 = stablehlo.add %0, %1 : tensor<2x4x8x8xf32>
    %3 = stablehlo.maximum %2, %cst : tensor<2x4x8x8xf32>
    %4 = "stablehlo.reduce_window"(%3, %cst_0) <{base_dilations = array<i64: 1, 1, 1, 1>, padding = dense<0> : tensor<4x2xi64>, window_dilations = array<i64: 1, 1, 1, 1>, window_dimensions = array<i64: 1, 1, 2, 2>, window_strides = array<i64: 1, 1, 2, 2>}> ({
    ^bb0(%arg7: tensor<f32>, %arg8: tensor<f32>):
      %16 = stablehlo.maximum %arg7, %arg8 : tensor<f32>
      stablehlo.return %16 : tensor<f32>
    }) : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x4x4xf32>
    %5 = stablehlo.reshape %4 : (tensor<2x4x4x4xf32>) -> tensor<2x64xf32>
    %6 = stablehlo.transpose %arg3, dims = [1, 0] {result_layout = dense<[0, 1]> : tensor<2xindex>, xla_shape = "f32[64,6]{0,1}"} : (tensor<6x64xf32>) -> tensor<64x6xf32>
    %7 = stablehlo.dot_general %5, %6, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x64xf32>, tensor<64x6xf32>) -> tensor<2x6xf32>
    %8 = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<6xf32>) -> tensor<2x6xf32>
    %9 = stablehlo.add %7, %8 : tensor<2x6xf32>
    %10 = stablehlo.reshape %arg0 : (tensor<2x5xi64>) -> tensor<10xi64>
    %11 = stablehlo.convert %10 : (tensor<10xi64>) -> tensor<10xui32>
    %12 = "stablehlo.gather"(%arg1, %11) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<8x6xf32>, tensor<10xui32>) -> tensor<10x6xf32>
    %13 = stablehlo.reshape %12 : (tensor<10x6xf32>) -> tensor<2x5x6xf32>
    %14 = stablehlo.reduce(%13 init: %cst_1) applies stablehlo.add across dimensions = [1] : (tensor<2x5x6xf32>, tensor<f32>) -> tensor<2x6xf32>
    %15 = stablehlo.add %9, %14 : tensor<2x6xf32>
    return %15 : tensor<2x6xf32>
  }
}
