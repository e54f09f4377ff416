//! Turns parameters into constants, and constants into parameters.
//!
//! A module that contains its weights as constants, as PyTorch/XLA traces one, is large as text, and its weights
//! cannot be replaced: [`lift`] turns large constants of the entry into parameters. [`bake`] is the inverse: it
//! specialises a module to the weights of one network. The computed values are the same, but a compiler may fold
//! constants.

use std::collections::BTreeMap;

use super::error::{PassError, PassErrorKind};
use bf16scope_hlo::verify::verify;
use bf16scope_hlo::{ArrayShape, InstrId, Literal, Module, Op, Shape};

/// The report of [`bake`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Baked {
    /// The parameters that became constants, by name.
    pub names: Vec<String>,
    /// The number of aliases and donors of these parameters, which were dropped.
    pub n_untied: usize,
}

/// A constant that became a parameter.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Lifted {
    /// The parameter's number.
    pub number: i64,
    /// Its name: the constant's.
    pub name: String,
    /// The value of the constant.
    pub value: Literal,
}

/// Turns parameters of the entry into constants, by number; the other parameters are renumbered.
///
/// # Errors
/// A number is not that of a parameter, a value has another dtype or other dims, or a compiler has scheduled the
/// module.
pub fn bake(module: &Module, values: &BTreeMap<i64, Literal>) -> Result<(Module, Baked), PassError> {
    check_source(module)?;
    let mut out = module.clone();
    let entry = out.entry;
    let mut names = Vec::new();
    let mut left = values.clone();
    for instr in &mut out.computations[entry.idx()].instructions {
        let Op::Parameter { number, .. } = instr.op else { continue };
        let Some(value) = left.remove(&number) else { continue };
        if value.shape() != instr.shape.without_layout() {
            let text = format!("parameter {number} is {}, and its value {}", instr.shape, value.shape());
            return Err(wrong(module, text));
        }
        if let (Literal::Array { bytes, .. }, Shape::Array(shape)) = (value, &instr.shape) {
            instr.op = Op::Constant(Literal::Array { shape: shape.clone(), bytes });
            names.push(instr.name.clone());
        }
    }
    if let Some((number, _)) = left.first_key_value() {
        return Err(wrong(module, format!("the entry has no parameter {number}")));
    }
    let n_untied = out.drop_parameters(module.entry().parameters().len(), |number| values.contains_key(&number));
    verify(&out).map_err(|errors| PassError::broken("baking", &errors))?;
    Ok((out, Baked { names, n_untied }))
}

/// Turns the entry's constants of at least `min_bytes` into parameters, behind the existing ones.
///
/// # Errors
/// The entry takes a tuple instead of arrays, or a compiler has scheduled the module.
pub fn lift(module: &Module, min_bytes: &u64) -> Result<(Module, Vec<Lifted>), PassError> {
    check_source(module)?;
    let is_tuple = |id: &InstrId| matches!(module.entry().instr(*id).shape, Shape::Tuple(_));
    if module.entry().parameters().iter().any(is_tuple) {
        return Err(wrong(module, "the entry takes a tuple, beside which there can be no parameters".to_string()));
    }
    let mut out = module.clone();
    let mut lifted = Vec::new();
    for id in module.entry().ids() {
        let instr = module.entry().instr(id);
        let Op::Constant(value @ Literal::Array { shape, bytes }) = &instr.op else { continue };
        if (bytes.len() as u64) < *min_bytes {
            continue;
        }
        // Values have no layout: their bytes are row-major.
        let shape = ArrayShape { layout: None, ..shape.clone() };
        let Literal::Array { bytes, .. } = value.clone() else { continue };
        let number = out.make_parameter(id);
        lifted.push(Lifted { number, name: instr.name.clone(), value: Literal::Array { shape, bytes } });
    }
    verify(&out).map_err(|errors| PassError::broken("lifting", &errors))?;
    Ok((out, lifted))
}

/// The error that a value, or the module, cannot be used.
fn wrong(module: &Module, text: String) -> PassError {
    PassError::new(PassErrorKind::Config, format!("{}: {text}", module.name))
}

