//! Sizes of symbolic dimensions, and those that are missing.

use super::*;

const TEXT: &str = "error_message = \"… Using the following polymorphic shapes specifications: args[0].shape = (2*b, 3),\
                    args[1].shape = (n,),args[2]['w'].shape = (floordiv(n, 2) + 1, b). Obtained dimension variables: …\"";

fn settled(sizes: &[&str], dims: &[&[i64]]) -> Result<Vec<Vec<i64>>, String> {
    let sizes = Sizes::new(sizes.iter().map(|size| size.parse().unwrap()).collect()).unwrap();
    let mut dims: Vec<Vec<i64>> = dims.iter().map(|dims| dims.to_vec()).collect();
    sizes.settle(&mut dims, TEXT, "m.mlir").map_err(|error| error.to_string())?;
    Ok(dims)
}

#[test]
fn names_become_sizes_of_every_dimension() {
    let all: &[&[i64]] = &[&[8], &[-1, 3], &[-1], &[-1, -1]];
    assert_eq!(settled(&["b=4", "n=7"], all).unwrap(), [vec![8], vec![8, 3], vec![7], vec![4, 4]]);
    // The second argument is not used, and is no parameter.
    assert_eq!(settled(&["b=4", "n=7"], &[&[-1, 3], &[-1, -1]]).unwrap(), [vec![8, 3], vec![4, 4]]);
    // By place: what is a name alone is known everywhere.
    assert_eq!(settled(&["1:0=7", "b=1"], &all[1..]).unwrap(), [vec![2, 3], vec![7], vec![4, 1]]);
}

#[test]
fn what_is_missing_or_not_there_is_said() {
    let all: &[&[i64]] = &[&[-1, 3], &[-1], &[-1, -1]];
    let refused = |sizes: &[&str], dims: &[&[i64]], expected: &str| {
        assert_eq!(settled(sizes, dims).unwrap_err(), expected);
    };
    refused(
        &["n=7"],
        all,
        "m.mlir: its sizes are symbolic, and no size is given for `b`\nhelp: say how large each is: --dim b=32",
    );
    refused(
        &["b=7", "n=1", "m=3"],
        all,
        "m.mlir: no symbolic dimension is called `m`\nhelp: its symbolic dimensions are b, n, 0:0, 1:0, 2:0, 2:1",
    );
    refused(
        &["b=2147483647", "n=1"],
        all,
        "m.mlir: dimension 0 of parameter 0 is 2*b, which is 4294967294\nhelp: give other sizes: no dimension is negative, or \
         above 2147483647",
    );
    refused(
        &[],
        &[&[-1, 5]],
        "m.mlir: its sizes are symbolic, and no size is given for `0:0`\nhelp: say how large each is: --dim 0:0=32 \
         (PARAMETER:DIMENSION, for what the file has no name for)",
    );
}

#[test]
fn expressions_are_those_of_jax() {
    let names = |name: &str| (name == "b").then_some(5);
    for (text, expected) in [
        ("b", Some(5)),
        ("-1*b + 7", Some(2)),
        ("b^2 - 1", Some(24)),
        ("floordiv(b, 2)*3", Some(6)),
        ("mod(b + -7, 4)", Some(2)),
        ("max(b, 2*(b - 1))", Some(8)),
        ("c", None),
        ("b b", None),
        ("floordiv(b, 0)", None),
        ("b^b^b^b", None),
    ] {
        assert_eq!(value(text, &names), expected, "{text}");
    }
    assert_eq!(value(&"(".repeat(100_000), &names), None);
}

#[test]
fn sizes_are_read_and_others_are_not() {
    for text in ["b", "b=", "b=x", "=3", "b=-1", "b=2147483648", "1b=2", "0:x=2", "a b=2"] {
        assert!(text.parse::<Size>().is_err(), "{text}");
    }
    let twice = vec!["b=1".parse().unwrap(), "b=2".parse().unwrap()];
    assert_eq!(Sizes::new(twice), Err("b".to_string()));
}
