//! The stores themselves, through the crate `object_store`. Its calls run on a private runtime of one thread.
//!
//! Credentials come from the environment, as the crate reads it. A request that cannot connect or gets a temporary
//! error is retried, at most [`RETRIES`] times; an interrupted download resumes if the object has an ETag.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path as Name;
use object_store::{
    BackoffConfig, ClientConfigKey, ClientOptions, Error, GetOptions, ObjectMeta, ObjectStore, RetryConfig,
};
use sha2::{Digest, Sha256};

use super::{Parts, Shard};
use crate::error::{DataError, DataErrorKind};
use crate::records::shard::{Cached, cached_sums, key};
use bf16scope_files::{self as files, OnBytes, Records as Kept, Replacement, Summing, Sums};

/// How often a request is retried.
const RETRIES: usize = 4;
/// The longest wait before a retry.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// The timeout for a silent server.
const SILENCE: &str = "30 seconds";
/// The timeout for a whole download.
const WHOLE: Duration = Duration::from_secs(24 * 60 * 60);
/// Concurrent metadata requests.
const AT_A_TIME: usize = 32;
/// The largest number of names to match with a pattern.
const MAX_NAMES: usize = 1_000_000;

/// An object and its store.
#[derive(Clone)]
struct Object {
    url: String,
    store: Arc<dyn ObjectStore>,
    name: Name,
}

impl Object {
    fn failed(&self, error: &Error) -> DataError {
        failed(&self.url, error)
    }

    /// Fetches its metadata.
    async fn look(self) -> Result<ObjectMeta, DataError> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        Ok(self.store.get_opts(&self.name, options).await.map_err(|error| self.failed(&error))?.meta)
    }

    /// Passes its bytes to `take`, piece by piece.
    async fn bring(
        &self,
        expected: &ObjectMeta,
        mut take: impl FnMut(&[u8]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let object =
            self.store.get_opts(&self.name, GetOptions::default()).await.map_err(|error| self.failed(&error))?;
        let (is_same, mut n_bytes) = (version(&object.meta) == version(expected), 0);
        let mut pieces = object.into_stream();
        while let Some(piece) = pieces.next().await.filter(|_| is_same) {
            let piece = piece.map_err(|error| self.failed(&error))?;
            n_bytes += piece.len() as u64;
            take(&piece)?;
        }
        match is_same && n_bytes == expected.size {
            true => Ok(()),
            false => {
                let error =
                    DataError::new(DataErrorKind::Damaged, &*self.url, "the object changed while it was fetched");
                Err(error.help("run again when nobody writes it"))
            }
        }
    }
}

