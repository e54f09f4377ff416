//! The TPU compiler's f32 products at each precision, compared with those of `passes::as_tpu`. Its programs keep f32
//! operands and the precision; the cycles that it estimates show the number of passes through the matrix unit.

use std::collections::BTreeMap;

use bf16scope::hlo::Module;
use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::text::{PrintOptions, parse, print};
use bf16scope::hlo::verify::verify;
use bf16scope::passes::as_tpu::{TpuArithmetic, run as as_tpu};
use bf16scope::pjrt::{CompileOptions, PjrtError, Topology};

/// Rows, columns and summed numbers: large, so that everything but the multiplication is small in comparison.
const N: u64 = 1024;
/// Rows and columns of a matrix unit.
const MXU: u64 = 128;

fn topology(arithmetic: TpuArithmetic) -> Topology {
    let name = format!("{}:2x2", arithmetic.name().trim_start_matches("tpu-"));
    Topology::tpu(&name, &BTreeMap::new()).unwrap_or_else(|error| panic!("{error}"))
}

fn product(lhs: &str, attributes: &str) -> Module {
    let text = format!(
        "HloModule m\n\nENTRY m {{\n  a = {lhs}[{N},{N}]{{1,0}} parameter(0)\n  b = f32[{N},{N}]{{1,0}} parameter(1)\n  \
         ROOT d = f32[{N},{N}]{{1,0}} dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {attributes}\n}}\n"
    );
    parse(&text, "m.txt").unwrap_or_else(|error| panic!("{error}"))
}

/// The compiler's estimated cycles for the single product in a module.
fn cycles(topology: &Topology, module: &Module) -> Result<u64, PjrtError> {
    verify(module).unwrap();
    let compiled = topology.compile(&encode::to_bytes(module).unwrap(), &CompileOptions::default())?;
    let optimized = decode::from_bytes(&compiled.optimized_program().unwrap()).unwrap();
    let text = print(&optimized, &PrintOptions::default());
    assert_eq!(text.matches(" convolution(").count(), 1, "one product:\n{text}");
    let estimates = text.split("\"estimated_cycles\":\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    Ok(estimates.map(|cycles| cycles.parse::<u64>().unwrap()).sum())
}

/// A pass of a matrix unit over `N³` multiplications takes `N³ / 128²` cycles; a core has one unit on v2, two on v3.
/// Further passes are the additional time over a product of a single pass, rounded to the nearest.
#[test]
fn passes_of_the_matrix_unit_are_the_products_that_the_pass_writes() {
    are_the_products("f32", TpuArithmetic::V2, &[("high", "high"), ("highest", "highest"), ("default", "highest")]);
    are_the_products("bf16", TpuArithmetic::V3, &[("high", "default"), ("default", "highest")]);
}

/// Checks products of `lhs` with f32, of these precisions beside the default.
fn are_the_products(lhs: &str, arithmetic: TpuArithmetic, precisions: &[(&str, &str)]) {
    let n_units = if arithmetic == TpuArithmetic::V2 { 1 } else { 2 };
    let topology = topology(arithmetic);
    let of_a_pass = (N.pow(3) / MXU.pow(2) / n_units) as f64;
    let check = |(l, r): (&str, &str), one: Option<f64>| -> f64 {
        let attributes = format!("operand_precision={{{l},{r}}}");
        let module = product(lhs, &attributes);
        let (_, report) = as_tpu(&module, &arithmetic).unwrap();
        let measured = cycles(&topology, &module).unwrap() as f64;
        let n_passes = (measured - one.unwrap_or(measured)) / of_a_pass + 1.0;
        let n_products = report.products[0].n_products;
        assert_eq!(n_passes.round() as usize, n_products, "{arithmetic} {lhs} {attributes}: {n_passes}");
        measured
    };
    let one = check(("default", "default"), None);
    for &pair in precisions {
        check(pair, Some(one));
    }
}

/// The compiler treats algorithms that name bf16 products as precisions; those that the pass leaves unchanged, it
/// refuses.
#[test]
fn algorithms_are_taken_and_refused_by_both_alike() {
    let arithmetic = TpuArithmetic::V2;
    let topology = topology(arithmetic);
    let of_precision = |name: &str| cycles(&topology, &product("f32", &format!("operand_precision={{{name},{name}}}")));
    for (algorithm, precision) in
        [("dot_bf16_bf16_f32", "default"), ("dot_bf16_bf16_f32_x3", "high"), ("dot_bf16_bf16_f32_x6", "highest")]
    {
        let measured = cycles(&topology, &product("f32", &format!("algorithm={algorithm}"))).unwrap();
        assert_eq!(measured, of_precision(precision).unwrap(), "{algorithm}");
    }
    for algorithm in ["dot_bf16_bf16_f32_x9", "dot_f32_f32_f32", "dot_tf32_tf32_f32"] {
        let module = product("f32", &format!("algorithm={algorithm}"));
        let error = cycles(&topology, &module).unwrap_err().to_string();
        assert!(error.contains("is not supported"), "{error}");
        assert_eq!(as_tpu(&module, &arithmetic).unwrap().1.left.len(), 1, "{algorithm}");
    }
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// All pairs of precisions of both types on both TPUs.
    #[cfg_attr(feature = "long-tests", test)]
    fn passes_of_every_pair_of_precisions_are_the_products_that_the_pass_writes() {
        let names = ["default", "high", "highest"];
        let pairs: Vec<(&str, &str)> = names.iter().flat_map(|l| names.map(|r| (*l, r))).collect();
        for arithmetic in [TpuArithmetic::V2, TpuArithmetic::V3] {
            ["f32", "bf16"].iter().for_each(|lhs| are_the_products(lhs, arithmetic, &pairs));
        }
    }
}
