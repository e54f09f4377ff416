//! Compilation for TPUs that are not here.
#[allow(dead_code)]
mod support;
use bf16scope::hlo::DType;
use bf16scope::pjrt::*;
use std::collections::BTreeMap;
use support::Program;

#[test]
fn probe() {
    let p = Plugin::tpu().unwrap();
    println!("{:?} {:?}", p.api_version(), p.attributes());
    for name in std::env::var("TOPO").unwrap_or("v2:2x2".into()).split(',') {
        match Topology::tpu(name, &BTreeMap::new()) {
            Err(e) => println!("TOPO {name}: {e}"),
            Ok(t) => {
                println!("TOPO {name}: {} {:?} {:?}", t.devices().len(), t.platform_name(), t.platform_version());
                println!("   {:?}", t.devices()[0]);
                let mut m = Program::default();
                let n = 256;
                let x = m.parameter(DType::F32, &[n, n]);
                let w = m.parameter(DType::F32, &[n, n]);
                let y = m.dot(DType::F32, &[n, n], x, w);
                m.alias(0, 0);
                let program = m.finish(&[y]);
                let start = std::time::Instant::now();
                match t.compile(&program, &CompileOptions::default()) {
                    Err(e) => println!("   compile {e}"),
                    Ok(c) => {
                        println!("   {:?} {:?}", start.elapsed(), c.memory_stats());
                        println!("   {:?}", c.cost_analysis());
                        println!("   {:?} {:?}", c.outputs(), c.fingerprint().map(|x| x.len()));
                        let o = c.optimized_program().unwrap();
                        std::fs::write(format!("/tmp/pjrtsz/opt_{}.pb", name.replace(':', "_")), &o).unwrap();
                        println!("   {}", String::from_utf8_lossy(&o).contains("estimated_cycles"));
                    }
                }
            }
        }
    }
    println!("{:?}", live_handles());
}