/// Downloads objects into a cache of `limit` bytes, unless they are there already.
pub(super) fn fetch(
    urls: &[(&str, Parts<'_>)],
    cached: &Kept,
    limit: u64,
    on_bytes: &OnBytes,
) -> Result<Vec<Shard>, DataError> {
    let _span = tracing::info_span!("fetch").entered();
    let mut stores = Stores::default();
    let objects = urls.iter().map(|(url, parts)| stores.object(url, *parts)).collect::<Result<Vec<_>, _>>()?;
    block_on(bring_all(&objects, cached, limit, on_bytes))
}

async fn bring_all(objects: &[Object], cached: &Kept, limit: u64, on_bytes: &OnBytes) -> Result<Vec<Shard>, DataError> {
    let mut metas = Vec::new();
    for some in objects.chunks(AT_A_TIME) {
        let asked: Vec<_> = some.iter().map(|object| tokio::spawn(object.clone().look())).collect();
        for answer in asked {
            metas.push(answer.await.expect("asking does not panic")?);
        }
    }
    let mut shards: Vec<Shard> = objects.iter().zip(&metas).map(|(object, meta)| shard(&object.url, meta)).collect();
    let keys: Vec<String> = shards.iter().map(|shard| key(std::slice::from_ref(shard))).collect();
    let mut measured = 0u64;
    for (object, shard) in objects.iter().zip(&shards) {
        measured = measured.saturating_add(shard.n_bytes);
        if measured > limit {
            let message = format!(
                "the objects of this data set up to here have {measured} bytes; expected at most {limit}, which is all that is kept"
            );
            let help = "name fewer, or copy the files where there is room and name those";
            return Err(DataError::new(DataErrorKind::TooLarge, &*object.url, message).help(help));
        }
    }
    // Marks the objects already here as used, so that they are not the least recently used ones.
    let mut new = Vec::new();
    for (idx, (shard, key)) in shards.iter_mut().zip(&keys).enumerate() {
        let path = cached.path(key);
        cached.check(key).map_err(|error| DataError::open(&shard.path, error.into()))?;
        match cached_sums(&path, key) {
            Some(sums) => shard.fetched = Some(Cached { path, sums: Arc::new(sums) }),
            None => new.push(idx),
        }
    }
    let total: u64 = new.iter().map(|idx| shards[*idx].n_bytes).sum();
    if !new.is_empty() {
        let (n, mib, dir, gib) = (new.len(), total >> 20, cached.dir().display(), limit >> 30);
        tracing::warn!("objects are fetched once: {n} of them, {mib} MiB, to {dir}, where at most {gib} GiB are kept");
    }
    let keys_in_use: BTreeSet<String> = keys.iter().cloned().collect();
    let mut done = 0;
    for idx in new {
        let say = |n_bytes| {
            done += n_bytes;
            on_bytes.tell(done, total);
        };
        let sums = write(&objects[idx], &metas[idx], &keys[idx], cached, say).await?;
        shards[idx].fetched = Some(Cached { path: cached.path(&keys[idx]), sums: Arc::new(sums) });
        // Never removes a file of this data set to make room for another one of it.
        if let Err(error) = cached.make_room(&keys_in_use) {
            tracing::warn!("{}: {error}; what is kept there stays", cached.dir().display());
        }
    }
    Ok(shards)
}

/// The shard of an object that is not downloaded yet.
fn shard(url: &str, meta: &ObjectMeta) -> Shard {
    let hash = Sha256::digest(version(meta));
    let changed = u128::from_le_bytes(*hash.first_chunk().expect("it has 32 bytes"));
    if meta.e_tag.is_none() && meta.last_modified.timestamp() == 0 {
        tracing::warn!(
            "{url}: the server gives neither ETag nor Last-Modified, so a change that keeps its size is not seen"
        );
    }
    Shard { path: url.into(), n_bytes: meta.size, changed, state: [0; 3], fetched: None, unpacked: None }
}

/// Identifies this version of an object.
fn version(meta: &ObjectMeta) -> String {
    format!("{:?} {:?} {} {}", meta.e_tag, meta.version, meta.last_modified.to_rfc3339(), meta.size)
}

/// Downloads a whole object into the cache.
async fn write(
    object: &Object,
    meta: &ObjectMeta,
    key: &str,
    cached: &Kept,
    mut say: impl FnMut(u64),
) -> Result<Sums, DataError> {
    let failed = |cause: std::io::Error| {
        let message = format!("cannot be kept in {}", cached.dir().display());
        let help = format!("{}, or set BF16SCOPE_CACHE to a roomier directory", files::room_for(&cause));
        DataError::new(DataErrorKind::Write, &*object.url, message).because(cause).help(help)
    };
    std::fs::create_dir_all(cached.dir()).map_err(failed)?;
    files::sweep(cached.dir()).map_err(failed)?;
    let path = cached.path(key);
    files::make_way(&path).map_err(failed)?;
    let mut out = Replacement::begin(&path).map_err(failed)?;
    let mut sums = Summing::default();
    object
        .bring(meta, |bytes| {
            say(bytes.len() as u64);
            sums.update(bytes);
            out.write_all(bytes).map_err(failed)
        })
        .await?;
    out.finish().map_err(failed)?;
    let sums = sums.finish();
    sums.keep(&path, key).map_err(failed)?;
    Ok(sums)
}

fn too_many(url: &str, limit: usize) -> DataError {
    let error = DataError::new(DataErrorKind::TooLarge, url, format!("more than {limit} names in its folder"));
    error.help("name a folder with fewer, or the files in a list")
}

/// Lists the names below a folder of a store.
pub(super) fn list(url: &str, parts: Parts<'_>, folder: &str) -> Result<Vec<String>, DataError> {
    let store = Stores::default().store(url, parts)?;
    block_on(async {
        let mut listed = store.list(Some(&Name::from(folder)).filter(|_| !folder.is_empty()));
        let mut names = Vec::new();
        while let Some(meta) = listed.next().await {
            if names.len() == MAX_NAMES {
                return Err(too_many(url, MAX_NAMES));
            }
            names.push(meta.map_err(|error| failed(url, &error))?.location.to_string());
        }
        Ok(names)
    })
}

/// Runs a future to its end, on a new thread: the caller's may have a runtime already.
fn block_on<T: Send>(future: impl Future<Output = Result<T, DataError>> + Send) -> Result<T, DataError> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("the system gives a thread its events").block_on(future)
    };
    std::thread::scope(|scope| scope.spawn(run).join()).expect("fetching does not panic")
}

