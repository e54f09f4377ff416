//! Modules that need more devices than there are, or wait for a peer that does not exist.

use super::binary::bf16scope;

/// The output of `run` and `audit` for a module whose entry has these instructions after `x`, an `f32[4]`.
fn refusals(header: &str, body: &str) -> [String; 2] {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "HloModule m{header}\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}}\n\n\
         ENTRY main {{\n  x = f32[4]{{0}} parameter(0)\n{body}}}\n"
    );
    std::fs::write(folder.path().join("m.hlo"), text).unwrap();
    ["run", "audit"].map(|subcommand| {
        let output = bf16scope(&[subcommand, "m.hlo", "--random", "1"]).current_dir(folder.path()).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{text}");
        text
    })
}

#[track_caller]
fn check(header: &str, body: &str, expected: &str) {
    let refusal = |cannot: &str| format!("bf16scope: m.hlo cannot be {cannot}\n  caused by: {expected}\n");
    assert_eq!(refusals(header, body), [refusal("run"), refusal("audited")]);
}

#[test]
fn a_module_for_several_devices_does_not_run_on_one() {
    let reason = |by: &str, n: u32| {
        format!(
            "{by} for {n} devices, and this is one: it would give numbers of another program\nhelp: `run` and `audit` take \
             `--device cpu:{n}`; a module for one device has no collectives over several, and no shardings"
        )
    };
    check(
        "",
        "  ROOT y = f32[4]{0} all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=add\n",
        &reason("main/%y has replica_groups", 4),
    );
    check(
        ", num_partitions=2",
        "  ROOT y = f32[4]{0} collective-permute(x), channel_id=1, source_target_pairs={{0,1},{1,0}}\n",
        &reason("m has num_partitions=2", 2),
    );
    check("", "  ROOT y = f32[4]{0} negate(x), sharding={devices=[2]<=[2]}\n", &reason("main/%y has a sharding", 2));
    check(", replica_count=8", "  ROOT y = f32[4]{0} negate(x)\n", &reason("m has replica_count=8", 8));
}

/// XLA would read them as no count or another one, and the program runs as if it was for one device.
#[test]
fn a_count_of_devices_that_is_none_is_refused() {
    for (count, found) in [("0", "0"), ("-1", "-1"), ("4294967298", "4294967298"), ("two", "two"), ("2 3", "3")] {
        for attribute in ["replica_count", "num_partitions"] {
            let [run, audit] = refusals(&format!(", {attribute}={count}"), "  ROOT y = f32[4]{0} negate(x)\n");
            let expected = match count {
                "two" => "an integer",
                "2 3" => "the end of the value",
                _ => "a number of devices, from 1 to 2147483647",
            };
            assert!(run.contains(&format!(": found `{found}`, expected {expected}\n")), "{count}: {run}");
            assert_eq!(run, audit);
        }
    }
}

#[test]
fn what_hlo_does_not_know_of_a_module_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let text = "HloModule m, frob=1, replica_count=1\n\nENTRY main {\n  ROOT x = f32[4]{0} parameter(0)\n}\n";
    std::fs::write(folder.path().join("m.hlo"), text).unwrap();
    let output = bf16scope(&["emit", "m.hlo", "-o", "m.pb"]).current_dir(folder.path()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("m.hlo: the module's frob changes nothing here: HLO has no such attribute"), "{text}");
    assert!(output.status.success() && !text.contains("replica_count"), "{text}");
}

#[test]
fn a_module_that_waits_for_nobody_is_not_run() {
    check(
        "",
        "  t = token[] after-all()\n  i = (f32[4]{0}, token[]) infeed(t)\n  ROOT y = f32[4]{0} get-tuple-element(i), index=0\n",
        "main/%i is `infeed`, which waits for a host program that feeds it, and there is none: it would never return\nhelp: \
         make what comes in a parameter, and what goes out a result",
    );
}

#[test]
fn groups_and_pairs_that_no_devices_can_form_are_broken() {
    let broken = |body: &str| {
        let [run, audit] = refusals("", body);
        assert_eq!(run, audit);
        run.lines().nth(1).unwrap_or_default().to_string()
    };
    let gather = |groups: &str| {
        broken(&format!("  ROOT y = f32[8]{{0}} all-gather(x), replica_groups={groups}, dimensions={{0}}\n"))
    };
    assert_eq!(
        gather("{{0,0}}"),
        "  caused by: main/%y: replica_groups=[[0, 0]] has 0 where 1 comes next, expected each of 0 to 1 once"
    );
    assert_eq!(
        gather("{{0,-1}}"),
        "  caused by: main/%y: replica_groups=[[0, -1]] has -1 where 0 comes next, expected each of 0 to 1 once"
    );
    assert_eq!(
        gather("{{0,1}}, use_global_device_ids=true"),
        "  caused by: main/%y: all-gather has use_global_device_ids, expected also a channel_id and replica_groups"
    );
    let permute =
        |pairs: &str| broken(&format!("  ROOT y = f32[4]{{0}} collective-permute(x), source_target_pairs={pairs}\n"));
    assert_eq!(
        permute("{{0,1},{0,2}}"),
        "  caused by: main/%y: source_target_pairs has source 0 twice, expected each at most once"
    );
    assert_eq!(permute("{{0,-1}}"), "  caused by: main/%y: source_target_pairs has target -1, expected 0 or more");
}
