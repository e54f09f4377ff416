//! `--as tpu-v2|tpu-v3` for every command that accepts it.

use crate::binary;
use crate::train_cli::Folder;

/// 1 + 2^-9 is a tie between bf16 numbers, and rounds to 1; `high` keeps it in its second part.
const MODULE: &str = "HloModule m

ENTRY m {
  x = f32[2]{0} constant({1.001953125, 2})
  y = f32[2]{0} constant({1, 0})
  one = f32[]{} dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  three = f32[]{} dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}, operand_precision={high,high}
  ROOT t = (f32[]{}, f32[]{}) tuple(one, three)
}
";

fn means(folder: &Folder, args: &[&str]) -> Vec<f64> {
    let json = folder.json(&[&["run"], args, &["--json"]].concat());
    json["outputs"].as_array().unwrap().iter().map(|output| output["mean"].as_f64().unwrap()).collect()
}

#[test]
fn run_and_emit_and_audit_multiply_as_a_tpu() {
    let folder = Folder::new();
    std::fs::write(folder.path("m.txt"), MODULE).unwrap();
    let (tie, f32s) = (1.0 + 2f64.powi(-9), [1.0, 1.0 + 2f64.powi(-9)]);
    assert_eq!(means(&folder, &["m.txt"]), [tie, tie]);
    for tpu in ["tpu-v2", "tpu-v3"] {
        assert_eq!(means(&folder, &["m.txt", "--as", tpu]), f32s);
        folder.stdout(&["emit", "m.txt", "--as", tpu, "-o", "as.hlo.pb"]);
        assert_eq!(means(&folder, &["as.hlo.pb"]), f32s);
    }
    let audit = folder.json(&["audit", "m.txt", "--as", "tpu-v2", "--json"]);
    let error = |audit: &serde_json::Value, name: &str| {
        let rows = audit["rows"].as_array().unwrap();
        rows.iter().find(|row| row["instruction"] == name).unwrap()["errors"]["scaled"].as_f64().unwrap()
    };
    let expected = (tie - 1.0) / tie;
    let f32_as = &audit["f32_as"];
    assert_eq!((error(&f32_as["audit"], "one"), error(&f32_as["audit"], "three")), (expected, 0.0));
    assert_eq!((f32_as["arithmetic"].as_str(), f32_as["error"].as_f64()), (Some("tpu-v2"), Some(expected)));
    let shown = folder.stdout(&["audit", "m.txt", "--as", "tpu-v2", "--html", "audit.html"]);
    assert!(shown.contains("f32 on tpu-v2"), "{shown}");
    // The page has it too, for both results and for the instructions.
    let page = std::fs::read_to_string(folder.path("audit.html")).unwrap();
    assert_eq!(page.matches(">f32 on a TPU<").count(), 2, "{page}");
    let cell = |error: f64| format!("data-v=\"{error}\"");
    assert!(
        page.matches(&cell(expected)).count() >= 2 && page.contains("f32 as tpu-v2 multiplies is within 1.95e-3"),
        "{page}"
    );
    let message =
        "f32 as tpu-v2 multiplies is within 1.95e-3 of f32 here; the lowered form is no further off than f32 is there";
    assert!(shown.contains(message), "{shown}");
}

/// Training and test losses differ from a CPU's f32, and are the same in a second run.
#[test]
fn train_eval_and_predict_multiply_as_a_tpu() {
    let folder = Folder::new();
    let train = |more: &[&str], checkpoint: &str| {
        let args = ["train", "mlp.yaml", "--precision", "f32", "--epochs", "1", "--json", "--checkpoint", checkpoint];
        folder.json(&[&args, more].concat());
        std::fs::read(folder.path(checkpoint)).unwrap()
    };
    let tpu = ["--as", "tpu-v3"];
    let (plain, one, again) = (train(&[], "p"), train(&tpu, "a"), train(&tpu, "b"));
    assert!(one == again && one != plain, "weights of another arithmetic");
    let eval = |more: &[&str]| {
        let args = ["eval", "mlp.yaml", "--precision", "f32", "--checkpoint", "a", "--json"];
        folder.json(&[&args, more].concat())["loss"].as_f64().unwrap()
    };
    let (here, there) = (eval(&[]), eval(&tpu));
    assert!(here != there && (here - there).abs() < 0.05 * here, "{here} {there}");
    let predict = |more: &[&str]| {
        let args = ["predict", "mlp.yaml", "--precision", "f32", "--checkpoint", "a", "--json"];
        folder.json(&[&args, more].concat())["predictions"].clone()
    };
    assert_ne!(predict(&[]), predict(&tpu));
}

#[test]
fn a_tpu_is_not_stood_in_for_on_a_tpu() {
    if binary::device() != "cpu" {
        return;
    }
    let folder = Folder::new();
    std::fs::write(folder.path("m.txt"), MODULE).unwrap();
    let error = folder.stderr(&["run", "m.txt", "--as", "tpu-v2", "--device", "tpu"]);
    let expected = "--as tpu-v2 is for devices other than TPUs, and --device is tpu, which multiplies as it does\nhelp: \
                    leave --as out, or run on the CPU";
    assert!(error.contains(expected), "{error}");
    assert!(folder.stderr(&["run", "m.txt", "--as", "v2"]).contains("expected tpu-v2 or tpu-v3"));
}