/// One client for each bucket or server.
#[derive(Default)]
struct Stores(BTreeMap<String, Arc<dyn ObjectStore>>);

impl Stores {
    fn object(&mut self, url: &str, parts: Parts<'_>) -> Result<Object, DataError> {
        let name = match parts.scheme {
            "gs" | "s3" => Name::parse(parts.name),
            _ => Name::from_url_path(parts.name),
        };
        let name = name.map_err(|error| failed(url, &error.into()))?;
        Ok(Object { url: url.to_string(), store: self.store(url, parts)?, name })
    }

    fn store(&mut self, url: &str, Parts { scheme, host, .. }: Parts<'_>) -> Result<Arc<dyn ObjectStore>, DataError> {
        let place = format!("{scheme}://{host}");
        if let Some(store) = self.0.get(&place) {
            return Ok(Arc::clone(store));
        }
        let backoff = BackoffConfig { max_backoff: MAX_WAIT, ..BackoffConfig::default() };
        let retry = RetryConfig { max_retries: RETRIES, retry_timeout: WHOLE, backoff };
        let limits = [
            (ClientConfigKey::ReadTimeout, SILENCE.to_string()),
            (ClientConfigKey::Timeout, format!("{} seconds", WHOLE.as_secs())),
        ];
        let limits = limits.into_iter();
        let store = match scheme {
            "gs" => {
                let builder = GoogleCloudStorageBuilder::from_env().with_url(&place).with_retry(retry);
                let builder =
                    limits.fold(builder, |it, (key, value)| it.with_config(GoogleConfigKey::Client(key), value));
                builder.build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            }
            "s3" => {
                let builder = AmazonS3Builder::from_env().with_url(&place).with_retry(retry);
                let builder =
                    limits.fold(builder, |it, (key, value)| it.with_config(AmazonS3ConfigKey::Client(key), value));
                builder.build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            }
            _ => {
                let options = ClientOptions::new().with_allow_http(scheme == "http");
                let options = limits.fold(options, |it, (key, value)| it.with_config(key, value));
                let builder = HttpBuilder::new().with_url(&place).with_client_options(options).with_retry(retry);
                builder.build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            }
        };
        let store = store.map_err(|error| failed(url, &error))?;
        self.0.insert(place, Arc::clone(&store));
        Ok(store)
    }
}

