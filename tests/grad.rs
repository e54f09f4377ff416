//! Gradients as modules: every case's gradient verifies, every op has a decision, every refusal says why.

mod grad_cases;

use bf16scope::hlo::verify::verify;

#[test]
fn the_gradient_of_every_case_is_a_valid_module() {
    for case in grad_cases::all() {
        let module = case.gradient_module().unwrap_or_else(|error| panic!("{}: {error}", case.name));
        if let Err(errors) = verify(&module) {
            panic!("{}: {errors}", case.name);
        }
        let results = module.entry().result_shape().as_tuple().unwrap().to_vec();
        assert_eq!(results.len(), case.dims.len() + 1, "{}", case.name);
        for (result, dims) in results[1..].iter().zip(&case.dims) {
            assert_eq!(result.dims(), dims, "{}", case.name);
        }
    }
}
