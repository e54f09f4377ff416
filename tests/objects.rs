//! Data files of object stores, by URL: the program fetches them from a server of this file's, on the loopback.

#[path = "support/binary.rs"]
mod binary;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

/// Objects by path, and what was asked for them.
#[derive(Default)]
struct Held {
    objects: BTreeMap<String, Vec<u8>>,
    asked: Vec<String>,
}

/// A web server that has ETags, and knows ranges. Of a path with `breaks` it sends the half, the first time.
#[derive(Clone)]
struct Server {
    held: Arc<Mutex<Held>>,
    address: String,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Server { held: Arc::default(), address };
        let own = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let own = own.clone();
                std::thread::spawn(move || while own.answer(stream.as_ref().unwrap()).is_some() {});
            }
        });
        server
    }

    fn put(&self, path: &str, bytes: impl AsRef<[u8]>) {
        self.held.lock().unwrap().objects.insert(path.to_string(), bytes.as_ref().to_vec());
    }

    /// What was asked since the last time.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.held.lock().unwrap().asked)
    }

    /// Answers one request; `None` where the connection ends.
    fn answer(&self, mut stream: &TcpStream) -> Option<()> {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let first = lines.next()?;
        let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
        let mut words = first.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let range = headers.iter().find_map(|line| line.strip_prefix("range: bytes="));
        let asked = format!("{method} {target}{}", range.map(|range| format!(" {range}")).unwrap_or_default());
        let (body, is_first) = {
            let mut held = self.held.lock().unwrap();
            let is_first = !held.asked.contains(&asked);
            held.asked.push(asked);
            let listed = target.contains("list-type=2").then(|| list(&held.objects));
            (listed.or_else(|| held.objects.get(target).cloned()), is_first)
        };
        let Some(body) = body else {
            let said = "no such object";
            let length = said.len();
            write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: {length}\r\n\r\n").ok()?;
            return stream.write_all(if method == "HEAD" { b"" } else { said.as_bytes() }).ok();
        };
        let tag = body.iter().fold(0u64, |tag, byte| tag.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        let date = "Mon, 23 Nov 2026 07:00:00 GMT";
        let (start, status) = match range.and_then(|range| range.split_once('-')?.0.parse::<usize>().ok()) {
            Some(start) => (start, "206 Partial Content"),
            None => (0, "200 OK"),
        };
        let mut head = format!("HTTP/1.1 {status}\r\nETag: \"{tag:x}\"\r\nLast-Modified: {date}\r\n");
        if start > 0 {
            head += &format!("Content-Range: bytes {start}-{}/{}\r\n", body.len() - 1, body.len());
        }
        write!(stream, "{head}Content-Length: {}\r\n\r\n", body.len() - start).ok()?;
        if method == "HEAD" {
            return Some(());
        }
        if target.contains("breaks") && is_first && range.is_none() {
            stream.write_all(&body[..body.len() / 2]).ok()?;
            drop(stream.shutdown(std::net::Shutdown::Both));
            return None;
        }
        stream.write_all(&body[start..]).ok()
    }
}

/// What S3 says of a bucket.
fn list(objects: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let mut text = "<ListBucketResult><IsTruncated>false</IsTruncated>".to_string();
    for (path, bytes) in objects.iter().filter_map(|(path, bytes)| Some((path.strip_prefix("/bucket/")?, bytes))) {
        text += &format!(
            "<Contents><Key>{path}</Key><LastModified>2026-11-23T07:00:00Z</LastModified><Size>{}</Size></Contents>",
            bytes.len()
        );
    }
    (text + "</ListBucketResult>").into_bytes()
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input").join(name)).unwrap()
}

/// `bf16scope data`, with a cache of its own and what S3's client needs; no proxy between.
fn data(cache: &Path, server: &Server, args: &[&str]) -> Command {
    let mut command = binary::bf16scope(&[&["data", "--json"], args].concat());
    command.env("BF16SCOPE_CACHE", cache).env_remove("BF16SCOPE_OFFLINE").env("NO_PROXY", "127.0.0.1");
    command.env("AWS_ENDPOINT", format!("http://{}", server.address)).env("AWS_ALLOW_HTTP", "true");
    command.env("AWS_ACCESS_KEY_ID", "name").env("AWS_SECRET_ACCESS_KEY", "a-secret");
    command
}

fn said(output: &Output) -> (String, String) {
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn shown(command: &mut Command) -> (serde_json::Value, String) {
    let output = command.output().unwrap();
    let (out, err) = said(&output);
    assert!(output.status.code().is_some_and(|code| code < 2), "{out}\n{err}");
    (serde_json::from_str(&out).unwrap(), err)
}

fn refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = said(&output);
    assert_eq!(output.status.code(), Some(2), "{out}\n{err}");
    assert!(!format!("{out}{err}").contains("a-secret"), "{out}\n{err}");
    err
}

