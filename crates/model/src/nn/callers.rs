//! Tests that the instructions of a layer carry the source line of the layer's caller.

use super::*;
use crate::graph::{Graph, Init, Scope, Tensor};
use bf16scope_hlo::DType;
use std::collections::BTreeSet;

/// The source files of the instructions that `build` emits from an image, a sequence and classes.
fn files(build: &dyn Fn(&Scope, [&Tensor; 3]) -> Tensor) -> BTreeSet<String> {
    let g = Graph::new("test");
    let image = g.input("image", DType::F32, [2, 4, 4, 3]);
    let sequence = g.input("sequence", DType::F32, [2, 6, 4]);
    let classes = g.input("classes", DType::S32, [2, 6]);
    let y = build(&g.scope(), [&image, &sequence, &classes]);
    let program = g.finish(&[("y", &y)]).unwrap_or_else(|error| panic!("{error}"));
    let instructions = program.module.computations.iter().flat_map(|computation| &computation.instructions);
    instructions.map(|instruction| instruction.metadata.source_file.clone()).filter(|file| !file.is_empty()).collect()
}

#[test]
fn what_a_layer_emits_carries_the_line_that_called_it() {
    type Build = Box<dyn Fn(&Scope, [&Tensor; 3]) -> Tensor>;
    let mut all: Vec<(String, Build)> = Vec::new();
    macro_rules! layers {
        ($($name:ident: |$s:ident, $image:ident, $sequence:ident, $classes:ident| $body:expr;)*) => {
            $(all.push((stringify!($name).to_string(), Box::new(|$s, [$image, $sequence, $classes]| $body)));)*
        };
    }
    layers! {
        tanh_gelu: |_s, x, _t, _c| gelu(x, Gelu::Tanh);
        erf_gelu: |_s, x, _t, _c| gelu(x, Gelu::Erf);
        softplus: |_s, x, _t, _c| softplus(x);
        softsign: |_s, x, _t, _c| softsign(x);
        selu: |_s, x, _t, _c| selu(x);
        softmax: |_s, x, _t, _c| softmax(x, 1);
        log_softmax: |_s, x, _t, _c| log_softmax(x, 1);
        concat: |_s, x, _t, _c| concat(&[x, x], 1);
        reshape_example: |_s, x, _t, _c| reshape_example(x, &[48]);
        take: |_s, _x, t, _c| take(t, -1, 1);
        permute: |_s, _x, t, _c| permute(t, &[2, 1]);
        zero_padding: |_s, x, _t, _c| zero_padding(x, [[1, 2], [0, 1]], DataFormat::default());
        crop: |_s, x, _t, _c| crop(x, [[1, 0], [0, 1]], DataFormat::default());
        upsample: |_s, x, _t, _c| upsample(x, [2, 3], DataFormat::default());
        nearest: |_s, x, _t, _c| upsample_nd(x, &Sizes::from(2), Interpolation::Nearest);
        lines: |_s, x, _t, _c| upsample_nd(x, &Sizes::from(2), Interpolation::Bilinear);
        pad_places: |_s, _x, t, _c| pad_places(t, &[[1, 2]]);
        gather_rows: |_s, _x, t, c| gather_rows(t, c);
        one_hot: |_s, _x, _t, c| one_hot(c, 5, DType::F32);
        unit: |_s, _x, t, _c| unit(t, 2);
        dot_along: |_s, _x, t, _c| dot_along(t, t, [2, 2], true);
        avg_pool: |_s, x, _t, _c| avg_pool(x, &Pool::default());
        max_pool: |_s, x, _t, _c| max_pool(x, &Pool::default());
        avg_pool_nd: |_s, _x, t, _c| avg_pool_nd(t, &PoolNd::default());
        max_pool_nd: |_s, _x, t, _c| max_pool_nd(t, &PoolNd::default());
        global_avg_pool: |_s, x, _t, _c| global_avg_pool(x, DataFormat::default());
        masked_avg_pool: |_s, _x, t, _c| masked_avg_pool(t, &take(t, 0, 2), DataFormat::default());
        arg_max: |_s, x, _t, _c| arg_max(x);
        dense: |s, x, _t, _c| dense(s, &flatten(x), "d", &Dense { units: 3, ..Dense::default() });
        feed_forward: |s, _x, t, _c| feed_forward(s, t, &FeedForward { hidden: 8, units: 4, gelu: Gelu::Tanh, kernel_initializer: Init::Zeros, remat_hidden: false });
        layer_norm: |s, _x, t, _c| layer_norm(s, t, "n", &LayerNorm::default());
        batch_norm: |s, x, _t, _c| batch_norm(s, x, "n", &BatchNorm::default());
        lstm: |s, _x, t, _c| lstm(s, t, None, "l", &Lstm { units: 3, ..Lstm::default() });
        gru: |s, _x, t, _c| gru(s, t, None, "l", &Gru { units: 3, ..Gru::default() });
        simple_rnn: |s, _x, t, _c| simple_rnn(s, t, None, "l", &SimpleRnn { units: 3, ..SimpleRnn::default() });
        attention: |s, _x, t, _c| attention(s, t, t, "a", &Attention { num_heads: 2, ..Attention::default() });
        token_logits: |s, _x, t, _c| token_logits(s, t, "head", &Dense { units: 5, ..Dense::default() });
        token_loss: |_s, _x, t, c| token_loss(t, c, 0.1, Softmax::TwoPasses).loss;
        ctc: |_s, _x, t, c| ctc_per_example(t, c, 0);
        cosine: |_s, _x, t, _c| cosine_per_example(&take(t, 0, 1), &take(t, 1, 1));
        is_correct: |_s, _x, t, c| is_correct(t, c);
        gaussian_noise: |s, x, _t, _c| gaussian_noise(s, x, "noise", 0.1);
        alpha_dropout: |s, x, _t, _c| alpha_dropout(s, x, "alpha", 0.5);
        prelu: |s, x, _t, _c| prelu(s, x, "p", &Prelu::default());
    }
    for how in [Merge::Add, Merge::Subtract, Merge::Multiply, Merge::Average, Merge::Maximum, Merge::Minimum] {
        all.push((
            format!("{how:?}"),
            Box::new(move |s, [x, _, _]| {
                let bias = s.variable("bias", DType::F32, [1, 3], Init::Zeros);
                merge(&[x, &bias.value, x], how)
            }),
        ));
    }
    use Reduction::*;
    for reduction in [Sum, Mean, Max, Min, Prod, Variance, Std, L2Norm, Logsumexp] {
        all.push((format!("{reduction:?}"), Box::new(move |_, [x, _, _]| reduce(x, reduction, &[1, 3], true))));
    }
    let expected = BTreeSet::from([file!().to_string()]);
    let wrong: Vec<String> = all
        .iter()
        .map(|(name, build)| (name, files(&**build)))
        .filter(|(_, files)| *files != expected)
        .map(|(name, files)| format!("{name}: {files:?}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
