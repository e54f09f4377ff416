//! Every handle is freed, on error paths too. Alone in its process: the counts are the whole process's.

use crate::alone::alone;
use crate::run;
use crate::support;

use std::collections::BTreeMap;

use bf16scope::hlo::DType;
use bf16scope::pjrt::{Arg, CompileOptions, LiveHandles, Topology, live_handles};
use support::Program;

fn doubled() -> Vec<u8> {
    let mut program = Program::default();
    let x = program.parameter(DType::F32, &[2, 2]);
    let sum = program.push("add", DType::F32, &[2, 2], &[x, x]);
    let square = program.dot(DType::F32, &[2, 2], x, x);
    program.alias(0, 0);
    program.finish(&[sum, square])
}

#[test]
fn nothing_is_alive_after_runs_and_errors() {
    alone("pjrt_handles::nothing_is_alive_after_runs_and_errors", handles_of_a_process);
}

fn handles_of_a_process() {
    {
        let client = run::cpu().unwrap();
        let executable = client.compile(&doubled(), &CompileOptions::default()).unwrap();
        let mut state = client.buffer_from_host(&[0; 16], DType::F32, &[2, 2], 0).unwrap();
        for _ in 0..10 {
            state = executable.execute(vec![Arg::Donate(state)]).unwrap().swap_remove(0);
        }
        let alive = live_handles();
        let expected =
            LiveHandles { clients: 1, loaded_executables: 1, executables: 1, buffers: 1, ..LiveHandles::default() };
        assert_eq!(alive, expected);
        // Errors: of the compiler, of ours with a donated argument, of the topology's name.
        client.compile(&[], &CompileOptions::default()).unwrap_err();
        executable
            .execute(vec![Arg::Donate(state), Arg::Donate(client.buffer_from_host(&[], DType::F32, &[0], 0).unwrap())])
            .unwrap_err();
        if let Some(plugin) = client.plugin() {
            Topology::new(plugin, "nowhere", &BTreeMap::new()).unwrap_err();
        }
        // What outlives its client's variable keeps the client alive.
        drop(client);
        assert_eq!(live_handles(), LiveHandles { buffers: 0, ..expected });
    }
    assert_eq!(live_handles(), LiveHandles::default());
}
