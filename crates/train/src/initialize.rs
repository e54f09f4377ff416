//! Initializes a run from the weights of another: selects variables from a file, and records their origin.
//!
//! It takes weights, and state that the network updates itself, such as a batch norm's statistics; not an optimizer's
//! slots and no position: it is a fresh run. A run that resumes from its own checkpoint is not initialized again.

use super::checkpoint::{Array, Checkpoint};
use super::device::shape_of;
use super::error::TrainError;
use super::program;
use super::spec::Spec;
use crate::weight_names::{self, Arrays, Given, Mapping, MappingSummary, Role, Rules, Wanted, WeightNameError};
use bf16scope_data::weights::{self, Format};
use bf16scope_hlo::words::nearest;
use bf16scope_model::graph::{Init, VariableInfo};
use bf16scope_model::optim::{Average, LOW};
use bf16scope_passes::name_matches;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::{Path, PathBuf};

/// Weights that a fresh run starts from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitializeFrom {
    /// A checkpoint of ours, or a file of weights.
    pub file: PathBuf,
    /// Patterns of variables that keep their initial values: `*` is any text, `?` any character.
    pub except: Vec<String>,
    /// Rules for its names: a family, or a file. Default the family that matches best.
    pub rules: Option<PathBuf>,
}

/// The initial weights of a run, and the source of every variable.
#[derive(Clone, Debug)]
pub struct Initialization {
    file: PathBuf,
    mapping: Mapping,
    /// In f32 storage.
    values: BTreeMap<String, Array>,
    record: Value,
}

impl InitializeFrom {
    /// Weights from this file, with default rules.
    pub fn new(file: impl Into<PathBuf>) -> InitializeFrom {
        InitializeFrom { file: file.into(), ..InitializeFrom::default() }
    }

    /// The weights that a run was initialized from, according to a checkpoint's record.
    pub(super) fn of_record(record: &Value) -> InitializeFrom {
        let is_family = |name: &str| Rules::all().iter().any(|rules| rules.family == name);
        let except = record["except"].as_array().map(Vec::as_slice).unwrap_or_default();
        InitializeFrom {
            file: record["file"].as_str().unwrap_or_default().into(),
            except: except.iter().filter_map(Value::as_str).map(str::to_string).collect(),
            // A file of rules is not recorded: the best family is used instead, and the values are compared.
            rules: record["rules"].as_str().filter(|name| is_family(name)).map(PathBuf::from),
        }
    }

    /// Reads the initial weights of a run of `spec`, before anything is compiled.
    ///
    /// # Errors
    /// A file that cannot be read; variables that are missing or do not fit; a pattern without a match; numbers that
    /// are not finite.
    pub fn read(&self, spec: &Spec) -> Result<Initialization, TrainError> {
        let wanted = weights_of(spec)?;
        let arrays = open(&self.file)?;
        self.read_from(&wanted, &*arrays)
    }

    fn read_from(&self, wanted: &[Wanted], arrays: &dyn Arrays) -> Result<Initialization, TrainError> {
        let is_excepted = self.excepted(wanted)?;
        let mapping = mapping(self.rules.as_deref(), wanted, arrays, &is_excepted)?;
        mapping.check(&arrays.name())?;
        let values = weight_names::values(arrays, &mapping, 1.0)?;
        let record = self.record(&mapping, &values);
        let values = values.into_iter().map(|(name, (shape, bytes))| (name, Array { shape, bytes })).collect();
        Ok(Initialization { file: self.file.clone(), mapping, values, record })
    }

    /// Selects the variables that keep their initial values.
    ///
    /// # Errors
    /// A pattern without a match.
    pub(super) fn excepted(&self, wanted: &[Wanted]) -> Result<impl Fn(&str) -> bool, WeightNameError> {
        let names = || wanted.iter().map(|wanted| wanted.name.as_str());
        if let Some(pattern) = self.except.iter().find(|pattern| !names().any(|name| name_matches(pattern, name))) {
            let near = nearest(pattern, names()).map(str::to_string);
            return Err(WeightNameError::Idle { pattern: pattern.clone(), near });
        }
        Ok(|name: &str| self.except.iter().any(|pattern| name_matches(pattern, name)))
    }

