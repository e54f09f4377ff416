//! Agreements between the sessions of a slice's hosts: whether to continue, and that all make the same steps.

use super::{Session, Wish};
use crate::checkpoint::DataIdentity;
use crate::error::{TrainError, TrainErrorKind, TrainPlace};
use crate::resume::settings;
use crate::spec::Spec;
use serde_json::json;
use sha2::{Digest, Sha256};

/// A difference between hosts: the version.
const VERSION: &str = "version of bf16scope";
/// The experiment.
const EXPERIMENT: &str = "experiment";
/// The data.
const DATA: &str = "content of the data";
/// The state.
const STATE: &str = "checkpoint";

/// 32-bit words in a SHA-256.
const N_DIGEST_WORDS: usize = 8;

/// Words of the digests that hosts compare: version, experiment, data and state.
const N_IDENTITY_WORDS: usize = 4 * N_DIGEST_WORDS;

impl Session {
    /// Combines the wishes of all hosts: any host may stop or end the run, and the first decides when to save.
    ///
    /// # Errors
    /// When another host has failed; when the plugin fails.
    pub(crate) fn agree(&self, wish: Wish) -> Result<Wish, TrainError> {
        let Some(exchange) = &self.exchange else { return Ok(wish) };
        let all = exchange.say([wish.stop, wish.save, wish.failed, wish.reduce].map(i32::from))?;
        let is_own = |host: usize| host == self.site.host as usize;
        match all.iter().position(|&[_, _, failed, _]| failed != 0) {
            // A host that failed has a better error of its own.
            Some(_) if wish.failed => Ok(wish),
            Some(host) if !is_own(host) => Err(other_host(host)),
            _ => Ok(Wish {
                stop: all.iter().any(|&[stop, ..]| stop != 0),
                save: all[0][1] != 0,
                reduce: all[0][3] != 0,
                failed: false,
            }),
        }
    }

    /// Returns one host's result, after all hosts know that each has succeeded.
    ///
    /// # Errors
    /// Its own error; a failure of another host.
    pub(crate) fn together<T>(&self, result: Result<T, TrainError>) -> Result<T, TrainError> {
        let agreed = self.agree(Wish { failed: result.is_err(), ..Wish::default() });
        let result = result?;
        agreed.map(|_| result)
    }

    /// Checks that all hosts are about to make the same steps.
    ///
    /// # Errors
    /// A host that differs.
    pub(crate) fn check_hosts(&self, n_epochs: u64, data: &DataIdentity) -> Result<(), TrainError> {
        let Some(exchange) = &self.exchange else { return Ok(()) };
        let all = exchange.say(self.identity_of_run(n_epochs, data))?;
        for (what, words) in [VERSION, EXPERIMENT, DATA, STATE].into_iter().zip(0..) {
            let digest = |host: &[i32; N_IDENTITY_WORDS]| host.as_chunks::<N_DIGEST_WORDS>().0[words];
            if let Some(host) = all.iter().position(|host| digest(host) != digest(&all[0])) {
                return Err(host_differs(host, what));
            }
        }
        Ok(())
    }

    /// The digests that hosts compare: of the version, of the experiment, of the data and of the state. They hash
    /// canonical JSON with sorted keys, not text that a compiler formats.
    fn identity_of_run(&self, n_epochs: u64, data: &DataIdentity) -> [i32; N_IDENTITY_WORDS] {
        let Spec { precision, batch, seed, steps_per_call, .. } = &self.spec;
        let asked = json!({
            "settings": settings(&self.spec),
            "precision": precision.to_string(),
            "batch": batch,
            "seed": seed,
            "n_epochs": n_epochs,
            "steps_per_call": steps_per_call.to_string(),
        });
        let state = self.resumed.as_ref().map_or([0; 32], |resumed| resumed.state);
        let initialized = self.initialized.as_ref().map(|record| record["sha256"].to_string()).unwrap_or_default();
        let start = [self.step.to_le_bytes().as_slice(), &state, initialized.as_bytes()].concat();
        let digests = [
            Sha256::digest(env!("CARGO_PKG_VERSION")),
            Sha256::digest(asked.to_string()),
            Sha256::digest(json!(data).to_string()),
            Sha256::digest(start),
        ];
        let mut words = [0; N_IDENTITY_WORDS];
        let bytes: Vec<u8> = digests.into_iter().flatten().collect();
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = i32::from_le_bytes(*bytes);
        }
        words
    }
}

