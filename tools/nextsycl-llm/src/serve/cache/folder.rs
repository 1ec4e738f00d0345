//! Checkpoints as files, in a folder that several servers may share.
//!
//! A file is: [`MAGIC`], the model's identity, the number of tokens, the tokens, a CRC-32 of all that, and the checkpoint in
//! the engine contract's form. It is written under a temporary name, synced and renamed, with the folder's lock held: a
//! process that is killed leaves only a temporary file, and whoever gets the lock next removes it. A file's modification time
//! is the time of its last use. Files of other names, or of another user, are never read, counted or removed.

use ns_files::{AtomicFile, Lock};
use ns_llm::{CheckpointHead, CheckpointReader, CheckpointWriter};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const MAGIC: &[u8; 8] = b"NSPRMPT1";
const ENDING: &str = "state";
/// How temporary files are named. The folder may be a user's own, with other files in it.
const UNFINISHED: &str = ".nextsycl-state-";
/// A checkpoint of more tokens is not one; protects from a damaged length.
const MOST_TOKENS: u64 = 1 << 28;

/// Where files are kept, and how many.
#[derive(Debug, Clone)]
pub struct Config {
    /// The folder.
    pub path: PathBuf,
    /// Most bytes of all files in it.
    pub budget: u64,
    /// Unused files go after so long.
    pub ttl: Duration,
}

/// A file of this model, as it was found or written.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// A file found at the start.
pub struct Found {
    /// What the state covers.
    pub tokens: Arc<[u32]>,
    /// Where it is.
    pub stored: Stored,
    /// Bytes of the state.
    pub state: u64,
    /// When it was used last.
    pub used: SystemTime,
}

/// The folder as one model's server sees it.
#[derive(Debug)]
pub struct Folder {
    config: Config,
    model: [u8; 32],
    fingerprint: String,
}

/// Why a file is of no use.
#[derive(Debug)]
enum Unfit {
    /// It is of another model, cache form or program.
    Foreign,
    /// It is not whole.
    Damaged(String),
}

impl From<std::io::Error> for Unfit {
    fn from(error: std::io::Error) -> Self {
        let short = error.kind() == std::io::ErrorKind::UnexpectedEof;
        Self::Damaged(if short { "it is too short".to_owned() } else { error.to_string() })
    }
}

/// Why a file was not written.
#[derive(Debug)]
pub enum Unwritten {
    /// The budget has no place for it beside newer ones.
    NoPlace,
    /// The system's, or the engine's, reason.
    Failed(String),
}

fn failed(error: impl std::fmt::Display) -> Unwritten {
    Unwritten::Failed(error.to_string())
}

/// A file of the folder, of whatever model.
struct Listed {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl Folder {
    /// The folder for a model and a cache form. Makes it where it is missing.
    pub fn open(config: Config, model: [u8; 32], fingerprint: &str) -> ns_files::Result<Self> {
        ns_files::create_dir(&config.path, true)?;
        let mode = std::fs::metadata(&config.path).map_or(0, |m| m.mode());
        if mode & 0o077 != 0 {
            let path = config.path.display();
            tracing::warn!("prompt cache: {path} is open to other users; chmod 700 makes it yours alone");
        }
        Ok(Self { config, model, fingerprint: fingerprint.to_owned() })
    }

    /// The folder's place.
    pub fn path(&self) -> &Path {
        &self.config.path
    }

    /// Most bytes of it.
    pub fn budget(&self) -> u64 {
        self.config.budget
    }

    fn lock_path(&self) -> PathBuf {
        self.config.path.join(".lock")
    }

    /// One name for each model, cache form and tokens: what is written again replaces the old file.
    fn file(&self, tokens: &[u32]) -> PathBuf {
        let mut hash = Sha256::new();
        hash.update(self.fingerprint.as_bytes());
        tokens.iter().for_each(|t| hash.update(t.to_le_bytes()));
        let hash: [u8; 32] = hash.finalize().into();
        self.config.path.join(format!("{}-{}.{ENDING}", hex(&self.model[..8]), hex(&hash[..12])))
    }

    fn list(&self) -> Vec<Listed> {
        let Ok(entries) = std::fs::read_dir(&self.config.path) else { return Vec::new() };
        let mut files = Vec::new();
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(facts) = entry.metadata() else { continue };
            if facts.is_file() && facts.uid() == own_uid() && is_ours(&path) {
                files.push(Listed {
                    path,
                    bytes: facts.len(),
                    used: facts.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                });
            }
        }
        files.sort_by_key(|f| f.used);
        files
    }