    /// The record in a checkpoint. Its hash covers names, shapes and values, so the file may change later.
    pub(super) fn record(&self, mapping: &Mapping, values: &BTreeMap<String, weight_names::Value>) -> Value {
        let mut hash = Sha256::new();
        for (name, (shape, bytes)) in values {
            hash.update(format!("{name} {shape}\n"));
            hash.update(bytes);
        }
        json!({
            "file": self.file.display().to_string(),
            "rules": mapping.family,
            "except": self.except,
            "sha256": bf16scope_files::hex(hash.finalize()),
        })
    }
}

/// Maps names by these rules, or by those that match best.
pub(super) fn mapping(
    rules: Option<&Path>,
    wanted: &[Wanted],
    arrays: &dyn Arrays,
    is_excepted: &dyn Fn(&str) -> bool,
) -> Result<Mapping, TrainError> {
    let entries = arrays.given();
    Ok(match rules {
        Some(rules) => {
            Mapping::from_rules(&Rules::read(rules).map_err(WeightNameError::from)?, wanted, &entries, is_excepted)
        }
        None => Mapping::from_best_family(wanted, &entries, is_excepted),
    })
}

impl Initialization {
    /// The weights file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The source of every variable.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The counts of the mapping.
    pub fn summary(&self) -> MappingSummary {
        self.mapping.summary()
    }

    /// The record in a checkpoint.
    pub(super) fn record(&self) -> &Value {
        &self.record
    }

    /// The initial state with these values replaced, in the storage that `variables` have; averages get the values of
    /// their variables.
    pub(super) fn into_state(
        self,
        variables: &[VariableInfo],
        initial: Checkpoint,
        seed: u64,
    ) -> Result<BTreeMap<String, Array>, TrainError> {
        let Initialization { file, mut values, .. } = self;
        let averages: Vec<(String, Array)> = variables
            .iter()
            .filter_map(|variable| Some((variable, values.get(Average::variable_of(&variable.name)?)?)))
            .filter(|(variable, value)| shape_of(variable) == value.shape)
            .map(|(variable, value)| (variable.name.clone(), value.clone()))
            .collect();
        values.extend(averages);
        let loaded = initial.holding(values).stored_as(&file, variables, seed)?;
        let mut state = initial.variables;
        state.extend(loaded.variables);
        Ok(state)
    }
}

/// The network's own variables in a training program of `spec`, stored in f32, in the program's order.
fn weights_of(spec: &Spec) -> Result<Vec<Wanted>, TrainError> {
    let all = variables_of(spec)?.into_iter().map(|(_, wanted)| wanted);
    Ok(all.filter(|wanted| matches!(wanted.role, Role::Weight | Role::Own)).collect())
}

/// Every variable of a training program of `spec`, stored in f32, in the program's order.
pub(super) fn variables_of(spec: &Spec) -> Result<Vec<(VariableInfo, Wanted)>, TrainError> {
    let mut objective = spec.objective.clone();
    objective.mesh = super::Mesh::default();
    objective.split = Vec::new();
    let batch = objective.accumulate.get();
    let program = program::training(&*spec.task, spec.precision, i64::from(batch), &objective)?;
    let tuning = &objective.tuning;
    // A task without predictions is built as an evaluation.
    let network = program::prediction(&*spec.task, spec.precision, 1, tuning)
        .or_else(|_| program::evaluation(&*spec.task, spec.precision, 1, tuning));
    let network = network.map(|network| network.program.variables).unwrap_or_default();
    let wanted = with_roles(&program.program.variables, &network);
    Ok(program.program.variables.into_iter().zip(wanted).collect())
}

/// The role of each variable of a training program: a variable that a prediction reads belongs to the network even if
/// it does not train.
fn with_roles(variables: &[VariableInfo], network: &[VariableInfo]) -> Vec<Wanted> {
    let names: BTreeSet<&str> = variables.iter().map(|variable| variable.name.as_str()).collect();
    let is_read = |name: &str| network.iter().any(|variable| variable.name == name);
    let role = |variable: &VariableInfo| {
        let name = variable.name.as_str();
        let about = name.rsplit_once('/').filter(|(of, _)| names.contains(of));
        match about {
            _ if variable.init == Init::RandomBits || !variable.dtype.is_float() => Role::Own,
            _ if variable.trainable || is_read(name) => Role::Weight,
            Some((of, _)) if Average::variable_of(name) == Some(of) => Role::Average { of: of.to_string() },
            Some((_, LOW)) => Role::Own,
            Some((of, slot)) => Role::Slot { of: of.to_string(), slot: slot.to_string() },
            None => Role::Own,
        }
    };
    let wanted = |variable: &VariableInfo| Wanted {
        name: variable.name.clone(),
        shape: shape_of(variable),
        role: role(variable),
    };
    variables.iter().map(wanted).collect()
}

