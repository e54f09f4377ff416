//! Shared weights: several parts of a network with one set of variables; see [`Scope::shared`].
//!
//! The request of a part is recorded, so that a later part gets the same variable, and a different request is an error
//! that names both lines.

use super::scope::Request;
use super::{Graph, Scope, Variable};
use bf16scope_hlo::ops::RuleError;
use bf16scope_hlo::{InstrId, Shape};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The shared parts of a graph.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The parts that are being built, outermost first.
    open: RefCell<Vec<SharedPart>>,
    /// For each shared path, the place of its first part.
    first: RefCell<BTreeMap<String, String>>,
    /// The variables that were declared in parts, by name.
    variables: RefCell<BTreeMap<String, Made>>,
}

/// One call of [`Scope::shared`].
#[derive(Debug)]
struct SharedPart {
    path: String,
    /// The place of the first part of this path, if this is a later one.
    first: Option<String>,
    asked: BTreeSet<String>,
}

/// A variable that was declared in a part, and the request for it.
#[derive(Debug)]
struct Made {
    /// The path of the innermost part.
    path: String,
    request: Request,
    variable: Variable,
}

impl Request {
    fn shape(&self) -> String {
        let read = Shape::array(self.requested, &self.dims[..]);
        let stored = if self.master == self.requested { String::new() } else { format!(" stored as {}", self.master) };
        let state = if self.trainable { "" } else { ", state that does not train" };
        format!("{read}{stored}{state}")
    }

    /// The difference from the first request, in words: (here, there).
    fn difference(&self, first: &Request) -> Option<(String, String)> {
        if self == first {
            return None;
        }
        let shapes = (self.shape(), first.shape());
        let is_init = shapes.0 == shapes.1;
        Some(if is_init { (format!("{:?}", self.init), format!("{:?}", first.init)) } else { shapes })
    }
}

impl Scope {
    /// [`Scope::within`] for a part of the network that is built several times with one set of variables, which the
    /// first part declares: the towers of a siamese network, an embedding that is also the last layer, a layer that is
    /// applied repeatedly. Each variable is one parameter with one initial value and one cast, and its gradients add
    /// up.
    ///
    /// Keras says this by calling one layer object twice, Flax by calling one submodule twice, TensorFlow 1 by
    /// `variable_scope(…, reuse=tf.AUTO_REUSE)`.
    ///
    /// ```
    /// use bf16scope_model::prelude::*;
    ///
    /// let g = Graph::new("siamese");
    /// let [left, right] = ["left", "right"].map(|name| g.input(name, DType::BF16, [8, 16]));
    /// let distance = g.bf16_scope(|s| {
    ///     let tower = |x: &Tensor| s.shared("tower", |s| nn::dense(s, x, "dense", &Dense { units: 4, ..Dense::default() }));
    ///     (tower(&left) - tower(&right)).abs()
    /// });
    /// let program = g.finish(&[("distance", &distance.cast(DType::F32))])?;
    /// let names: Vec<&str> = program.variables.iter().map(|variable| variable.name.as_str()).collect();
    /// assert_eq!(names, ["tower/dense/kernel", "tower/dense/bias"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A later part reads state as the first part set it ([`Graph::set_update`]), such as running means and the state
    /// of dropout: the means follow both parts, and each part drops its own elements.
    ///
    /// # Errors
    /// A later part that requests a variable in another shape, dtype or precision, with another initial value, or one
    /// that the first did not declare; the same name twice in one part. The error names both lines.
    #[track_caller]
    pub fn shared<R>(&self, level: &str, part: impl FnOnce(&Scope) -> R) -> R {
        let graph = self.graph();
        let place = graph.here();
        self.within(level, |s| {
            let shared = &graph.inner.shared;
            let path = s.path();
            let first = shared.first.borrow().get(&path).cloned();
            if first.is_none() {
                shared.first.borrow_mut().insert(path.clone(), place);
            }
            shared.open.borrow_mut().push(SharedPart { path, first, asked: BTreeSet::new() });
            let result = part(s);
            shared.open.borrow_mut().pop();
            result
        })
    }
}

impl Graph {
    /// The variable `name` if the open shared part has it already; an error if the request differs; `None` if the
    /// variable must be declared.
    pub(super) fn shared_variable(&self, name: &str, request: &Request) -> Result<Option<Variable>, RuleError> {
        let shared = &self.inner.shared;
        let mut open = shared.open.borrow_mut();
        let Some(part) = open.last_mut() else { return Ok(None) };
        if !part.asked.insert(name.to_string()) {
            return Ok(None);
        }
        let variables = shared.variables.borrow();
        match variables.get(name).filter(|previous| previous.path == part.path) {
            Some(previous) => match request.difference(&previous.request) {
                None => Ok(Some(self.as_set(previous))),
                Some((here, there)) => {
                    let place = self.place_of(previous.variable.stored.id);
                    let message = format!("{name} is asked for as {here}, but was made as {there} at {place}");
                    let error = RuleError::new("variable/shared", message);
                    Err(error.with_help(
                        "ask for what is shared in the same way each time; parts that learn apart have a `within` each",
                    ))
                }
            },
            None => match open.iter().find_map(|part| Some((&part.path, part.first.as_ref()?))) {
                Some((path, first)) if !self.inner.variable_names.borrow().contains(name) => {
                    let path = if path.is_empty() { "(unnamed)" } else { path };
                    let message =
                        format!("{name} is not among the variables of the shared {path}, first built at {first}");
                    let error = RuleError::new("variable/shared", message);
                    Err(error.with_help("make it in the first part too, or outside of `shared`"))
                }
                _ => Ok(None),
            },
        }
    }

