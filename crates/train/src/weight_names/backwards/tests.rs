//! Arrays that rules write are those that they read; variables without a place are named.

use super::super::{Arrays, Found, Given, Mapping, values};
use super::*;
use bf16scope_hlo::DType;
use std::error::Error;

struct Written(Vec<(TheirArray, Vec<u8>)>);

impl Arrays for Written {
    fn name(&self) -> String {
        "written".to_string()
    }

    fn given(&self) -> Vec<Given> {
        let entry = |(array, _): &(TheirArray, Vec<u8>)| Given {
            name: array.name.clone(),
            aliases: Vec::new(),
            dtype: Some(array.shape.dtype),
            dims: array.shape.dims.clone(),
            place: None,
        };
        self.0.iter().map(entry).collect()
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
        let array = self.0.iter().find(|(array, _)| array.name == name);
        array.map(|(_, bytes)| bytes.clone()).ok_or_else(|| name.into())
    }
}

fn wanted(name: &str, dims: &[i64]) -> Wanted {
    let shape = ArrayShape::new(DType::F32, dims);
    match name.strip_suffix("/momentum") {
        Some(of) => Wanted {
            name: name.to_string(),
            shape,
            role: Role::Slot { of: of.to_string(), slot: "momentum".to_string() },
        },
        None => Wanted { name: name.to_string(), shape, role: Role::Weight },
    }
}

/// A transformer block with its surroundings, and an image network.
fn networks() -> [Vec<Wanted>; 2] {
    let mut block = vec![wanted("tokens/embeddings", &[7, 4]), wanted("positions/embeddings", &[6, 4])];
    for part in ["query", "key", "value"] {
        block.push(wanted(&format!("net/block1/attention/heads/{part}/kernel"), &[4, 2, 2]));
        block.push(wanted(&format!("net/block1/attention/heads/{part}/bias"), &[4]));
    }
    block.push(wanted("net/block1/attention/heads/out/kernel", &[2, 2, 4]));
    block.push(wanted("net/block1/attention/heads/out/bias", &[4]));
    for (name, dims) in
        [("dense1/kernel", &[4, 8][..]), ("dense1/bias", &[8]), ("dense2/kernel", &[8, 4]), ("dense2/bias", &[4])]
    {
        block.push(wanted(&format!("net/block1/feed_forward/{name}"), dims));
    }
    for norm in ["net/block1/attention", "net/block1/feed_forward"] {
        block.push(wanted(&format!("{norm}/norm/gamma"), &[4]));
        block.push(wanted(&format!("{norm}/norm/beta"), &[4]));
    }
    let mut images = vec![wanted("resnet/stem/conv/kernel", &[3, 3, 2, 4])];
    for name in ["gamma", "beta", "moving_mean", "moving_variance"] {
        images.push(wanted(&format!("resnet/stem/bn/{name}"), &[4]));
    }
    images.push(wanted("resnet/stage1/block2/conv3/kernel", &[1, 1, 4, 4]));
    images.push(wanted("resnet/logits/kernel", &[4, 3]));
    images.push(wanted("resnet/logits/bias", &[3]));
    images.push(wanted("resnet/logits/bias/momentum", &[3]));
    [block, images]
}

