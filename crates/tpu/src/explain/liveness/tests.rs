//! Buffers of small scheduled modules, counted by hand.

use super::*;

/// The bytes at each step, and each temporary as `name first..last bytes`.
fn alive(text: &str) -> (Vec<u64>, Vec<String>) {
    let module = bf16scope_hlo::text::parse(text, "m").unwrap();
    bf16scope_hlo::verify::verify_ids(&module).unwrap();
    let liveness = analyse(&module).unwrap();
    let temporaries = liveness.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Temporary);
    let line = |buffer: &Buffer| {
        let maker = liveness.instruction(&module, liveness.values[buffer.values[0]].made_at);
        format!("{} {}..{} {}", maker.name, buffer.first, buffer.last, buffer.n_bytes)
    };
    (liveness.live.clone(), temporaries.map(line).collect())
}

#[test]
fn a_buffer_is_alive_from_its_making_to_its_last_reader() {
    let (live, temporaries) = alive(
        "HloModule m, is_scheduled=true
ENTRY m {
  x = f32[8,128]{1,0:T(8,128)} parameter(0)
  a = f32[8,128]{1,0:T(8,128)} negate(x)
  b = f32[1,128]{1,0:T(8,128)} slice(a), slice={[0:1], [0:128]}
  c = f32[8,128]{1,0:T(8,128)S(1)} negate(a)
  d = f32[8,128]{1,0:T(8,128)} add(c, a)
  ROOT t = (f32[8,128]{1,0:T(8,128)}, f32[1,128]{1,0:T(8,128)}) tuple(d, b)
}",
    );
    // `b` and `d` are outputs, `c` is on the chip.
    assert_eq!(temporaries, ["a 1..4 4096"]);
    assert_eq!(live, [0, 4096, 4096, 4096, 4096, 0]);
}

#[test]
fn a_result_takes_its_operands_memory_where_the_compiler_says_so() {
    let chain = |config: &str| {
        alive(&format!(
            "HloModule m, is_scheduled=true
ENTRY m {{
  x = f32[1024]{{0:T(256)}} parameter(0)
  a = f32[1024]{{0:T(256)}} negate(x)
  b = f32[1024]{{0:T(256)}} add(x, a){config}
  ROOT c = f32[1024]{{0:T(256)}} negate(b)
}}"
        ))
    };
    let config = r#", backend_config={"aliasing_operands":{"lists":[{"indices":["1","2"]}]}}"#;
    assert_eq!(chain(config).1, ["a 1..3 4096"]);
    assert_eq!(chain("").1, ["a 1..2 4096", "b 2..3 4096"]);
}

#[test]
fn arguments_written_over_are_no_temporaries() {
    let (live, temporaries) = alive(
        "HloModule m, is_scheduled=true, input_output_alias={ {1}: (0, {}, may-alias) }
ENTRY m {
  x = f32[1024]{0:T(256)} parameter(0)
  a = f32[1024]{0:T(256)} negate(x)
  b = f32[1024]{0:T(256)} negate(a)
  ROOT t = (f32[1024]{0:T(256)}, f32[1024]{0:T(256)}) tuple(a, b)
}",
    );
    assert_eq!((live, temporaries.len()), (vec![0; 4], 0));
}

#[test]
fn a_loop_keeps_its_state_in_place_and_adds_its_own() {
    let (live, temporaries) = alive(
        "HloModule m, is_scheduled=true
body {
  s = (f32[1024]{0:T(256)}, s32[]{:T(256)}) parameter(0)
  x = f32[1024]{0:T(256)} get-tuple-element(s), index=0
  i = s32[]{:T(256)} get-tuple-element(s), index=1
  y = f32[1024]{0:T(256)} negate(x)
  z = f32[1024]{0:T(256)} multiply(y, y)
  w = f32[1024]{0:T(256)} copy(z)
  ROOT r = (f32[1024]{0:T(256)}, s32[]{:T(256)}) tuple(w, i)
}
condition {
  s = (f32[1024]{0:T(256)}, s32[]{:T(256)}) parameter(0)
  i = s32[]{:T(256)} get-tuple-element(s), index=1
  ROOT p = pred[]{:T(1024)} compare(i, i), direction=LT
}
ENTRY m {
  x = f32[1024]{0:T(256)} parameter(0)
  i = s32[]{:T(256)} constant(0)
  a = f32[1024]{0:T(256)} negate(x)
  t = (f32[1024]{0:T(256)}, s32[]{:T(256)}) tuple(a, i)
  l = (f32[1024]{0:T(256)}, s32[]{:T(256)}) while(t), condition=condition, body=body
  b = f32[1024]{0:T(256)} get-tuple-element(l), index=0
  ROOT c = f32[1024]{0:T(256)} negate(b)
}",
    );
    // Steps: 4 of the entry, 3 of the condition, 7 of the body, then `while`, `b` and `c`.
    assert_eq!(temporaries, ["a 2..16 4096", "p 6..6 1024", "y 10..11 4096", "z 11..12 4096"]);
    assert_eq!(live[11], 3 * 4096);
    assert_eq!((live[6], live[13]), (4096 + 1024, 4096));
}