    /// The files of this model. What killed processes left, what nobody used for long and what is damaged is removed; what
    /// belongs to others stays.
    pub fn scan(&self) -> Vec<Found> {
        match Lock::try_exclusive(&self.lock_path()) {
            Ok(Some(_lock)) => self.remove_leftovers(),
            // Another server writes now: its temporary file is in use.
            Ok(None) => {}
            Err(error) => tracing::warn!("prompt cache: {error}"),
        }
        self.remove_expired();
        let (mut found, mut foreign) = (Vec::new(), 0);
        for listed in self.list() {
            match self.look_at(&listed) {
                Ok(one) => found.push(one),
                Err(Unfit::Foreign) => foreign += 1,
                Err(Unfit::Damaged(why)) => {
                    tracing::warn!("prompt cache: {} is damaged and removed: {why}", listed.path.display());
                    remove(&listed.path);
                }
            }
        }
        let others = if foreign > 0 {
            format!("; {foreign} of other models or cache forms are left alone")
        } else {
            String::new()
        };
        tracing::info!("prompt cache: {} checkpoint(s) in {}{others}", found.len(), self.config.path.display());
        found
    }

    fn remove_leftovers(&self) {
        let Ok(entries) = std::fs::read_dir(&self.config.path) else { return };
        for entry in entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with(UNFINISHED)) {
            tracing::info!("prompt cache: {} was left by a killed process and is removed", entry.path().display());
            remove(&entry.path());
        }
    }

    /// Removes what was not used for long; tells which.
    pub fn remove_expired(&self) -> Vec<PathBuf> {
        let now = SystemTime::now();
        let old = |f: &Listed| now.duration_since(f.used).is_ok_and(|age| age > self.config.ttl);
        let expired: Vec<PathBuf> = self.list().into_iter().filter(old).map(|f| f.path).collect();
        for path in &expired {
            tracing::debug!("prompt cache: {} was not used for long and is removed", path.display());
            remove(path);
        }
        expired
    }

    /// Whether a file is ours and whole, as far as its head and size tell.
    fn look_at(&self, listed: &Listed) -> Result<Found, Unfit> {
        let mut input = BufReader::new(File::open(&listed.path)?);
        let tokens = self.read_head(&mut input)?;
        let head = CheckpointReader::begin(&mut input).map_err(|e| Unfit::Damaged(e.to_string()))?.head().clone();
        if head.fingerprint != self.fingerprint {
            return Err(Unfit::Foreign);
        }
        let whole = own_head_len(tokens.len()) + checkpoint_len(&head);
        if head.position != tokens.len() || whole != listed.bytes {
            return Err(Unfit::Damaged(format!("it has {} bytes instead of {whole}", listed.bytes)));
        }
        let stored = Stored { path: listed.path.clone(), bytes: listed.bytes };
        Ok(Found { tokens: tokens.into(), stored, state: head.state_len, used: listed.used })
    }

    /// Reads our head and returns the tokens.
    fn read_head(&self, input: &mut dyn Read) -> Result<Vec<u32>, Unfit> {
        let mut magic = Vec::new();
        input.take(MAGIC.len() as u64).read_to_end(&mut magic)?;
        if magic != MAGIC {
            return Err(Unfit::Foreign);
        }
        let (mut model, mut count) = ([0; 32], [0; 8]);
        input.read_exact(&mut model)?;
        input.read_exact(&mut count)?;
        let number = u64::from_le_bytes(count);
        if number > MOST_TOKENS {
            return Err(Unfit::Damaged(format!("{number} tokens are not possible")));
        }
        let mut bytes = Vec::new();
        input.take(number * 4).read_to_end(&mut bytes)?;
        let mut crc = [0; 4];
        input.read_exact(&mut crc)?;
        let mut hasher = crc32fast::Hasher::new();
        [&model[..], &count, &bytes].into_iter().for_each(|part| hasher.update(part));
        if hasher.finalize() != u32::from_le_bytes(crc) {
            return Err(Unfit::Damaged("its checksum is wrong".to_owned()));
        }
        // Only a whole head tells whose it is.
        if model != self.model {
            return Err(Unfit::Foreign);
        }
        Ok(bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect())
    }

    /// Hands a file's state to `take`; an error when it is not there, not whole, not of these tokens, or not taken.
    pub fn read(
        &self,
        stored: &Stored,
        tokens: &[u32],
        take: impl FnOnce(&CheckpointHead, &mut dyn Read) -> ns_llm::Result<()>,
    ) -> Result<(), ReadError> {
        let file = File::open(&stored.path).map_err(|e| ReadError::Unfit(e.to_string()))?;
        if file.metadata().map_or(u32::MAX, |m| m.uid()) != own_uid() {
            return Err(ReadError::Unfit("it is another user's".to_owned()));
        }
        let mut input = BufReader::with_capacity(1 << 18, file);
        match self.read_head(&mut input) {
            Ok(found) if found == tokens => {}
            Ok(_) | Err(Unfit::Foreign) => return Err(ReadError::Unfit("it is another checkpoint now".to_owned())),
            Err(Unfit::Damaged(why)) => return Err(ReadError::Unfit(why)),
        }
        let mut reader = CheckpointReader::begin(&mut input).map_err(|e| ReadError::Unfit(e.to_string()))?;
        let head = reader.head().clone();
        take(&head, &mut reader).map_err(ReadError::Engine)?;
        reader.finish().map_err(|e| ReadError::Unfit(e.to_string()))?;
        self.touch(stored, SystemTime::now());
        Ok(())
    }

    /// Notes when a file was used.
    pub fn touch(&self, stored: &Stored, used: SystemTime) {
        // A file that another server removed meanwhile needs no time.
        if let Ok(file) = File::options().append(true).open(&stored.path) {
            let _ = file.set_modified(used);
        }
    }

    /// Writes a checkpoint whose state `give` writes. Older files make place for it; their paths are returned too.
    pub fn write(
        &self,
        tokens: &[u32],
        state_len: u64,
        used: SystemTime,
        give: impl FnOnce(&mut dyn Write) -> Result<(), String>,
    ) -> Result<(Stored, Vec<PathBuf>), Unwritten> {
        let head = CheckpointHead { fingerprint: self.fingerprint.clone(), position: tokens.len(), state_len };
        let bytes = own_head_len(tokens.len()) + checkpoint_len(&head);
        let path = self.file(tokens);
        // The folder may have been removed while we ran.
        ns_files::create_dir(&self.config.path, true).map_err(failed)?;
        let _lock = Lock::exclusive(&self.lock_path()).map_err(failed)?;
        self.remove_leftovers();
        let gone = self.make_place(bytes, used, &path)?;
        let mut file = AtomicFile::create_private(&path, UNFINISHED).map_err(failed)?;
        let write = || -> Result<(), Unwritten> {
            let mut body = Vec::with_capacity(40 + tokens.len() * 4);
            body.extend_from_slice(&self.model);
            body.extend_from_slice(&(tokens.len() as u64).to_le_bytes());
            tokens.iter().for_each(|t| body.extend_from_slice(&t.to_le_bytes()));
            file.write_all(MAGIC).map_err(failed)?;
            file.write_all(&body).map_err(failed)?;
            file.write_all(&crc32fast::hash(&body).to_le_bytes()).map_err(failed)?;
            let mut writer = CheckpointWriter::begin(&mut file, &head).map_err(failed)?;
            give(&mut writer).map_err(Unwritten::Failed)?;
            writer.finish().map_err(failed)
        };
        write()?;
        file.commit().map_err(failed)?;
        let stored = Stored { path, bytes };
        self.touch(&stored, used);
        Ok((stored, gone))
    }

    /// Removes expired files, then the oldest, until `bytes` more fit; files used later than `used` stay.
    fn make_place(&self, bytes: u64, used: SystemTime, replaced: &Path) -> Result<Vec<PathBuf>, Unwritten> {
        let mut gone = self.remove_expired();
        let files: Vec<Listed> = self.list().into_iter().filter(|f| f.path != replaced).collect();
        let mut total: u64 = files.iter().map(|f| f.bytes).sum();
        let newer: u64 = files.iter().filter(|f| f.used >= used).map(|f| f.bytes).sum();
        if newer.saturating_add(bytes) > self.config.budget {
            return Err(Unwritten::NoPlace);
        }
        for file in files {
            if total + bytes <= self.config.budget {
                break;
            }
            remove(&file.path);
            total -= file.bytes;
            gone.push(file.path);
        }
        Ok(gone)
    }
}