/// Opens a weights file: a checkpoint of ours, which is verified, or another format.
pub(super) fn open(file: &Path) -> Result<Box<dyn Arrays>, TrainError> {
    let opened = weights::open(file).map_err(WeightNameError::from)?;
    if opened.format() != Format::Checkpoint {
        return Ok(Box::new(opened));
    }
    let checkpoint = Checkpoint::read(file)?;
    Ok(Box::new(TrainedArrays { file: file.to_path_buf(), checkpoint }))
}

/// A checkpoint of ours as a source of weights: its averages, where it has any, and bf16 with its remainders as f32.
struct TrainedArrays {
    file: PathBuf,
    checkpoint: Checkpoint,
}

impl Arrays for TrainedArrays {
    fn name(&self) -> String {
        self.file.display().to_string()
    }

    fn given(&self) -> Vec<Given> {
        let floats = self.checkpoint.variables.iter().filter(|(_, array)| array.shape.dtype.is_float());
        let entry = |(name, _): (&String, &Array)| {
            let read = self.checkpoint.as_trained(name)?;
            let (dtype, dims) = (Some(read.shape.dtype), read.shape.dims.clone());
            Some(Given { name: name.clone(), aliases: Vec::new(), dtype, dims, place: None })
        };
        floats.filter_map(entry).collect()
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
        match self.checkpoint.as_trained(name) {
            Some(array) => Ok(array.into_owned().bytes),
            None => Err(format!("there is no {name}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Objective;
    use bf16scope_hlo::DType;
    use bf16scope_model::models::{Model, cnn, mlp};
    use bf16scope_model::optim::{Average, Optimizer};

    fn spec(model: Model) -> Spec {
        Spec { batch: 2, ..Spec::new(model.task(0.0)) }
    }

    #[test]
    fn a_programs_variables_have_roles() {
        let mut spec = spec(Model::Cnn(cnn::Config::new([8, 8, 1], 3)));
        spec.objective = Objective { average: Some(Average::new(0.9)), ..Objective::default() };
        spec.objective.update.optimizer = Optimizer::ADAM;
        spec.objective.trainable = vec!["*/logits/*".to_string()];
        let all: Vec<Wanted> = variables_of(&spec).unwrap().into_iter().map(|(_, wanted)| wanted).collect();
        let role = |end: &str| all.iter().find(|wanted| wanted.name.ends_with(end)).map(|wanted| wanted.role.clone());
        // Frozen, but still a weight of the network.
        assert_eq!(role("block1/conv/kernel"), Some(Role::Weight));
        let kernel = all.iter().find(|wanted| wanted.name.ends_with("logits/kernel")).unwrap().name.clone();
        assert_eq!(role("logits/kernel/adam_m"), Some(Role::Slot { of: kernel.clone(), slot: "adam_m".to_string() }));
        assert_eq!(role("logits/kernel/average"), Some(Role::Average { of: kernel }));
        assert_eq!(role("block1/conv/kernel/adam_m"), None);
        assert!(weights_of(&spec).unwrap().iter().all(|wanted| !wanted.name.ends_with("adam_v")));
    }

    struct Two(Vec<Given>);

    impl Arrays for Two {
        fn name(&self) -> String {
            "two.npz".to_string()
        }

        fn given(&self) -> Vec<Given> {
            self.0.clone()
        }

        fn read(&self, name: &str) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
            let array = self.0.iter().find(|array| array.name == name).ok_or("no such array")?;
            let n = array.dims.iter().product::<i64>() as usize;
            Ok(vec![0x3F; n * array.dtype.map_or(0, DType::n_bytes)])
        }
    }

    #[test]
    fn every_misfit_says_what_it_is() {
        let spec = spec(Model::Mlp(mlp::Config { hidden: vec![3], ..mlp::Config::new([4], 2) }));
        let wanted = weights_of(&spec).unwrap();
        let entries_with = |changed: &dyn Fn(&mut Given)| {
            let entries = wanted.iter().filter(|wanted| wanted.role == Role::Weight).map(|wanted| {
                let (name, dims) = (wanted.name.clone(), wanted.shape.dims.clone());
                let mut entry = Given { name, aliases: Vec::new(), dtype: Some(DType::BF16), dims, place: None };
                changed(&mut entry);
                entry
            });
            Two(entries.collect())
        };
        let read = |except: &[&str], changed: &dyn Fn(&mut Given)| {
            let except = except.iter().map(|pattern| pattern.to_string()).collect();
            let from = InitializeFrom { except, ..InitializeFrom::new("two.npz") };
            from.read_from(&wanted, &entries_with(changed))
                .map(|read| read.summary().to_string())
                .map_err(|error| error.to_string())
        };
        let n = wanted.iter().filter(|wanted| wanted.role == Role::Weight).count();
        let all = format!("{n} of {n} variables taken by their own names, {n} widened");
        assert_eq!(read(&[], &|_| ()), Ok(all));
        // Another class count.
        let classes = |entries_with: &mut Given| {
            if entries_with.name.contains("logits") {
                *entries_with.dims.last_mut().unwrap() = 5;
            }
        };
        let error = read(&[], &classes).unwrap_err();
        assert!(
            error.starts_with(&format!("two.npz does not fit the model: 2 of its {n} variables\n"))
                && error.contains(
                    "mlp/logits/kernel is 5 along axis 1, expected 2: mlp/logits/kernel is [3, 5], expected [3, 2]"
                )
                && error.ends_with(
                    "for another number of classes, start them afresh: `except: ['mlp/logits/*']` under `train`"
                ),
            "{error}"
        );
        let fresh = read(&["mlp/logits/*"], &classes).unwrap();
        assert!(fresh.contains("start afresh: mlp/logits/kernel, mlp/logits/bias"), "{fresh}");
        // Transposed.
        let error = read(&[], &|entries_with| entries_with.dims.reverse()).unwrap_err();
        assert!(error.contains("fits transposed only") && error.contains("`transpose: [1, 0]`"), "{error}");
        // A near name.
        let error =
            read(&[], &|entries_with| entries_with.name = entries_with.name.replace("logits/bias", "logits/bais"))
                .unwrap_err();
        assert!(
            error.contains("mlp/logits/bias is missing: there is no mlp/logits/bias; did you mean mlp/logits/bais?"),
            "{error}"
        );
        // The kernel of that layer fits, but is not named in `except`.
        assert!(error.contains("start them afresh: `except: ['mlp/logits/bias']` under `train`"), "{error}");
        // Another model.
        let error =
            read(&[], &|entries_with| entries_with.name = format!("x.{}", entries_with.dims.len())).unwrap_err();
        assert!(error.contains("it is of another model, or its names are of another family, which has x."), "{error}");
        // A pattern without a match.
        assert_eq!(
            read(&["mlp/logit/*"], &|_| ()).unwrap_err(),
            "`mlp/logit/*` under `except` is the name of no variable: did you mean `mlp/logits/bias`?\nhelp: `*` is any text: \
             `*/logits/*` is all of a layer `logits`"
        );
        // Not floats.
        let error = read(&[], &|entries_with| entries_with.dtype = Some(DType::S32)).unwrap_err();
        assert!(error.contains("cannot be made of mlp/") && error.contains("which is s32"), "{error}");
    }

    #[test]
    fn what_is_not_finite_is_named() {
        struct One;
        impl Arrays for One {
            fn name(&self) -> String {
                "one.npz".to_string()
            }
            fn given(&self) -> Vec<Given> {
                vec![Given {
                    name: "w".to_string(),
                    aliases: Vec::new(),
                    dtype: Some(DType::F64),
                    dims: vec![2],
                    place: None,
                }]
            }
            fn read(&self, _name: &str) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
                Ok([1.0f64, 1e300].iter().flat_map(|value| value.to_le_bytes()).collect())
            }
        }
        let shape = bf16scope_hlo::ArrayShape::new(DType::F32, [2]);
        let wanted = [Wanted { name: "w".to_string(), shape, role: Role::Weight }];
        let error = InitializeFrom::new("one.npz").read_from(&wanted, &One).unwrap_err().to_string();
        assert!(
            error.starts_with("one.npz: w is not finite: element 1 of w would be inf\nhelp: ")
                && error.ends_with("or `variables: f32` if the number is only too large for what it is stored in"),
            "{error}"
        );
    }
}
