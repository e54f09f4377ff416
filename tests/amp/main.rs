//! Lowering to low precision: on the modules that JAX and TensorFlow made, and on small ones written here.

mod oracle;

use bf16scope::passes::amp::{self, Policy};

const ALL: [&str; 7] = [
    "oracle_jax/cnn_momentum_step", "oracle_jax/encoder_forward", "oracle_jax/mlp_adam_step", "oracle_tf/mlp_f32",
    "oracle_tf/mlp_bf16", "oracle_tf/resnet_block_f32", "oracle_tf/resnet_block_bf16",
];

#[test]
fn explore() {
    for name in ALL {
        let module = oracle::module(name);
        let file = name.trim_end_matches("_f32").trim_end_matches("_bf16");
        let arguments = oracle::Recorded::open(file).arguments(name, &module);
        let wide = oracle::run(&module, &arguments);
        for (preset, accumulate) in [("default", amp::Accumulate::Compute), ("default", amp::Accumulate::F32), ("bf16_scope", amp::Accumulate::Compute)] {
            let policy = Policy { accumulate, ..Policy::preset(preset).unwrap() };
            let (lowered, report) = amp::run(&module, &policy).unwrap_or_else(|e| panic!("{name} {preset} {e}"));
            println!("== {preset} {name}: lowered {} casts {} act {} -> {} + {} {:?}", report.n_lowered(), report.casts.len(), report.n_activation_bytes_before, report.n_activation_bytes_after, report.n_cast_bytes, report.notes);
            if name.contains("resnet_block_f32") {
                for (op, t) in &report.totals { println!("   {op}: {} {}", t.lowered, t.kept); }
            }
            let narrow = oracle::run(&lowered, &arguments);
            let mut text = String::new();
            for ((i, n), (_, w)) in narrow.iter().zip(&wide) {
                let (d, m) = oracle::distance(n, w);
                let l2 = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
                let e = l2(&mut n.iter().zip(w).map(|(a, b)| a - b)) / l2(&mut w.iter().copied());
                text += &format!(" {i}:{:.4}/{:.4}", d / m, e);
            }
            println!("{text}");
        }
    }
}