/// Why a file's state is not in the session.
#[derive(Debug)]
pub enum ReadError {
    /// The file is of no use, and why.
    Unfit(String),
    /// The engine does not take it.
    Engine(ns_llm::Error),
}

fn own_head_len(tokens: usize) -> u64 {
    (MAGIC.len() + 32 + 8 + 4) as u64 + tokens as u64 * 4
}

fn checkpoint_len(head: &CheckpointHead) -> u64 {
    8 + 24 + head.fingerprint.len() as u64 + head.state_len + 4
}

/// Whether a file is named as [`Folder::file`] names them: 16 and 24 hexadecimal digits.
fn is_ours(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let digits = |part: &str, count: usize| part.len() == count && part.bytes().all(|b| b.is_ascii_hexdigit());
    let parts = name.strip_suffix(ENDING).and_then(|n| n.strip_suffix('.')).and_then(|n| n.split_once('-'));
    parts.is_some_and(|(model, state)| digits(model, 16) && digits(state, 24))
}

/// The user this process runs as; the kernel's own files about it have that owner.
fn own_uid() -> u32 {
    std::fs::metadata("/proc/self").map_or(0, |m| m.uid())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Removes a file that may be gone already.
pub fn remove(path: &Path) {
    if let Err(error) = ns_files::remove(path) {
        tracing::warn!("prompt cache: {error}");
    }
}