#[test]
fn objects_are_fetched_once_and_again_when_they_change() {
    let (server, cache) = (Server::start(), tempfile::tempdir().unwrap());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input");
    for (name, path) in [
        ("shapes-00000-of-00003", "/a/shapes"),
        ("shapes.tar.gz", "/a/shapes.tar.gz"),
        ("parquet/shapes-0.parquet", "/a/shapes.parquet"),
        ("shapes-00001-of-00003", "/a/breaks"),
    ] {
        server.put(path, fixture(name));
        let url = format!("http://{}{path}", server.address);
        let (found, err) = shown(&mut data(cache.path(), &server, &[&url]));
        let (local, _) = shown(&mut data(cache.path(), &server, &[&folder.join(name).to_string_lossy()]));
        // What is broken is named by its file.
        assert_eq!((&found["n_records"], &found["features"]), (&local["n_records"], &local["features"]), "{name}");
        assert!(err.contains("objects are fetched once: 1 of them, 0 MiB, to "), "{err}");
        let expected = [format!("HEAD {path}"), format!("GET {path}")];
        let asked = server.asked();
        assert_eq!(asked[..2], expected);
        let rest = fixture(name).len() / 2;
        let again = format!("GET {path} {rest}-{}", fixture(name).len() - 1);
        assert_eq!(
            asked[2..],
            if path == "/a/breaks" { vec![again] } else { vec![] },
            "a download goes on where it broke off"
        );
        // Once it is here, only its version is asked for.
        let (second, err) = shown(&mut data(cache.path(), &server, &[&url]));
        assert_eq!((second, err.contains("fetched")), (found, false));
        assert_eq!(server.asked(), [format!("HEAD {path}")]);
    }
    server.put("/a/shapes", fixture("shapes-00002-of-00003"));
    let url = format!("http://{}/a/shapes", server.address);
    let (changed, _) = shown(&mut data(cache.path(), &server, &[&url]));
    let other = folder.join("shapes-00002-of-00003");
    let (local, _) = shown(&mut data(cache.path(), &server, &[&other.to_string_lossy()]));
    assert_eq!(changed["features"], local["features"]);
    assert_eq!(server.asked(), ["HEAD /a/shapes", "GET /a/shapes"]);
}

#[test]
fn a_pattern_of_s3_is_listed() {
    let (server, cache) = (Server::start(), tempfile::tempdir().unwrap());
    for idx in 0..3 {
        server.put(&format!("/bucket/in/shapes-{idx}"), fixture(&format!("shapes-0000{idx}-of-00003")));
    }
    server.put("/bucket/in/deeper/shapes-3", "another folder's");
    server.put("/bucket/in/notes", "another name");
    let (found, err) = shown(&mut data(cache.path(), &server, &["s3://bucket/in/shapes-*"]));
    let pattern = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/input/shapes-*");
    let (local, _) = shown(&mut data(cache.path(), &server, &[&pattern.to_string_lossy()]));
    assert_eq!((&found["n_records"], &found["features"]), (&local["n_records"], &local["features"]));
    assert!(err.contains("objects are fetched once: 3 of them"), "{err}");
    let none = refused(&mut data(cache.path(), &server, &["s3://bucket/in/train-*"]));
    assert!(none.contains("s3://bucket/in/train-*: no file has such a name; expected one at least"), "{none}");
}

#[test]
fn what_a_store_said_and_what_to_do_is_in_the_error() {
    let (server, cache) = (Server::start(), tempfile::tempdir().unwrap());
    let url = format!("http://{}/a/nothing", server.address);
    let error = refused(&mut data(cache.path(), &server, &[&url]));
    let expected = format!(
        "bf16scope: {url}: cannot be fetched: Server returned non-2xx status code: 404 Not Found\nhelp: check the name, letter \
         for letter\n"
    );
    assert_eq!(error, expected);
    let error = refused(&mut data(cache.path(), &server, &["s3://bucket/nothing"]));
    assert!(error.starts_with("bf16scope: s3://bucket/nothing: cannot be fetched: Server returned"), "{error}");
    let error = refused(data(cache.path(), &server, &["--offline", &url]).env_remove("BF16SCOPE_CACHE"));
    let expected = format!(
        "bf16scope: {url}: an object of a store, and this run is offline\nhelp: run without --offline and BF16SCOPE_OFFLINE, or \
         copy the file here and name that\n"
    );
    assert_eq!(error, expected);
    let error = refused(&mut data(cache.path(), &server, &[&format!("{url}-*")]));
    let expected = format!(
        "bf16scope: {url}-*: a pattern of names, and a web server lists none; expected a name\nhelp: name each file in a list; \
         patterns are for local files, gs:// and s3://\n"
    );
    assert_eq!(error, expected);
    let mut command = data(cache.path(), &server, &[&url]);
    let error = refused(command.env_remove("BF16SCOPE_CACHE").env_remove("XDG_CACHE_HOME").env_remove("HOME"));
    let expected = format!(
        "bf16scope: {url}: an object of a store, and there is no cache directory to bring it to\nhelp: set BF16SCOPE_CACHE\n"
    );
    assert_eq!(error, expected);
    // Nobody listens there: so many tries, then an end.
    let error = refused(&mut data(cache.path(), &server, &["http://127.0.0.1:9/a"]));
    assert!(
        error.contains("http://127.0.0.1:9/a: cannot be fetched: ") && error.contains("Connection refused"),
        "{error}"
    );
    assert!(error.contains("\nhelp: is the store reachable from this machine"), "{error}");
}
