//! A session's checkpoints: writes its state to one, resumes from one, and restarts the run.

use super::{Resumed, Session, State};
use crate::change::Change;
use crate::checkpoint::{Array, Checkpoint, CheckpointError, DataIdentity, Position, Settings};
use crate::device::{download, initial_state, shape_of, upload_state};
use crate::error::TrainError;
use crate::initialize::{Initialization, InitializeFrom};
use crate::resume::other_run;
use crate::resume::{INITIALIZED, Resumption, check_data as check_resumed_data, settings, stores_otherwise};
use crate::spec::Spec;
use bf16scope_data::{DrawVersion, ORDER_VERSION};
use bf16scope_hlo::{ArrayShape, DType};
use bf16scope_model::graph::VariableInfo;
use bf16scope_model::optim::Update;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

impl Session {
    /// The state on the host: variables and slots by name.
    ///
    /// # Errors
    /// When the plugin fails.
    pub fn state(&self) -> Result<BTreeMap<String, Array>, TrainError> {
        let (state, here) = (self.state.buffers()?, self.here());
        let host = |(number, variable): (usize, &VariableInfo)| {
            let array = Array { shape: shape_of(variable), bytes: download(variable, number, state, here)? };
            Ok((variable.name.clone(), array))
        };
        self.variables().iter().enumerate().map(host).collect()
    }

    /// A checkpoint of the present state.
    ///
    /// # Errors
    /// When the plugin fails.
    pub fn checkpoint(&self, steps_per_epoch: u64) -> Result<Checkpoint, TrainError> {
        let Spec { precision, batch, seed, .. } = &self.spec;
        let (order, draws, precision) = (ORDER_VERSION, self.draws.number(), *precision);
        let position =
            Position { step: self.step, steps_per_epoch, batch: *batch, seed: *seed, precision, order, draws };
        let (settings, function) = (self.settings(), self.function.clone());
        Ok(Checkpoint { position, settings, function, data: None, callbacks: None, variables: self.state()? })
    }

    /// The settings of the run, and the weights that it was initialized from.
    pub fn settings(&self) -> Settings {
        let mut settings = settings(&self.spec);
        if let Some(initialized) = &self.initialized {
            settings.0["train"][INITIALIZED] = initialized.clone();
        }
        settings
    }

    /// Initializes the session with weights of another run or another framework, before the first step. Slots keep
    /// their initial values; averages start from these weights.
    ///
    /// # Errors
    /// A number that is too large for its storage. After a failure of the plugin the state is lost.
    pub fn initialize(&mut self, initialization: Initialization) -> Result<(), TrainError> {
        let (file, record) = (initialization.file().display().to_string(), initialization.record().clone());
        let initial = self.checkpoint(1)?;
        let state = initialization.into_state(self.variables(), initial, self.spec.seed)?;
        let arrays: Vec<&Array> = self.variables().iter().map(|variable| &state[&variable.name]).collect();
        self.state = State::Lost(format!("initializing from {file} failed"));
        self.state = State::Held(upload_state(&self.client, self.variables(), &arrays, &self.site)?);
        self.initialized = Some(record);
        Ok(())
    }

    /// Restarts the run from initial values of its seed, or from the weights that it was initialized from, which are
    /// read again.
    ///
    /// # Errors
    /// Weights that cannot be read, or have changed. After a failure of the plugin the state is lost.
    pub fn restart(&mut self) -> Result<(), TrainError> {
        let before = self.initialized.take();
        let initialization =
            before.as_ref().map(|record| InitializeFrom::of_record(record).read(&self.spec)).transpose();
        let initialization = initialization.inspect_err(|_| self.initialized.clone_from(&before))?;
        if let Some((before, now)) = before.as_ref().zip(initialization.as_ref())
            && before["sha256"] != now.record()["sha256"]
        {
            let text = |record: &serde_json::Value| record["sha256"].as_str().unwrap_or_default().to_string();
            let change = Change::new("train.initialize_from.sha256", text(before), text(now.record()));
            let path = now.file().to_path_buf();
            self.initialized.clone_from(&Some(before.clone()));
            return Err(other_run(&path, &[change]));
        }
        self.state = State::Lost("going back to the initial state failed".to_string());
        self.state = State::Held(initial_state(&self.client, self.variables(), &self.spec, &self.site)?);
        (self.step, self.draws, self.resumed, self.last) = (0, DrawVersion::default(), None, None);
        (self.reduced, self.callbacks) = (self.reduced.map(|_| self.spec.objective.update.unreduced()), None);
        initialization.map_or(Ok(()), |initialization| self.initialize(initialization))
    }

