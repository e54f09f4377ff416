//! Training runs that are killed and resumed while their data's caches are evicted and damaged; killed writers of packages and
//! bundles.

use super::binary;
use super::caches::{Place, gzip, harms};
use super::records::{FEATURES, Shapes};
use bf16scope::train::package::Manifest;
use bf16scope::weights;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng, SeedableRng};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Does nothing, evicts or damages an entry of a training run's cache; returns a description.
fn harmed_at_random(place: &Place, cache: &Path, random: &mut SmallRng) -> String {
    let unpacked = cache.join("unpacked");
    let entries: Vec<PathBuf> = fs::read_dir(&unpacked)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    let (harms, what) = (harms(), random.random_range(0..10));
    match (what, entries.choose(random), entries.choose(random)) {
        (0, ..) | (_, None, _) | (_, _, None) => "as it is".to_string(),
        (1 | 2, ..) => {
            // A run may write there meanwhile.
            drop(fs::remove_dir_all(&unpacked));
            "evicted".to_string()
        }
        (_, Some(path), Some(other)) if path == other => "as it is".to_string(),
        (_, Some(path), Some(other)) => {
            let (name, harm) = harms.choose(random).unwrap();
            harm(path, other, place);
            (*name).to_string()
        }
    }
}

/// Trains on records that are unpacked into a cache, and kills the run `n` times; before each start, and during every other run,
/// the cache is evicted or damaged. The weights equal those of an undisturbed run.
fn kills(n: usize) {
    let place = Place::new();
    let shapes = Shapes::new();
    for shard in 0..3 {
        let path = shapes.path(&format!("shapes-{shard:05}-of-00003"));
        fs::write(&path, gzip(&fs::read(&path).unwrap())).unwrap();
    }
    shapes.write("", FEATURES, "batch: 4, save_checkpoints_steps: 4, learning_rate: 0.0001");
    let plugin = binary::bf16scope(&["plugins", "where", "cpu"]).output().unwrap();
    let plugin = String::from_utf8(plugin.stdout).unwrap().lines().next().unwrap().to_string();
    let train = |cache: &str, args: &[&str]| {
        let mut command = shapes.command(&[&["--quiet"], args].concat());
        command.env("BF16SCOPE_CACHE", shapes.path(cache)).env("BF16SCOPE_CPU_PLUGIN", &plugin);
        command
    };
    let killed = shapes.path("killed.safetensors");
    let when = || fs::metadata(&killed).and_then(|metadata| metadata.modified()).ok();
    let mut random = SmallRng::seed_from_u64(100);
    let (mut n_saving, mut n_early, mut done) = (0, 0, Vec::new());
    for number in 0..n {
        done.push(harmed_at_random(&place, &shapes.path("cache"), &mut random));
        let args = ["--epochs", "1000000", "--checkpoint", "killed.safetensors", "--resume"];
        let args = if killed.exists() { &args[..] } else { &args[..4] };
        let (before, began) = (when(), Instant::now());
        let stderr = fs::File::create(shapes.path("said")).unwrap();
        let mut child = train("cache", args).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        let ended = |child: &mut Child| {
            assert!(child.try_wait().unwrap().is_none(), "{}", fs::read_to_string(shapes.path("said")).unwrap())
        };
        // One in four while it starts, the others when it has saved.
        let is_early = number % 4 == 3;
        while !is_early && when() == before {
            assert!(began.elapsed() < Duration::from_secs(240), "{number}: no checkpoint in four minutes: {done:?}");
            ended(&mut child);
            std::thread::sleep(Duration::from_millis(2));
        }
        if number % 2 == 0 {
            done.push(harmed_at_random(&place, &shapes.path("cache"), &mut random));
        }
        std::thread::sleep(Duration::from_millis(random.random_range(0..300)));
        ended(&mut child);
        child.kill().unwrap();
        child.wait().unwrap();
        let files = fs::read_dir(shapes.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        n_saving += usize::from(files.into_iter().any(|name| name.to_string_lossy().contains("writing-")));
        n_early += usize::from(is_early);
    }
    // To the end of the epoch after the one that it is in.
    let head = String::from_utf8_lossy(&fs::read(&killed).unwrap()).into_owned();
    let figure = |key: &str| -> u64 {
        let at = head.find(key).unwrap() + key.len();
        head[at..]
            .chars()
            .skip_while(|c| !c.is_ascii_digit())
            .take_while(char::is_ascii_digit)
            .collect::<String>()
            .parse()
            .unwrap()
    };
    let epochs = (figure(r#"\"step\":"#) / figure(r#"\"steps_per_epoch\":"#) + 2).to_string();
    done.push(harmed_at_random(&place, &shapes.path("cache"), &mut random));
    let killed_args = ["--epochs", &epochs, "--checkpoint", "killed.safetensors", "--resume"];
    let whole_args = ["--epochs", &epochs, "--checkpoint", "whole.safetensors"];
    for (cache, args) in [("cache", &killed_args[..]), ("another", &whole_args[..])] {
        let output = train(cache, args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let bytes = |name: &str| fs::read(shapes.path(name)).unwrap();
    assert!(bytes("killed.safetensors") == bytes("whole.safetensors"), "other weights after {epochs} epochs: {done:?}");
    let n_harmed = done.iter().filter(|what| *what != "as it is").count();
    println!("{n} kills, {n_early} before a checkpoint, {n_saving} while saving; {n_harmed} harms; {epochs} epochs");
}

#[test]
fn kills_and_harmed_caches_change_no_bit_of_a_training() {
    kills(4);
}

/// A folder with a small experiment, trained for an epoch.
fn trained() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..40).map(|i| format!("{},{},{},{},{}\n", i % 7, i % 5, i % 3, i % 11, i % 2)).collect();
    fs::write(folder.path().join("rows.csv"), rows).unwrap();
    let yaml = "model: {kind: mlp, input: [4], n_classes: 2, hidden: [64]}\ndata: {csv: rows.csv, scale: 0.1, n_test: 8}\n\
                train: {batch: 8, epochs: 1, learning_rate: {kind: constant, value: 0.001}}\n";
    fs::write(folder.path().join("small.yaml"), yaml).unwrap();
    in_folder(&folder, &["train", "small.yaml", "--quiet", "--checkpoint", "small.ckpt"]);
    folder
}

/// Runs a command to its end.
fn in_folder(folder: &tempfile::TempDir, args: &[&str]) {
    let output = binary::bf16scope(args).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Starts a command, and kills it this long after it has begun to write, unless it ends before.
fn kill(folder: &tempfile::TempDir, args: &[&str], has_begun: impl Fn() -> bool, delay: Duration) {
    let mut command = binary::bf16scope(args);
    let mut child = command.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !has_begun() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_micros(200));
    }
    std::thread::sleep(delay);
    drop(child.kill());
    child.wait().unwrap();
}

/// A delay with a log-uniform distribution: from microseconds to a writer's duration on a busy machine.
fn delay(random: &mut SmallRng) -> Duration {
    Duration::from_micros(1 << random.random_range(0..18))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Kills writers of packages `n` times: the folder then holds a complete package, or none, and the next writer can use it.
fn killed_packages(n: usize) {
    let folder = trained();
    let args = |output| ["package", "small.yaml", "--checkpoint", "small.ckpt", "--quiet", "-o", output];
    in_folder(&folder, &args("whole"));
    let (whole, pack) = (folder.path().join("whole"), folder.path().join("pack"));
    let mut random = SmallRng::seed_from_u64(51);
    let (mut n_left, mut n_whole) = (0, 0);
    for _ in 0..n {
        let before = names(&pack).len();
        let has_begun = || names(&pack).len() != before || pack.join(".unfinished-package").exists() && before == 0;
        kill(&folder, &args("pack"), has_begun, delay(&mut random));
        match Manifest::read(&pack) {
            Ok(manifest) => {
                // XLA does not compile a program to the same bytes twice; `Manifest::read` compares their checksum.
                let without_executable = |mut manifest: Manifest| {
                    assert!(manifest.executable.take().is_some());
                    manifest
                };
                assert_eq!(without_executable(manifest), without_executable(Manifest::read(&whole).unwrap()));
                fs::remove_dir_all(&pack).unwrap();
                n_whole += 1;
            }
            Err(error) => {
                assert!(!pack.join("package.json").exists(), "{error}");
                n_left += usize::from(!names(&pack).is_empty());
            }
        }
    }
    in_folder(&folder, &args("pack"));
    assert_eq!(names(&pack), names(&whole), "after {n_left} that were left");
    println!("{n} kills of packages: {n_left} left a part, {n_whole} came to their end");
}

/// Kills writers of bundles `n` times: there is the old or the new bundle, and the next writer removes leftovers.
fn killed_bundles(n: usize) {
    let folder = trained();
    let args = |from| ["weights", from, "--format", "tf", "-o", "m"];
    in_folder(&folder, &args("small.ckpt"));
    let whole = weights::open(folder.path().join("m.index")).unwrap().entries().to_vec();
    let mut random = SmallRng::seed_from_u64(51);
    let (mut n_left, began) = (0, names(folder.path()).len());
    for _ in 0..n {
        let before = names(folder.path());
        let has_begun = || names(folder.path()) != before;
        kill(&folder, &args("small.ckpt"), has_begun, delay(&mut random));
        let read = weights::open(folder.path().join("m.index")).unwrap();
        assert_eq!(read.entries(), whole);
        assert!(whole.iter().all(|entry| read.look(&entry.name).is_ok()));
        n_left += usize::from(names(folder.path()).len() != began);
    }
    in_folder(&folder, &args("small.ckpt"));
    assert_eq!(names(folder.path()).len(), began, "{:?}, after {n_left} that left a file", names(folder.path()));
    println!("{n} kills of bundles: {n_left} left a file");
}

#[test]
fn killed_writers_of_packages_and_bundles_leave_nothing_half() {
    killed_packages(3);
    killed_bundles(8);
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// A hundred kills, some minutes.
    #[cfg_attr(feature = "long-tests", test)]
    fn a_hundred_kills_and_harmed_caches_change_no_bit_of_a_training() {
        kills(100);
    }

    /// `killed_writers_of_packages_and_bundles_leave_nothing_half` is the short form.
    #[cfg_attr(feature = "long-tests", test)]
    fn two_hundred_killed_writers_leave_nothing_half() {
        killed_packages(60);
        killed_bundles(140);
    }
}
