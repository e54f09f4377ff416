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
        let client = run::own_client();
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

#[test]
fn a_client_keeps_the_programs_that_it_was_last_asked_for() {
    alone("pjrt_handles::a_client_keeps_the_programs_that_it_was_last_asked_for", kept_in_a_process);
}

fn kept_in_a_process() {
    let client = run::own_client().keeping(2);
    let programs = || live_handles().loaded_executables;
    let compile = |opcode: &str, options: &CompileOptions| {
        let mut program = Program::default();
        let x = program.parameter(DType::F32, &[]);
        let value = program.push(opcode, DType::F32, &[], &[x, x]);
        client.compile(&program.finish(&[value]), options)
    };
    let once = CompileOptions::default();
    let other = CompileOptions { allow_excess_precision: true, ..CompileOptions::default() };
    let of_three = |opcode: &str, expected: f32| {
        let executable = compile(opcode, &once).unwrap();
        let x = client.buffer_from_host(&3f32.to_le_bytes(), DType::F32, &[], 0).unwrap();
        let value = executable.execute(vec![Arg::Keep(&x)]).unwrap().remove(0).to_host().unwrap();
        assert_eq!(value, expected.to_le_bytes(), "{opcode}");
    };
    of_three("add", 6.0);
    assert_eq!(programs(), 1);
    // The same one again, from two threads too.
    std::thread::scope(|scope| {
        [scope.spawn(|| of_three("add", 6.0)), scope.spawn(|| of_three("add", 6.0))].map(|it| it.join().unwrap())
    });
    assert_eq!(programs(), 1);
    // Another program; another option; and the one that was asked for first is let go.
    of_three("multiply", 9.0);
    assert_eq!(programs(), 2);
    // (xla-rs sets the option for whole processes.)
    let held = match client.plugin() {
        Some(_) => compile("multiply", &other).unwrap(),
        None => compile("divide", &once).unwrap(),
    };
    assert_eq!(programs(), 2);
    of_three("multiply", 9.0);
    assert_eq!(programs(), 2);
    of_three("subtract", 0.0);
    assert_eq!(programs(), 3, "what somebody holds stays as long");
    drop(held);
    assert_eq!(programs(), 2);
    // A program that cannot be compiled is an error each time.
    for _ in 0..2 {
        client.compile(&[], &once).unwrap_err();
    }
    drop(client);
    assert_eq!(live_handles(), LiveHandles::default());
}
