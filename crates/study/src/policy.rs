//! From what a user says to a policy: a preset's name, or a document.

use std::path::Path;

use super::StudyError;
use bf16scope_files as files;
use bf16scope_model::document::{self, Document, Value};
use bf16scope_passes::amp::{Policy, PolicyDocument};

/// A preset's policy, or that of a file: what ends in `.yaml` or `.yml`, or has a folder in it.
///
/// # Errors
/// A name of no preset; a file that cannot be read, or is no policy.
pub fn policy(name: &str) -> Result<Policy, StudyError> {
    let path = Path::new(name);
    let is_file = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    if !is_file && (name.starts_with("jmp:") || path.components().count() < 2) {
        return Ok(Policy::preset(name)?);
    }
    let text = files::read_text(path, document::MAX_BYTES as u64);
    let text = text.map_err(|source| StudyError::read_policy(path, source))?;
    let document = Document::parse(name, &text)?;
    if document.root().value == Value::Null {
        return Err(StudyError::empty_policy(path));
    }
    Policy::try_from(document.read::<PolicyDocument>()?).map_err(|source| StudyError::not_a_policy(path, source))
}

/// A preset's policy, or that of a document: its text, which errors call `policy`.
///
/// # Errors
/// A name of no preset; a document that is no policy.
pub fn policy_of_text(text: &str) -> Result<Policy, StudyError> {
    if !text.contains([':', '\n']) || text.starts_with("jmp:") {
        return Ok(Policy::preset(text)?);
    }
    Ok(Policy::try_from(document::from_str::<PolicyDocument>("policy", text)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_and_a_document_are_told_apart() {
        let o1 = Policy::preset("O1").unwrap();
        assert_eq!((policy("O1").unwrap(), policy_of_text("O1").unwrap()), (o1.clone(), o1));
        let text = "dtype: f16\n";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.yaml");
        std::fs::write(&path, text).unwrap();
        assert_eq!(policy(path.to_str().unwrap()).unwrap(), policy_of_text(text).unwrap());
        assert_eq!(policy_of_text("jmp:params=f32,compute=bf16,output=f32").unwrap().dtype, Policy::default().dtype);
        let error = policy("no/such.yaml").unwrap_err().to_string();
        assert_eq!(error, "cannot read the policy no/such.yaml");
        let error = policy_of_text("dtipe: f16\n").unwrap_err().to_string();
        assert!(error.starts_with("policy:1:1: unknown key `dtipe`"), "{error}");
        let error = policy_of_text("allow: [dott]\n").unwrap_err().to_string();
        assert!(error.contains("dott"), "{error}");
    }
}