#[test]
fn what_is_written_by_rules_is_read_by_them() {
    let [block, images] = networks();
    let networks = [
        ("names", &block),
        ("names", &images),
        ("gpt2", &block),
        ("bert", &block),
        ("bert_tensorflow", &block),
        ("tensorflow", &images),
        ("resnet", &images),
    ];
    for (family, network) in networks {
        let rules = Rules::all().into_iter().find(|rules| rules.family == family).unwrap();
        let has_slots = rules.slots.contains_key("momentum") || rules.slots.contains_key("*");
        let network: Vec<Wanted> = network.iter().filter(|it| it.role == Role::Weight || has_slots).cloned().collect();
        let mut next = 0;
        let ours: BTreeMap<&str, Vec<u8>> = network
            .iter()
            .map(|it| {
                let n = it.shape.n_elements();
                next += n;
                (it.name.as_str(), (next - n..next).flat_map(|i| (i as f32).to_le_bytes()).collect())
            })
            .collect();
        let arrays = their_arrays(&rules, &network).unwrap();
        let written = arrays.into_iter().map(|array| {
            let parts: Vec<&[u8]> = array.parts.iter().map(|(name, _)| ours[name.as_str()].as_slice()).collect();
            let bytes = array.bytes(&parts).unwrap();
            (array, bytes)
        });
        let written = Written(written.collect());
        let mapping = Mapping::from_rules(&rules, &network, &written.given(), &|_| false);
        mapping.check("written").unwrap();
        assert_eq!(mapping.left_over, [""; 0], "{family}");
        assert!(mapping.variables.iter().all(|it| matches!(it.found, Found::Taken { .. })), "{family}");
        for (name, (_, bytes)) in values(&written, &mapping, 1.0).unwrap() {
            assert_eq!(bytes, ours[name.as_str()], "{family} {name}");
        }
        // The family is recognised without being named.
        assert_eq!(Mapping::from_best_family(&network, &written.given(), &|_| false).family, family);
    }
}

#[test]
fn what_has_no_place_says_so() {
    let rules = Rules::all().into_iter().find(|rules| rules.family == "gpt2").unwrap();
    let error = |network: &[Wanted]| their_arrays(&rules, network).unwrap_err().to_string();
    let help = "\nhelp: write our own names (`--rules names`), or name a file of rules";
    assert_eq!(
        error(&[wanted("a/other", &[2])]),
        format!("a/other cannot be written by the rules of gpt2: no rule is for it{help}")
    );
    let query = "block1/attention/heads/query/bias";
    assert_eq!(
        error(&[wanted(query, &[2])]),
        format!(
            "{query} cannot be written by the rules of gpt2: transformer.h.0.attn.c_attn.bias has 3 parts, and not all of them are \
             in this model{help}"
        )
    );
    let both = [wanted("a_norm/gamma", &[2]), wanted("b_norm/gamma", &[2])];
    assert_eq!(
        error(&both),
        format!(
            "b_norm/gamma cannot be written by the rules of gpt2: a_norm/gamma is transformer.ln_f.weight too{help}"
        )
    );
    let about = |role: Role| [wanted("a_norm/gamma", &[2]), Wanted { role, ..wanted("state", &[2]) }];
    let gamma = || "a_norm/gamma".to_string();
    assert_eq!(
        error(&about(Role::Slot { of: gamma(), slot: "momentum".to_string() })),
        format!("state cannot be written by the rules of gpt2: the family has no name for the slot momentum{help}")
    );
    assert_eq!(
        error(&about(Role::Average { of: gamma() })),
        format!("state cannot be written by the rules of gpt2: the family has no name for averages{help}")
    );
    assert_eq!(
        error(&[wanted("net/logits/kernel", &[2])]),
        format!(
            "net/logits/kernel cannot be written by the rules of gpt2: its rule is for other axes (transposed [1, 0]){help}"
        )
    );
}

#[test]
fn an_array_of_fewer_bytes_than_its_shape_has_is_named() {
    let rules = Rules::all().into_iter().find(|rules| rules.family == "names").unwrap();
    let network = [wanted("a/kernel", &[2])];
    let arrays = their_arrays(&rules, &network).unwrap();
    let written = Written(arrays.into_iter().map(|array| (array, vec![0; 4])).collect());
    let mapping = Mapping::from_rules(&rules, &network, &written.given(), &|_| false);
    let error = values(&written, &mapping, 1.0).unwrap_err();
    assert_eq!(error.to_string(), "written: a/kernel cannot be read");
    assert_eq!(error.source().unwrap().to_string(), "it has 4 bytes, which its shape has not");
}
