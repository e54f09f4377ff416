//! The names of a Parquet file's columns and the types of their values.
//!
//! A column is a leaf of the schema. Its name joins the fields on the way with dots, without the wrappers that lists
//! put around their elements: `labels`, `box.left`, `objects.bbox`. An image as Hugging Face writes it, a struct of
//! `bytes` and `path`, takes the struct's name: its bytes are the column `image`, its path is `image.path`.

use std::collections::BTreeMap;

use parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use parquet::file::metadata::FileMetaData;
use parquet::schema::types::{ColumnDescriptor, Type};

/// The type of a column's values in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Bytes,
    Ints,
    /// Unsigned whole numbers.
    Unsigned,
    Floats,
    /// Floats of 16 bits.
    Halves,
}

/// The unsupported type of columns that have one name: which of them is meant, only their writer knows.
pub(super) const TWICE: &str = "there twice";

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// The type of its values, or the name of an unsupported type.
    pub(super) kind: Result<ValueKind, String>,
}

/// Metadata of a file written by Hugging Face's `datasets`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HuggingFace {
    /// Names of the classes of the first column that has any.
    pub(super) classes: Vec<String>,
    /// Columns of images.
    pub(super) images: Vec<String>,
}

/// The columns of a file, in its order.
pub(super) fn columns(file: &FileMetaData) -> Vec<Column> {
    let schema = file.schema_descr();
    let mut names = Vec::new();
    for field in schema.root_schema().get_fields() {
        collect(field, String::new(), &mut names);
    }
    let mut n_of_name: BTreeMap<String, usize> = BTreeMap::new();
    names.iter().for_each(|name| *n_of_name.entry(name.clone()).or_default() += 1);
    let column = |(idx, name): (usize, String)| {
        let kind = if n_of_name[&name] > 1 { Err(TWICE.to_string()) } else { kind(&schema.column(idx)) };
        Column { name, kind }
    };
    names.into_iter().enumerate().map(column).collect()
}

/// Collects the names of the leaves below a field.
fn collect(field: &Type, before: String, names: &mut Vec<String>) {
    let name = if before.is_empty() { field.name().to_string() } else { format!("{before}.{}", field.name()) };
    within(field, name, names);
}

/// Collects the names of the leaves of a field called `name`.
fn within(field: &Type, name: String, names: &mut Vec<String>) {
    if field.is_primitive() {
        names.push(name);
        return;
    }
    let fields = field.get_fields();
    let is_list = field.get_basic_info().converted_type() == ConvertedType::LIST
        || field.get_basic_info().logical_type_ref() == Some(&LogicalType::List);
    if let (true, [repeated]) = (is_list, fields) {
        // A list's element is within a repeated group; in old files the element itself is repeated.
        return match (repeated.is_group().then(|| repeated.get_fields()), repeated.name()) {
            (Some([element]), inner) if inner != "array" && !inner.ends_with("_tuple") => within(element, name, names),
            _ => within(repeated, name, names),
        };
    }
    let is_image = matches!(fields, [one, two] if one.is_primitive() && two.is_primitive() && {
        let names = [one.name(), two.name()];
        names.contains(&"bytes") && names.contains(&"path")
    });
    for inner in fields {
        match is_image && inner.name() == "bytes" {
            true => names.push(name.clone()),
            false => collect(inner, name.clone(), names),
        }
    }
}