    /// Records a declared variable, if a shared part is open.
    pub(super) fn remember_shared(&self, name: &str, request: Request, variable: &Variable) {
        if let Some(part) = self.inner.shared.open.borrow().last() {
            let declared = Made { path: part.path.clone(), request, variable: variable.clone() };
            self.inner.shared.variables.borrow_mut().insert(name.to_string(), declared);
        }
    }

    /// A variable as a later part reads it: state has its updated value.
    fn as_set(&self, previous: &Made) -> Variable {
        let variable = previous.variable.clone();
        let update = self.inner.variables.borrow()[variable.number].update;
        match update {
            Some(id) if !previous.request.trainable => Variable { value: self.tensor(id), ..variable },
            _ => variable,
        }
    }

    /// The file and line of an instruction.
    fn place_of(&self, id: InstrId) -> String {
        self.emitter().with_module(|module| {
            let metadata = &module.entry().instr(id).metadata;
            format!("{}:{}", metadata.source_file, metadata.source_line)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Init, Tensor, gradients};
    use crate::nn::{self, BatchNorm, Dense};
    use bf16scope_hlo::{DType, Metadata, Module};

    /// A module without names of instructions.
    fn anonymous(mut module: Module) -> Module {
        for computation in &mut module.computations {
            for (number, instr) in computation.instructions.iter_mut().enumerate() {
                instr.name = format!("i{number}");
                instr.metadata = Metadata::default();
            }
        }
        module
    }

    /// The program of a siamese network with its gradients; `tower` builds the towers.
    fn siamese(tower: impl Fn(&Scope, &Tensor) -> Tensor) -> Module {
        let g = Graph::training("siamese");
        let inputs = ["left", "right"].map(|name| g.input(name, DType::BF16, [8, 16]));
        let loss = g.bf16_scope(|s| {
            let [left, right] = inputs.each_ref().map(|x| tower(s, x).cast(DType::F32));
            let difference = left - right;
            (&difference * &difference).sum(&[0, 1])
        });
        let gradients = gradients(&loss, g.trainable_variables()).unwrap();
        let names = ["kernel", "bias"];
        let outputs: Vec<_> = names.into_iter().zip(&gradients).chain([("loss", &loss)]).collect();
        let program = g.finish(&outputs).unwrap();
        assert_eq!(program.variables.len(), 2);
        assert!(program.variables.iter().all(|variable| variable.dtype == DType::F32));
        anonymous(program.module)
    }

    #[test]
    fn a_layer_used_twice_is_the_network_of_explicit_variables() {
        let shared =
            siamese(|s, x| s.shared("tower", |s| nn::dense(s, x, "dense", &Dense { units: 4, ..Dense::default() })));
        let variables: RefCell<Option<[Variable; 2]>> = RefCell::default();
        let explicit = siamese(|s, x| {
            let Dense { kernel_initializer, bias_initializer, .. } = Dense::default();
            let known = variables.borrow().clone();
            let [kernel, product] = match &known {
                Some([kernel, _]) => [kernel.clone(), kernel.clone()],
                None => {
                    let kernel = s.variable("kernel", DType::BF16, [16, 4], kernel_initializer);
                    [kernel.clone(), kernel]
                }
            };
            let product = x.matmul(&product.value);
            let bias = match known {
                Some([_, bias]) => bias,
                None => s.variable("bias", DType::BF16, [4], bias_initializer),
            };
            let sum = product + &bias.value;
            variables.replace(Some([kernel, bias]));
            sum
        });
        assert_eq!(shared, explicit);
        // An input is read by a product and its gradient, a variable by its only cast.
        let parameters: Vec<InstrId> = (0..)
            .map(InstrId)
            .zip(&shared.entry().instructions)
            .filter(|(_, instr)| matches!(instr.op, bf16scope_hlo::Op::Parameter { .. }))
            .map(|(id, _)| id)
            .collect();
        let n_readers = |id: &InstrId| shared.entry().instructions.iter().filter(|i| i.operands.contains(id)).count();
        assert_eq!(parameters.iter().map(n_readers).collect::<Vec<_>>(), [2, 2, 1, 1]);
    }

    #[test]
    fn running_means_follow_both_parts() {
        let g = Graph::training("norm");
        let x = g.input("x", DType::F32, [8, 4]);
        let s = g.scope();
        let norm = |x: &Tensor| s.shared("norm", |s| nn::batch_norm(s, x, "bn", &BatchNorm::default()));
        let y = norm(&norm(&x));
        let variables = g.variables();
        assert_eq!(variables.len(), 4);
        let mean = variables.iter().find(|variable| variable.name == "norm/bn/moving_mean").unwrap();
        // mean - step, where the mean is the first part's update: parameter - step.
        let update = mean.update.unwrap();
        let operand = |id: InstrId| g.emitter().with_module(|module| module.entry().instr(id).operands[0]);
        let first = operand(update);
        assert_ne!(first, mean.instr);
        assert_eq!(operand(first), mean.instr);
        g.finish(&[("y", &y)]).unwrap();
    }

    /// Two parts that each request one variable; the error's first and last line without the file.
    fn refusal(second: impl FnOnce(&Scope)) -> String {
        let g = Graph::training("g");
        g.bf16_scope(|s| {
            s.shared("part", |s| s.variable("w", DType::BF16, [2, 3], Init::Zeros));
            s.shared("part", second);
        });
        let error = g.finish(&[]).unwrap_err().to_string();
        assert_eq!(error.matches("shared.rs:").count(), 2, "both lines are named: {error}");
        error.lines().next().unwrap().split(" at ").next().unwrap().replace("part/w: variable: ", "")
    }

    #[test]
    fn another_request_is_refused_with_both_lines() {
        let asked = |dtype, dims: [i64; 2], init| refusal(move |s| drop(s.variable("w", dtype, dims, init)));
        let cases = [
            (asked(DType::BF16, [3, 2], Init::Zeros), "bf16[3,2] stored as f32"),
            (asked(DType::F32, [2, 3], Init::Zeros), "f32[2,3]"),
            (asked(DType::BF16, [2, 3], Init::Ones), "Ones"),
            (
                refusal(|s| drop(s.state("w", DType::BF16, [2, 3], Init::Zeros))),
                "bf16[2,3] stored as f32, state that does not train",
            ),
            (refusal(|s| drop(s.in_f32(|s| s.variable("w", DType::BF16, [2, 3], Init::Zeros)))), "bf16[2,3]"),
        ];
        for (error, here) in cases {
            assert!(error.contains(&format!("part/w is asked for as {here}, but was made as ")), "{error}");
        }
        let whole = |second: &dyn Fn(&Scope)| {
            let g = Graph::training("g");
            g.bf16_scope(|s| {
                s.shared("part", |s| s.variable("w", DType::BF16, [2, 3], Init::Zeros));
                s.shared("part", second);
            });
            g.finish(&[]).unwrap_err().to_string()
        };
        let error = whole(&|s| drop(s.variable("w", DType::BF16, [2, 3], Init::Ones)));
        let help =
            "help: ask for what is shared in the same way each time; parts that learn apart have a `within` each";
        assert!(error.ends_with(help), "{error}");
        let error = whole(&|s| drop(s.variable("v", DType::BF16, [2, 3], Init::Zeros)));
        let message = "part/v is not among the variables of the shared part, first built at ";
        assert!(error.contains(message), "{error}");
        assert!(error.ends_with("help: make it in the first part too, or outside of `shared`"), "{error}");
        let error = refusal(|s| drop(s.variable("v", DType::BF16, [2, 3], Init::Zeros)));
        assert!(error.contains("part/v is not among the variables of the shared part, first built"), "{error}");
    }

    #[test]
    fn one_name_twice_in_a_part_or_outside_of_it_is_refused() {
        let error = |build: &dyn Fn(&Scope)| {
            let g = Graph::training("g");
            build(&g.scope());
            g.finish(&[]).unwrap_err().to_string()
        };
        let w = |s: &Scope| drop(s.variable("w", DType::F32, [2], Init::Zeros));
        let twice: [&dyn Fn(&Scope); 3] =
            [&|s| s.shared("part", |s| (w(s), w(s))).0, &|s| (s.shared("part", w), s.within("part", w)).0, &|s| {
                (s.within("part", w), s.shared("part", w)).0
            }];
        for build in twice {
            assert!(error(build).contains("a variable named part/w exists already"), "{}", error(build));
        }
    }

    /// A layer applied three times, in a part that is itself built twice.
    #[test]
    fn parts_nest() {
        let g = Graph::training("g");
        let x = g.input("x", DType::F32, [2, 2]);
        let s = g.scope();
        let block = |s: &Scope, x: &Tensor| {
            (0..3).fold(x.clone(), |x, _| {
                s.shared("layer", |s| nn::dense(s, &x, "dense", &Dense { units: 2, ..Dense::default() }))
            })
        };
        let y = s.shared("tower", |s| block(s, &x)) + s.shared("tower", |s| block(s, &x));
        let program = g.finish(&[("y", &y)]).unwrap();
        let names: Vec<&str> = program.variables.iter().map(|variable| variable.name.as_str()).collect();
        assert_eq!(names, ["tower/layer/dense/kernel", "tower/layer/dense/bias"]);
    }
}
