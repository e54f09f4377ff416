//! Parses a policy: a preset's name, or a document.

use std::path::Path;

use super::StudyError;
use bf16scope_files as files;
use bf16scope_model::document::{self, Document, Value};
use bf16scope_passes::amp::{Policy, PolicyDocument, PolicyError};

/// The policy of a preset, of a file (a name that ends in `.yaml`, `.yml` or `.json`, or contains a folder), or of a
/// document in braces, such as `{keep: [head]}`.
///
/// # Errors
/// An unknown preset; a file that cannot be read; a document that is not a policy.
pub fn policy(name: &str) -> Result<Policy, StudyError> {
    if name.trim_start().starts_with('{') {
        return policy_of_text(name);
    }
    let path = Path::new(name);
    let is_file = path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|it| extension == *it));
    if !is_file && (name.starts_with("jmp:") || path.components().count() < 2) {
        return Policy::preset(name).map_err(|error| match error {
            error @ PolicyError::UnknownPreset { nearest: None, .. } => StudyError::unknown_preset(error),
            error => error.into(),
        });
    }
    let text = files::read_text(path, document::MAX_BYTES as u64);
    let text = text.map_err(|source| StudyError::read_policy(path, source))?;
    let document = Document::parse(name, &text)?;
    if document.root().value == Value::Null {
        return Err(StudyError::empty_policy(path));
    }
    Policy::try_from(document.read::<PolicyDocument>()?).map_err(|source| StudyError::not_a_policy(path, source))
}

/// The policy of a preset, or of a document given as text, which errors call `policy`.
///
/// # Errors
/// An unknown preset; a document that is not a policy.
pub fn policy_of_text(text: &str) -> Result<Policy, StudyError> {
    let is_preset = !text.contains([':', '\n']) || text.starts_with("jmp:");
    if is_preset && !text.trim_start().starts_with('{') {
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
        let in_braces = ["{dtype: f16}", " {\"dtype\": \"f16\"}\n"];
        assert!(in_braces.iter().all(|text| policy(text).unwrap() == policy_of_text("dtype: f16\n").unwrap()));
        let path = folder.path().join("p.json");
        std::fs::write(&path, in_braces[1]).unwrap();
        assert_eq!(policy(path.to_str().unwrap()).unwrap().dtype, policy(in_braces[0]).unwrap().dtype);
        let error = policy("{dtipe: f16}").unwrap_err().to_string();
        assert!(error.starts_with("policy:1:2: unknown key `dtipe`"), "{error}");
        let error = policy("{").unwrap_err().to_string();
        assert!(error.starts_with("policy:"), "{error}");
        let error = policy("mine").unwrap_err();
        assert_eq!(
            error.help(),
            Some("a policy of your own is a YAML file, such as `mine.yaml`, or its text in braces: `{keep: [head]}`")
        );
        let error = policy("no/such.yaml").unwrap_err().to_string();
        assert_eq!(error, "cannot read the policy no/such.yaml");
        let error = policy_of_text("dtipe: f16\n").unwrap_err().to_string();
        assert!(error.starts_with("policy:1:1: unknown key `dtipe`"), "{error}");
        let error = policy_of_text("allow: [dott]\n").unwrap_err().to_string();
        assert!(error.contains("dott"), "{error}");
    }
}