fn kind(column: &ColumnDescriptor) -> Result<ValueKind, String> {
    let (logical, converted) = (column.logical_type_ref(), column.converted_type());
    let is_unsigned = match logical {
        Some(LogicalType::Integer(int)) => !int.is_signed,
        _ => {
            use ConvertedType::{UINT_8, UINT_16, UINT_32, UINT_64};
            [UINT_8, UINT_16, UINT_32, UINT_64].contains(&converted)
        }
    };
    if matches!(logical, Some(LogicalType::Decimal(_))) || converted == ConvertedType::DECIMAL {
        return Err(format!("decimal({}, {})", column.type_precision(), column.type_scale()));
    }
    if converted == ConvertedType::INTERVAL {
        return Err("interval".to_string());
    }
    match column.physical_type() {
        Physical::BOOLEAN => Ok(ValueKind::Ints),
        Physical::INT32 | Physical::INT64 if is_unsigned => Ok(ValueKind::Unsigned),
        Physical::INT32 | Physical::INT64 => Ok(ValueKind::Ints),
        Physical::INT96 => Err("int96, a time of old files".to_string()),
        Physical::FLOAT | Physical::DOUBLE => Ok(ValueKind::Floats),
        Physical::FIXED_LEN_BYTE_ARRAY if logical == Some(&LogicalType::Float16) => match column.type_length() {
            2 => Ok(ValueKind::Halves),
            n => Err(format!("float16 of {n} bytes")),
        },
        Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY => Ok(ValueKind::Bytes),
    }
}

/// The metadata under the key `huggingface`; empty if it holds nothing known.
pub(super) fn hugging_face(file: &FileMetaData) -> HuggingFace {
    #[derive(serde::Deserialize)]
    struct Whole {
        info: Info,
    }
    #[derive(serde::Deserialize)]
    struct Info {
        features: BTreeMap<String, serde_json::Value>,
    }
    let pairs = file.key_value_metadata().into_iter().flatten();
    let text = pairs.filter(|pair| pair.key == "huggingface").find_map(|pair| pair.value.as_deref());
    let Some(whole) = text.and_then(|text| serde_json::from_str::<Whole>(text).ok()) else {
        return HuggingFace::default();
    };
    let mut metadata = HuggingFace::default();
    for (name, feature) in whole.info.features {
        match feature.get("_type").and_then(|kind| kind.as_str()) {
            Some("Image") => metadata.images.push(name),
            Some("ClassLabel") if metadata.classes.is_empty() => {
                let names = feature.get("names").and_then(|names| names.as_array()).into_iter().flatten();
                metadata.classes = names.filter_map(|name| name.as_str().map(str::to_string)).collect();
            }
            _ => {}
        }
    }
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;
    use std::sync::Arc;

    #[test]
    fn columns_are_called_by_their_fields() {
        let text = "message m {
            optional group image { optional binary bytes; optional binary path (UTF8); }
            required int32 small (UINT_8);
            optional group tokens (LIST) { repeated group list { optional int64 element; } }
            optional group old (LIST) { repeated int32 array; }
            repeated float bare;
            optional group objects {
                optional group bbox (LIST) { repeated group list { optional group element (LIST) {
                    repeated group list { optional double element; } } } }
                optional group pictures (LIST) { repeated group list { optional group element {
                    optional binary bytes; optional binary path (UTF8); } } }
            }
            optional binary price (DECIMAL(10, 2));
            optional int96 when;
            required int32 twice;
            required double twice;
            optional group box { optional float left; }
            optional float box.left;
        }";
        let schema = SchemaDescriptor::new(Arc::new(parse_message_type(text).unwrap()));
        let file = FileMetaData::new(1, 0, None, None, Arc::new(schema), None);
        let measured: Vec<(String, Result<ValueKind, String>)> =
            columns(&file).into_iter().map(|column| (column.name, column.kind)).collect();
        let expected = [
            ("image", Ok(ValueKind::Bytes)),
            ("image.path", Ok(ValueKind::Bytes)),
            ("small", Ok(ValueKind::Unsigned)),
            ("tokens", Ok(ValueKind::Ints)),
            ("old", Ok(ValueKind::Ints)),
            ("bare", Ok(ValueKind::Floats)),
            ("objects.bbox", Ok(ValueKind::Floats)),
            ("objects.pictures", Ok(ValueKind::Bytes)),
            ("objects.pictures.path", Ok(ValueKind::Bytes)),
            ("price", Err("decimal(10, 2)".to_string())),
            ("when", Err("int96, a time of old files".to_string())),
            ("twice", Err("there twice".to_string())),
            ("twice", Err("there twice".to_string())),
            ("box.left", Err("there twice".to_string())),
            ("box.left", Err("there twice".to_string())),
        ];
        assert_eq!(measured, expected.map(|(name, kind)| (name.to_string(), kind)));
    }
}