/// The error when another host of the slice ended the run.
fn other_host(host: usize) -> TrainError {
    let text = format!("host {host} ended the run, and no host goes on without it");
    TrainError::new(TrainErrorKind::Hosts, TrainPlace::Nowhere, text).with_help("it says why on its standard error")
}

/// The error of the first host whose `what` differs from host 0's.
fn host_differs(host: usize, what: &str) -> TrainError {
    let text = format!("host {host} has another {what} than host 0, and all hosts of a slice make the same steps");
    TrainError::new(TrainErrorKind::Hosts, TrainPlace::Nowhere, text).with_help(match what {
        VERSION => "install the same bf16scope on each",
        STATE => "give each host the same checkpoint to go on from, on shared storage or as a copy",
        _ => "run the same command with the same files on each",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_data::Fingerprint;
    use bf16scope_model::models::{Model, mlp};
    use bf16scope_pjrt::{Client, Platform, Setup};

    /// Hosts used to compare 32 bits of each, of a type's debug format.
    #[test]
    fn hosts_compare_whole_digests_of_canonical_text() {
        let client = Client::for_platform(&Platform::cpu(), &Setup::from_env()).unwrap();
        let model = Model::Mlp(mlp::Config { hidden: vec![3], ..mlp::Config::new([4], 2) });
        let session = Session::new(&client, Spec { batch: 2, ..Spec::new(model.task(0.0)) }).unwrap();
        let fingerprint = |hash: &str| {
            let arrays = [("a".to_string(), hash.to_string())];
            Fingerprint { n_examples: 2, arrays: arrays.into_iter().collect() }
        };
        let data = |hash| DataIdentity {
            training: fingerprint(hash),
            test: fingerprint("1f"),
            classes: Default::default(),
            learnt: None,
        };
        let digests = |n_epochs, hash| {
            let words = session.identity_of_run(n_epochs, &data(hash));
            words.as_chunks::<N_DIGEST_WORDS>().0.iter().map(|digest| digest.map(i32::to_le_bytes)).collect::<Vec<_>>()
        };
        let ours = digests(3, "0e");
        let text = concat!(
            r#"{"test":{"arrays":{"a":"1f"},"n_examples":2},"#,
            r#""training":{"arrays":{"a":"0e"},"n_examples":2}}"#
        );
        assert_eq!(ours[2].as_flattened(), &Sha256::digest(text)[..]);
        let same = |other: Vec<_>| (0..4).map(|number| ours[number] == other[number]).collect::<Vec<_>>();
        assert_eq!(same(digests(3, "0e")), [true; 4]);
        assert_eq!(same(digests(4, "0e")), [true, false, true, true]);
        assert_eq!(same(digests(3, "0f")), [true, true, false, true]);
    }

    #[test]
    fn a_host_that_differs_or_ends_is_named() {
        assert_eq!(
            other_host(2).to_string(),
            "host 2 ended the run, and no host goes on without it\nhelp: it says why on its standard error"
        );
        for (what, help) in [
            (VERSION, "install the same bf16scope on each"),
            (EXPERIMENT, "run the same command with the same files on each"),
            (STATE, "give each host the same checkpoint to go on from, on shared storage or as a copy"),
        ] {
            let text = "and all hosts of a slice make the same steps";
            assert_eq!(
                host_differs(1, what).to_string(),
                format!("host 1 has another {what} than host 0, {text}\nhelp: {help}")
            );
        }
    }
}