fn check_source(module: &Module) -> Result<(), PassError> {
    match module.is_scheduled {
        true => Err(wrong(module, "a compiler has scheduled the module, and its memory is planned".to_string())),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::proto::{decode, encode};
    use bf16scope_hlo::text::{PrintOptions, parse, print};

    const TEXT: &str = "HloModule net, input_output_alias={ {0}: (1, {}, may-alias), {1}: (2, {}, may-alias) }, \
        entry_computation_layout={(f32[4]{0}, f32[2,3]{0,1}, s32[])->(f32[2,3]{0,1}, s32[])}, \
        allow_spmd_sharding_propagation_to_parameters={true,false,true}

ENTRY main {
  x = f32[4]{0} parameter(0)
  w = f32[2,3]{0,1} parameter(1), metadata={op_name=\"net/w\"}
  step = s32[] parameter(2)
  c = f32[4]{0} constant({1, 2, 3, 4})
  one = s32[] constant(1)
  sum = f32[4]{0} add(x, c)
  next = s32[] add(step, one)
  ROOT t = (f32[2,3]{0,1}, s32[]) tuple(w, next)
}
";

    fn read(text: &str) -> Module {
        let module = parse(text, "net").unwrap();
        verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
        module
    }

    fn shown(module: &Module) -> String {
        print(module, &PrintOptions::default())
    }

    #[test]
    fn a_parameter_becomes_a_constant_and_the_others_are_counted_anew() {
        let module = read(TEXT);
        let value = Literal::from_elements([2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let (baked, report) = bake(&module, &[(1, value)].into()).unwrap();
        assert_eq!((report.names, report.n_untied), (vec!["w".to_string()], 1));
        let text = shown(&baked);
        for part in [
            "input_output_alias={ {1}: (1, {}, may-alias) }",
            "entry_computation_layout={(f32[4]{0}, s32[])->(f32[2,3]{0,1}, s32[])}",
            "allow_spmd_sharding_propagation_to_parameters={true,true}",
            "w = f32[2,3]{0,1} constant({ { 1, 2, 3 }, { 4, 5, 6 } }), metadata={op_name=\"net/w\"}",
            "step = s32[] parameter(1)",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        // The same by proto, which also has names and shardings of parameters.
        let by_proto = decode::from_bytes(&encode::to_bytes(&module).unwrap()).unwrap();
        let value = Literal::from_elements([4], &[0.5f32; 4]);
        let (baked, _) = bake(&by_proto, &[(0, value)].into()).unwrap();
        let again = decode::from_bytes(&encode::to_bytes(&baked).unwrap()).unwrap();
        assert_eq!(again.entry().parameters().len(), 2);
    }

    #[test]
    fn large_constants_become_parameters_and_come_back() {
        let module = read(TEXT);
        let (lifted, all) = lift(&module, &16).unwrap();
        assert_eq!(all.iter().map(|one| (one.number, one.name.as_str())).collect::<Vec<_>>(), [(3, "c")]);
        let text = shown(&lifted);
        for part in [
            "entry_computation_layout={(f32[4]{0}, f32[2,3]{0,1}, s32[], f32[4]{0})->(f32[2,3]{0,1}, s32[])}",
            "allow_spmd_sharding_propagation_to_parameters={true,false,true,true}",
            "c = f32[4]{0} parameter(3)",
            "one = s32[] constant(1)",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        let values = all.into_iter().map(|one| (one.number, one.value)).collect();
        assert_eq!(shown(&bake(&lifted, &values).unwrap().0), shown(&module));
        assert_eq!(lift(&module, &17).unwrap().1, []);
        assert_eq!(lift(&module, &0).unwrap().1.len(), 2);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let module = read(TEXT);
        let refused = |number, value| bake(&module, &[(number, value)].into()).unwrap_err().to_string();
        assert_eq!(
            refused(1, Literal::from_elements([3, 2], &[0.0f32; 6])),
            "net: parameter 1 is f32[2,3]{0,1}, and its value f32[3,2]"
        );
        assert_eq!(
            refused(0, Literal::from_elements([4], &[0i32; 4])),
            "net: parameter 0 is f32[4]{0}, and its value s32[4]"
        );
        assert_eq!(refused(3, Literal::scalar(1.0f32)), "net: the entry has no parameter 3");
        let scheduled = read(&TEXT.replace("HloModule net,", "HloModule net, is_scheduled=true,"));
        let message = "net: a compiler has scheduled the module, and its memory is planned";
        assert_eq!(lift(&scheduled, &0).unwrap_err().to_string(), message);
        assert_eq!(bake(&scheduled, &BTreeMap::new()).unwrap_err().to_string(), message);
        let tuple = read(
            "HloModule net\n\nENTRY main {\n  t = (f32[4]) parameter(0)\n  c = f32[4] constant({1, 2, 3, 4})\n  e = f32[4] \
             get-tuple-element(t), index=0\n  ROOT s = f32[4] add(e, c)\n}\n",
        );
        assert_eq!(
            lift(&tuple, &0).unwrap_err().to_string(),
            "net: the entry takes a tuple, beside which there can be no parameters"
        );
    }
}
