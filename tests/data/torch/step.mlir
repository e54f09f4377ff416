module @IrToHlo.190 attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func @main(%arg0: tensor<f32>, %arg1: tensor<4x3x3x3xf32>, %arg2: tensor<2x3x8x8xf32>, %arg3: tensor<4xf32>, %arg4: tensor<6x64xf32>, %arg5: tensor<2x6xf32>, %arg6: tensor<2x5xi64>, %arg7: tensor<i64>, %arg8: tensor<8x6xf32>, %arg9: tensor<6xf32>) -> (tensor<4x3x3x3xf32>, tensor<4xf32>, tensor<8x6xf32>, tensor<6x64xf32>, tensor<6xf32>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<10x6xf32>
    %c = stablehlo.constant dense<-1> : tensor<10xi64>
    %c_0 = stablehlo.constant dense<0> : tensor<10xi64>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<8x6xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<2x4x8x8xf32>
    %cst_3 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.convolution(%arg2, %arg1) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<2x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x8x8xf32>
    %1 = stablehlo.broadcast_in_dim %arg3, dims = [1] : (tensor<4xf32>) -> tensor<2x4x8x8xf32>
    %2 = stablehlo.add %0, %1 : tensor<2x4x8x8xf32>
    %3 = stablehlo.maximum %2, %cst_2 : tensor<2x4x8x8xf32>
    %4 = stablehlo.compare  GT, %3, %cst_2 : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xi1>
    %5 = stablehlo.dot_general %arg5, %arg4, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x6xf32>, tensor<6x64xf32>) -> tensor<2x64xf32>
    %6 = stablehlo.reshape %5 : (tensor<2x64xf32>) -> tensor<2x4x4x4xf32>
    %7 = "stablehlo.select_and_scatter"(%3, %6, %cst_4) <{padding = dense<0> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 1, 2, 2>, window_strides = array<i64: 1, 1, 2, 2>}> ({
    ^bb0(%arg10: tensor<f32>, %arg11: tensor<f32>):
      %45 = stablehlo.compare  GE, %arg10, %arg11 : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %45 : tensor<i1>
    }, {
    ^bb0(%arg10: tensor<f32>, %arg11: tensor<f32>):
      %45 = stablehlo.add %arg10, %arg11 : tensor<f32>
      stablehlo.return %45 : tensor<f32>
    }) : (tensor<2x4x8x8xf32>, tensor<2x4x4x4xf32>, tensor<f32>) -> tensor<2x4x8x8xf32>
    %8 = stablehlo.select %4, %7, %cst_2 : tensor<2x4x8x8xi1>, tensor<2x4x8x8xf32>
    %9 = "stablehlo.reduce_window"(%3, %cst_3) <{base_dilations = array<i64: 1, 1, 1, 1>, padding = dense<0> : tensor<4x2xi64>, window_dilations = array<i64: 1, 1, 1, 1>, window_dimensions = array<i64: 1, 1, 2, 2>, window_strides = array<i64: 1, 1, 2, 2>}> ({
    ^bb0(%arg10: tensor<f32>, %arg11: tensor<f32>):
      %45 = stablehlo.maximum %arg10, %arg11 : tensor<f32>
      stablehlo.return %45 : tensor<f32>
    }) : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x4x4xf32>
    %10 = stablehlo.convolution(%arg2, %8) dim_numbers = [f, b, 0, 1]x[i, o, 0, 1]->[0, 1, b, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<2x3x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<3x3x3x4xf32>
    %11 = stablehlo.transpose %10, dims = [3, 2, 0, 1] {result_layout = dense<[0, 1, 3, 2]> : tensor<4xindex>, xla_shape = "f32[4,3,3,3]{0,1,3,2}"} : (tensor<3x3x3x4xf32>) -> tensor<4x3x3x3xf32>
    %12 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<f32>) -> tensor<4x3x3x3xf32>
    %13 = stablehlo.multiply %11, %12 : tensor<4x3x3x3xf32>
    %14 = stablehlo.subtract %arg1, %13 : tensor<4x3x3x3xf32>
    %15 = stablehlo.reduce(%8 init: %cst_4) applies stablehlo.add across dimensions = [0, 2, 3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<4xf32>
    %16 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %17 = stablehlo.multiply %15, %16 : tensor<4xf32>
    %18 = stablehlo.subtract %arg3, %17 : tensor<4xf32>
    %19 = stablehlo.reshape %arg6 : (tensor<2x5xi64>) -> tensor<10xi64>
    %20 = stablehlo.compare  LT, %19, %c_0 : (tensor<10xi64>, tensor<10xi64>) -> tensor<10xi1>
    %21 = stablehlo.broadcast_in_dim %arg7, dims = [] : (tensor<i64>) -> tensor<10xi64>
    %22 = stablehlo.add %19, %21 : tensor<10xi64>
    %23 = stablehlo.select %20, %22, %19 : tensor<10xi1>, tensor<10xi64>
    %24 = stablehlo.reshape %23 : (tensor<10xi64>) -> tensor<10x1xi64>
    %25 = stablehlo.compare  NE, %19, %c : (tensor<10xi64>, tensor<10xi64>) -> tensor<10xi1>
    %26 = stablehlo.broadcast_in_dim %25, dims = [0] : (tensor<10xi1>) -> tensor<10x6xi1>
    %27 = stablehlo.broadcast_in_dim %arg5, dims = [0, 2] : (tensor<2x6xf32>) -> tensor<2x5x6xf32>
    %28 = stablehlo.reshape %27 : (tensor<2x5x6xf32>) -> tensor<10x6xf32>
    %29 = stablehlo.select %26, %28, %cst : tensor<10x6xi1>, tensor<10x6xf32>
    %30 = "stablehlo.scatter"(%cst_1, %24, %29) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg10: tensor<f32>, %arg11: tensor<f32>):
      %45 = stablehlo.add %arg10, %arg11 : tensor<f32>
      stablehlo.return %45 : tensor<f32>
    }) : (tensor<8x6xf32>, tensor<10x1xi64>, tensor<10x6xf32>) -> tensor<8x6xf32>
    %31 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<f32>) -> tensor<8x6xf32>
    %32 = stablehlo.multiply %30, %31 : tensor<8x6xf32>
    %33 = stablehlo.subtract %arg8, %32 : tensor<8x6xf32>
    %34 = stablehlo.reshape %9 : (tensor<2x4x4x4xf32>) -> tensor<2x64xf32>
    %35 = stablehlo.transpose %34, dims = [1, 0] {result_layout = dense<[0, 1]> : tensor<2xindex>, xla_shape = "f32[64,2]{0,1}"} : (tensor<2x64xf32>) -> tensor<64x2xf32>
    %36 = stablehlo.dot_general %35, %arg5, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<64x2xf32>, tensor<2x6xf32>) -> tensor<64x6xf32>
    %37 = stablehlo.transpose %36, dims = [1, 0] {result_layout = dense<[0, 1]> : tensor<2xindex>, xla_shape = "f32[6,64]{0,1}"} : (tensor<64x6xf32>) -> tensor<6x64xf32>
    %38 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<f32>) -> tensor<6x64xf32>
    %39 = stablehlo.multiply %37, %38 : tensor<6x64xf32>
    %40 = stablehlo.subtract %arg4, %39 : tensor<6x64xf32>
    %41 = stablehlo.reduce(%arg5 init: %cst_4) applies stablehlo.add across dimensions = [0] : (tensor<2x6xf32>, tensor<f32>) -> tensor<6xf32>
    %42 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %43 = stablehlo.multiply %41, %42 : tensor<6xf32>
    %44 = stablehlo.subtract %arg9, %43 : tensor<6xf32>
    return %14, %18, %33, %40, %44 : tensor<4x3x3x3xf32>, tensor<4xf32>, tensor<8x6xf32>, tensor<6x64xf32>, tensor<6xf32>
  }
}