    /// Resumes from a checkpoint, read from `path`. Returns the allowed changes of settings; `resumption` can allow
    /// more changes of the task. If the storage of `variables` or `slots` differs, they are converted: f32 is rounded
    /// to nearest, bf16 is widened exactly.
    ///
    /// # Errors
    /// A checkpoint that no run writes, of another task, or of a run with other settings that may not change; the
    /// session is then unchanged. After a failure of the plugin the state is lost.
    pub fn restore(
        &mut self,
        path: &Path,
        checkpoint: &Checkpoint,
        resumption: Resumption,
    ) -> Result<Vec<Change>, TrainError> {
        checkpoint.check().map_err(|fault| CheckpointError::Unsound { path: path.to_path_buf(), fault })?;
        let converted = match stores_otherwise(checkpoint, &self.spec) {
            true => Some(checkpoint.stored_as(path, self.variables(), self.spec.seed)?),
            false => None,
        };
        let checkpoint = converted.as_ref().unwrap_or(checkpoint);
        let wanted = self.variables().iter().map(|variable| (variable.name.as_str(), shape_of(variable)));
        let average = self.spec.objective.average.as_ref();
        let reduced = self.reduced_of(checkpoint);
        let is_reduced = |name: &str| name == Update::REDUCED && reduced.is_some();
        let array = reduced
            .map(|reduced| Array { shape: ArrayShape::new(DType::F32, []), bytes: reduced.to_le_bytes().to_vec() });
        let others: Vec<_> = wanted.filter(|(name, _)| !is_reduced(name)).collect();
        let mut arrays = checkpoint.resumed(path, &others, average)?;
        if let Some(array) = &array
            && let Some(number) = self.variables().iter().position(|variable| is_reduced(&variable.name))
        {
            arrays.insert(number, array);
        }
        let changes = resumption.check(path, checkpoint, &self.spec)?;
        // Frees the old state first: there is memory for two states, and the checkpoint is one of them.
        self.state = State::Lost(format!("restoring {} failed", path.display()));
        self.state = State::Held(upload_state(&self.client, self.variables(), &arrays, &self.site)?);
        self.step = checkpoint.position.step;
        self.draws = DrawVersion::from_number(checkpoint.position.draws).unwrap_or_default();
        self.initialized = checkpoint.settings.0["train"].get(INITIALIZED).cloned();
        (self.last, self.reduced, self.callbacks) = (None, reduced, checkpoint.callbacks.clone());
        let steps_per_epoch = checkpoint.position.steps_per_epoch;
        let data = checkpoint.data.clone();
        let state = match &self.exchange {
            None => [0; 32],
            Some(_) => {
                arrays.iter().fold(Sha256::new(), |hash, array| hash.chain_update(&array.bytes)).finalize().into()
            }
        };
        self.resumed = Some(Resumed { path: path.to_path_buf(), steps_per_epoch, data, state });
        Ok(changes)
    }

    /// The factor of a reducible learning rate after this checkpoint: the old one, unless the schedule has changed.
    fn reduced_of(&self, checkpoint: &Checkpoint) -> Option<f32> {
        let now = settings(&self.spec).0;
        let is_same =
            ["learning_rate", "warm_up"].iter().all(|key| now["train"][key] == checkpoint.settings.0["train"][key]);
        let before = checkpoint.variables.get(Update::REDUCED).filter(|_| is_same);
        let before = before.and_then(|array| Some(f32::from_le_bytes(array.bytes.as_slice().try_into().ok()?)));
        self.reduced.map(|_| before.unwrap_or_else(|| self.spec.objective.update.unreduced()))
    }

    /// The version of random crops, flips and masks with which the run began.
    pub(crate) fn draws(&self) -> DrawVersion {
        self.draws
    }

    /// The checkpoint that it resumed from, if any.
    pub(crate) fn resumed_from(&self) -> Option<&Path> {
        self.resumed.as_ref().map(|resumed| resumed.path.as_path())
    }

    /// Checks that the data of a run are those of the checkpoint that it resumed from.
    ///
    /// # Errors
    /// Other data: other examples, another order, or another number of batches.
    pub fn check_resumed(&self, steps_per_epoch: u64, data: &DataIdentity) -> Result<(), TrainError> {
        let Some(resumed) = &self.resumed else { return Ok(()) };
        if let Some(before) = &resumed.data {
            check_resumed_data(&resumed.path, before, data)?;
        }
        match resumed.steps_per_epoch == steps_per_epoch {
            true => Ok(()),
            false => {
                let (before, now) = (resumed.steps_per_epoch.to_string(), steps_per_epoch.to_string());
                Err(other_run(&resumed.path, &[Change::new("data.steps_per_epoch", before, now)]))
            }
        }
    }

    /// As [`Session::checkpoint`], on the first host of a slice; the others take part in gathering sharded variables.
    pub(crate) fn checkpoint_of_first(&self, steps_per_epoch: u64) -> Result<Option<Checkpoint>, TrainError> {
        if self.site.is_first() {
            return self.checkpoint(steps_per_epoch).map(Some);
        }
        let (state, here) = (self.state.buffers()?, self.here());
        for (number, variable) in self.variables().iter().enumerate().filter(|(_, variable)| variable.part.is_some()) {
            download(variable, number, state, here)?;
        }
        Ok(None)
    }
}