/// A store's error, in one line, with a remedy. The crate redacts requests that contain a secret.
fn failed(url: &str, error: &Error) -> DataError {
    let mut texts = vec![error.to_string()];
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        let text = error.to_string();
        // Skips wrappers that only repeat the message of their cause.
        if texts.last().is_some_and(|last| last.contains(&text)) {
            texts.pop();
        }
        texts.push(text);
        source = error.source();
    }
    let message = texts.join(": ").split_whitespace().collect::<Vec<_>>().join(" ");
    let message: String = message.trim_end_matches([':', ' ']).chars().take(300).collect();
    let help = match error {
        Error::NotFound { .. } => "check the name, letter for letter",
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            "check the credentials in the environment (GOOGLE_APPLICATION_CREDENTIALS, AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY); GOOGLE_SKIP_SIGNATURE=true or AWS_SKIP_SIGNATURE=true read what is public"
        }
        _ => {
            "is the store reachable from this machine, and are there credentials in the environment? \
             GOOGLE_SKIP_SIGNATURE=true or AWS_SKIP_SIGNATURE=true read what is public; or copy the file here and name that"
        }
    };
    DataError::new(DataErrorKind::Read, url, format!("cannot be fetched: {message}")).help(help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::ObjectStoreExt as _;
    use object_store::memory::InMemory;

    #[test]
    fn objects_have_a_limit_and_no_half_of_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let cached = super::super::objects(folder.path());
        let object = |name: &str| Object {
            url: format!("s3://bucket/{name}"),
            store: Arc::new(InMemory::new()),
            name: Name::from(name),
        };
        let objects = [object("a"), object("b")];
        let put = |object: &Object, bytes: &str| {
            let bytes = bytes.to_string().into();
            block_on(async { object.store.put(&object.name, bytes).await.map_err(|error| object.failed(&error)) })
                .unwrap();
        };
        put(&objects[0], "1234");
        let refused = |cached: &Kept, limit| {
            block_on(bring_all(&objects, cached, limit, &OnBytes::default())).unwrap_err().to_string()
        };
        assert!(refused(&cached, 7).ends_with("\nhelp: check the name, letter for letter"));
        put(&objects[1], "5678");
        let help = "help: name fewer, or copy the files where there is room and name those";
        let message = "s3://bucket/b: the objects of this data set up to here have 8 bytes; expected at most 7, which is all that";
        assert_eq!(refused(&cached, 7), format!("{message} is kept\n{help}"));
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let help = "help: move the file away that is where the path has a folder, or set BF16SCOPE_CACHE to a roomier directory";
        let message = format!("s3://bucket/a: cannot be kept in {}\n{help}", file.join("objects").display());
        assert_eq!(refused(&super::super::objects(&file), 8), message);
        // The object was replaced before it was downloaded.
        let stale = block_on(objects[0].clone().look()).unwrap();
        put(&objects[0], "4321");
        let error = block_on(write(&objects[0], &stale, "key", &cached, |_| {}));
        let message = "s3://bucket/a: the object changed while it was fetched\nhelp: run again when nobody writes it";
        assert_eq!(error.unwrap_err().to_string(), message);
        assert_eq!(cached.size().unwrap(), (0, 0));
        let shards = block_on(bring_all(&objects, &cached, 8, &OnBytes::default())).unwrap();
        let read = |shard: &Shard| std::fs::read_to_string(shard.stored()).unwrap();
        assert_eq!(shards.iter().map(read).collect::<Vec<_>>(), ["4321", "5678"]);
        assert_eq!(cached.size().unwrap(), (2, 8));
        for (error, help) in [
            (
                Error::Unauthenticated { path: "a".to_string(), source: "no token".into() },
                "check the credentials in the environment (GOOGLE_APPLICATION_CREDENTIALS, AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY); GOOGLE_SKIP_SIGNATURE=true or AWS_SKIP_SIGNATURE=true read what is public",
            ),
            (
                Error::Generic { store: "S3", source: "no route".into() },
                "is the store reachable from this machine, and are there credentials in the environment? \
                 GOOGLE_SKIP_SIGNATURE=true or AWS_SKIP_SIGNATURE=true read what is public; or copy the file here and name \
                 that",
            ),
        ] {
            let error = failed("s3://bucket/a", &error).to_string();
            assert!(error.starts_with("s3://bucket/a: cannot be fetched: "), "{error}");
            assert!(error.ends_with(&format!("\nhelp: {help}")), "{error}");
        }
        let names = too_many("gs://bucket/a*", 3);
        let message =
            "gs://bucket/a*: more than 3 names in its folder\nhelp: name a folder with fewer, or the files in a list";
        assert_eq!(names.to_string(), message);
    }
}
