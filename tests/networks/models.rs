//! Whole models on the CPU plugin: options that must not change what is computed do not.

use crate::run;

use bf16scope::graph::Graph;
use bf16scope::hlo::{DType, Literal};
use bf16scope::models::resnet::{self, Config, Depth, StridedPadding};
use bf16scope::nn::DataFormat;

/// Logits of two images in f64, where rounding cannot hide a wrong axis.
fn logits(config: &Config) -> Vec<f64> {
    let g = Graph::new("resnet");
    let dims: Vec<i64> = [2].into_iter().chain(config.input.iter().copied()).collect();
    let images = g.input("images", DType::F64, dims.clone());
    let logits = resnet::v1(&g.scope(), &images, config);
    let program = g.finish(&[("logits", &logits)]).unwrap();
    let results = run::run(&program, |name| {
        if name == "images" {
            let values: Vec<f64> = (0..dims.iter().product::<i64>()).map(|at| (at as f64 * 0.7).sin()).collect();
            return Literal::from_elements(dims.clone(), &values);
        }
        let variable = program.variables.iter().find(|variable| variable.name == name).unwrap();
        let values = variable.init.values(1, name, &variable.dims);
        Literal::from_elements(variable.dims.clone(), &values.into_iter().map(f64::from).collect::<Vec<f64>>())
    });
    run::f64s(&results[0])
}

fn small(depth: Depth) -> Config {
    let (input, n_classes, width) = (vec![33, 40, 3], 5, 4);
    // With the residual branches at 0, most of the network would not count.
    Config { input, n_classes, depth, width, zero_init_residual: false, ..Config::default() }
}

/// The order of axes inside is not seen outside. At most 54 layers sum at most 3·3·32 products each, so orders of summing
/// differ by less than 54 · 288 · 2^-53 = 1.7e-12 of the values, and a thousandfold growth on the way is allowed for; a
/// wrong axis is off by their size.
#[test]
fn formats_agree() {
    for depth in [Depth::D18, Depth::D50] {
        let [nhwc, nchw] = [DataFormat::ChannelsLast, DataFormat::ChannelsFirst]
            .map(|format| logits(&Config { format, ..small(depth) }));
        let size = nhwc.iter().fold(0f64, |size, value| size.max(value.abs()));
        assert!(size > 1e-3, "logits are too small to tell anything: {nhwc:?}");
        for (a, b) in nhwc.iter().zip(&nchw) {
            assert!((a - b).abs() <= 1.7e-9 * size, "{nhwc:?} and {nchw:?} differ");
        }
    }
}

/// Fixed padding is another network where SAME pads unevenly: at even sizes.
#[test]
fn paddings_differ() {
    let [same, fixed] =
        [StridedPadding::Same, StridedPadding::Fixed].map(|padding| logits(&Config { padding, ..small(Depth::D18) }));
    assert_ne!(same, fixed);
}
