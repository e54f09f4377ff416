//! Attributes of calls and of ops that the IR carries, and what StableHLO lacks.

use crate::stablehlo::write;
use bf16scope_hlo::text::parse;
use bf16scope_hlo::verify;

/// The attributes of the one op beside the parameter, or why it is not written.
#[track_caller]
fn check(op: &str, expected: &str) {
    let text = format!("HloModule m\n\nENTRY main {{\n  x = f32[4,4] parameter(0)\n  ROOT y = {op}\n}}\n");
    let module = parse(&text, "m.hlo").unwrap_or_else(|error| panic!("{error}"));
    verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
    let attributes = match write(&module) {
        Ok(written) => {
            let line = written.text.lines().nth(2).unwrap().to_string();
            let (_, list) = line.split_once("<{").unwrap();
            list.split_once("}> :").unwrap().0.to_string()
        }
        Err(error) => error.to_string().lines().next().unwrap().to_string(),
    };
    assert_eq!(attributes, expected);
}

#[test]
fn a_custom_call_says_its_layouts_and_what_shares_memory() {
    check(
        "f32[4,4]{0,1} custom-call(x), custom_call_target=\"f\", operand_layout_constraints={f32[4,4]{0,1}}, \
         output_to_operand_aliasing={{}: (0, {})}, api_version=API_VERSION_TYPED_FFI, backend_config={index = 0 : ui64}",
        "call_target_name = \"f\", has_side_effect = false, api_version = 4 : i32, backend_config = {index = 0 : ui64}, \
         operand_layouts = [dense<[0, 1]> : tensor<2xindex>], result_layouts = [dense<[0, 1]> : tensor<2xindex>], \
         output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, \
         operand_tuple_indices = []>]",
    );
    check(
        "(f32[4,4]{1,0}, f32[]) custom-call(x), custom_call_target=\"f\", operand_layout_constraints={f32[4,4]{1,0}}, \
         output_to_operand_aliasing={{0}: (0, {})}, api_version=API_VERSION_STATUS_RETURNING, backend_config=\"a\\\"b\"",
        "call_target_name = \"f\", has_side_effect = false, api_version = 2 : i32, backend_config = \"a\\\"b\", \
         operand_layouts = [dense<[1, 0]> : tensor<2xindex>], result_layouts = [dense<[1, 0]> : tensor<2xindex>, \
         dense<> : tensor<0xindex>], output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = \
         [0], operand_index = 0, operand_tuple_indices = []>]",
    );
    for config in ["no", "{a = 1}, b = {}", "{a = [1}]", "{a = 1)", "{a = \\\"}"] {
        check(
            &format!(
                "f32[4,4] custom-call(x), custom_call_target=\"f\", api_version=API_VERSION_TYPED_FFI, \
                 backend_config=\"{config}\""
            ),
            "main/%y: StableHLO has no custom call whose typed backend_config is not a dictionary",
        );
    }
}

#[test]
fn what_no_word_says_is_refused_and_not_dropped() {
    let call = |says: &str| format!("f32[4,4] custom-call(x, x), {says}, custom_call_target=\"f\"");
    check(&call("window={size=2x2}"), "main/%y: StableHLO has no word for `window` of a custom-call");
    check(&call("dim_labels=b0f_0io->b0f"), "main/%y: StableHLO has no word for `dim_labels` of a custom-call");
    check(&call("feature_group_count=2"), "main/%y: StableHLO has no word for `feature_group_count` of a custom-call");
    check(&call("padding_type=PADDING_SAME"), "main/%y: StableHLO has no word for `padding_type` of a custom-call");
    check(
        "f32[4,4] cholesky(x), lower=true, padding_type=PADDING_SAME",
        "main/%y: StableHLO has no word for `padding_type` of a cholesky",
    );
    let text = "HloModule m, is_scheduled=true, allow_spmd_sharding_propagation_to_output={true}, replica_count=1\n\n\
                ENTRY main {\n  x = f32[4] parameter(0)\n  ROOT y = f32[4] custom-call(x), custom_call_target=\"f\", \
                schedule=SCHEDULE_LATEST\n}\n";
    let lost = write(&parse(text, "m.hlo").unwrap()).unwrap().lost;
    assert_eq!(
        lost,
        [
            "the custom_call_schedule of 1 instructions",
            "`allow_spmd_sharding_propagation_to_output` of the module",
            "the schedule",
        ]
    );
}

#[test]
fn ops_and_attributes_that_stablehlo_lacks_are_named() {
    let call = |says: &str| format!("f32[4,4] custom-call(x), custom_call_target=\"f\", {says}");
    for (op, missing) in [
        (
            "f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, algorithm=dot_any_f8_any_f8_f32",
            "algorithm `dot_any_f8_any_f8_f32` that bf16scope can write",
        ),
        (
            call("operand_layout_constraints={f32[4,4]{1,0:T(8,128)}}").as_str(),
            "custom call with tiled layouts that bf16scope can write",
        ),
        (
            call("output_to_operand_aliasing={{}: (0, {1})}").as_str(),
            "custom call whose results share memory in a way that bf16scope can write",
        ),
        ("opaque[] custom-call(x), custom_call_target=\"f\"", "type for opaque[]"),
        ("c64[4,3] fft(x), fft_type=RFFT, fft_length={a}", "`fft` without a `fft_length` that is known"),
        ("c64[4,3] fft(x), fft_type=DCT, fft_length={4}", "`fft` without a `fft_type` that is known"),
        ("f32[4,4] triangular-solve(x, x), transpose_a=NO", "`triangular-solve` without a `transpose_a` that is known"),
        ("(f32[4,2], s32[4,2]) topk(x), largest=true", "`topk` without a `k` that is known"),
    ] {
        check(op, &format!("main/%y: StableHLO has no {missing}"));
    }
    let text = "HloModule m\n\nf {\n  ROOT a = f32[] parameter(0)\n}\n\nENTRY main {\n  x = f32[] parameter(0)\n  ROOT y = \
                f32[] custom-call(x), custom_call_target=\"f\", called_computations={f}\n}\n";
    assert_eq!(
        write(&parse(text, "m.hlo").unwrap()).unwrap_err().to_string(),
        "main/%y: StableHLO has no custom call that applies computations\nhelp: write HLO instead, text or proto, which \
         XLA's plugins read too; of a function for `bf16scope.jax.lower`, lower the parts without this op"
    );
}

#[test]
fn what_the_ir_does_not_model_is_written_too() {
    check(
        "c64[4,3] fft(x), fft_type=RFFT, fft_length={4}",
        "fft_length = array<i64: 4>, fft_type = #stablehlo<fft_type RFFT>",
    );
    check("f32[4,4] cholesky(x), lower=true", "lower = true");
    check(
        "f32[4,4] triangular-solve(x, x), left_side=true, lower=true, transpose_a=ADJOINT",
        "left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose ADJOINT>",
    );
    check("(f32[4,2], s32[4,2]) topk(x), k=2, largest=true", "k = 2 : i64");
    check("f32[4,4] domain(x)", "main/%y: StableHLO has no `domain` that bf16scope can write");
}
