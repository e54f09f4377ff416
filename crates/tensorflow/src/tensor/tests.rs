//! A dtype that HLO does not have.

use super::*;

#[test]
fn a_dtype_that_hlo_does_not_have_is_named() {
    let text = TensorProto { dtype: 7, ..TensorProto::default() };
    assert_eq!(constant(&text).unwrap_err().message, "it is of string, which HLO does not have");
}