#[test]
fn what_cannot_be_explained_is_refused() {
    let error = |text: &str| analyse(&bf16scope_hlo::text::parse(text, "m").unwrap()).unwrap_err().to_string();
    assert_eq!(
        error("HloModule m\nENTRY m {\n  ROOT x = f32[] parameter(0)\n}"),
        "module `m` is not scheduled: what is alive when depends on the order of execution\nhelp: give a module that the \
         TPU compiler made (is_scheduled=true)"
    );
    let text = "HloModule m, is_scheduled=true
ENTRY m {
  x = (f32[]) parameter(0)
  ROOT y = f32[] get-tuple-element(x), index=1
}";
    assert_eq!(error(text), "m/%y: takes element 1, which its operand has not");
    let text = "HloModule m, is_scheduled=true
f {
  ROOT p = f32[] parameter(1)
}
ENTRY m {
  x = f32[] parameter(0)
  ROOT y = f32[] call(x), to_apply=f
}";
    assert_eq!(error(text), "f/%p: has no argument");
}

#[test]
fn a_module_that_calls_itself_out_of_hand_is_refused() {
    // Each computation calls the next twice: 2^40 steps.
    let mut text = "HloModule m, is_scheduled=true\nc40 {\n  ROOT x = f32[] parameter(0)\n}\n".to_string();
    for at in (0..40).rev() {
        let next = at + 1;
        text += &format!(
            "c{at} {{\n  x = f32[] parameter(0)\n  y = f32[] call(x), to_apply=c{next}\n  ROOT z = f32[] call(y), \
             to_apply=c{next}\n}}\n"
        );
    }
    text += "ENTRY m {\n  x = f32[] parameter(0)\n  ROOT y = f32[] call(x), to_apply=c0\n}\n";
    let module = bf16scope_hlo::text::parse(&text, "m").unwrap();
    let error = analyse(&module).unwrap_err();
    assert_eq!(error, ExplainError::TooLong { module: "m".to_string() });
}

#[test]
fn what_is_copied_meanwhile_stays_until_the_copy_is_done() {
    let (_, temporaries) = alive(
        "HloModule m, is_scheduled=true
ENTRY m {
  x = f32[1024]{0:T(256)} parameter(0)
  a = f32[1024]{0:T(256)} negate(x)
  s = (f32[1024]{0:T(256)}, f32[1024]{0:T(256)}, u32[]{:S(2)}) copy-start(a)
  b = f32[1024]{0:T(256)} negate(x)
  d = f32[1024]{0:T(256)} copy-done(s)
  c = f32[1024]{0:T(256)} add(b, d)
  ROOT e = f32[1024]{0:T(256)} negate(c)
}",
    );
    // The copy's own buffer is `s`: made at its start, and named by `d`. The context is not in HBM.
    assert_eq!(temporaries, ["a 1..4 4096", "s 2..5 4096", "b 3..5 4096", "c 5..6 4096"]);
}

#[test]
fn a_computation_that_runs_meanwhile_has_its_operands_until_it_is_done() {
    let (_, temporaries) = alive(
        "HloModule m, is_scheduled=true
inside {
  p = f32[1024]{0:T(256)} parameter(0)
  ROOT n = f32[1024]{0:T(256)} negate(p)
}
ENTRY m {
  x = f32[1024]{0:T(256)} parameter(0)
  a = f32[1024]{0:T(256)} negate(x)
  s = ((f32[1024]{0:T(256)}), f32[1024]{0:T(256)}, u32[]{:S(2)}) async-start(a), calls=inside
  u = ((f32[1024]{0:T(256)}), f32[1024]{0:T(256)}, u32[]{:S(2)}) async-update(s)
  b = f32[1024]{0:T(256)} negate(x)
  d = f32[1024]{0:T(256)} async-done(u)
  ROOT c = f32[1024]{0:T(256)} add(b, d)
}",
    );
    assert_eq!(temporaries, ["a 1..5 4096", "s 2..6 4096", "b 4..6 4096"]);
}

#[test]
fn a_choice_has_the_memory_of_its_branches_one_after_the_other() {
    let (live, temporaries) = alive(
        "HloModule m, is_scheduled=true
keeps {
  p = f32[1024]{0:T(256)} parameter(0)
  k = f32[1024]{0:T(256)} negate(p)
  l = f32[1024]{0:T(256)} negate(k)
  ROOT r = f32[1024]{0:T(256)} add(k, l)
}
plain {
  q = f32[1024]{0:T(256)} parameter(0)
  ROOT t = f32[1024]{0:T(256)} negate(q)
}
ENTRY m {
  i = s32[]{:T(256)} parameter(0)
  x = f32[1024]{0:T(256)} parameter(1)
  a = f32[1024]{0:T(256)} negate(x)
  b = f32[1024]{0:T(256)} negate(x)
  c = f32[1024]{0:T(256)} conditional(i, a, b), branch_computations={keeps, plain}
  ROOT d = f32[1024]{0:T(256)} negate(c)
}",
    );
    // Steps: 4 of the entry, 4 of `keeps`, 2 of `plain`, then `c` and `d`. Both branches write their result to `c`,
    // whose buffer is alive from the first of them; each operand dies when its branch is done with it.
    assert_eq!(temporaries, ["a 2..5 4096", "b 3..9 4096", "k 5..7 4096", "l 6..7 4096", "r 7..11 4096"]);
    assert_eq!(live[7], 4 * 4096);
}
