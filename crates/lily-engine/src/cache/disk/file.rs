//! One file of the disk tier: a slot's state or a page's keys and values, with the tokens that led to it.
//!
//! Layout, little-endian: magic `LILYPC01` · kind u32 · fingerprint length u32 · tokens u32 · payload bytes u64 ·
//! fingerprint · token ids u32 · CRC-32 of all before · payload · CRC-32 of the payload.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

const MAGIC: &[u8; 8] = b"LILYPC01";
/// Longer headers are not ours: 16 M tokens.
const MAX_TOKENS: usize = 1 << 24;
const MAX_FINGERPRINT: usize = 1 << 12;

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// State after the tokens.
    Slot,
    /// Keys and values of the last 1 to 256 of the tokens.
    Page,
}

/// A file's description of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: Kind,
    pub fingerprint: String,
    pub tokens: Vec<u32>,
    pub payload_len: u64,
}

/// Why a file is not usable.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("not a file of this cache: {0}")]
    Format(&'static str),
    #[error("checksum of the {0} does not match")]
    Checksum(&'static str),
}

/// Writes a file under its final name only when it is complete.
pub(super) fn write(path: &Path, header: &Header, payload: &[u8]) -> io::Result<()> {
    let mut head = Vec::with_capacity(64 + header.tokens.len() * 4);
    head.extend_from_slice(MAGIC);
    head.extend_from_slice(&(header.kind as u32).to_le_bytes());
    head.extend_from_slice(&(header.fingerprint.len() as u32).to_le_bytes());
    head.extend_from_slice(&(header.tokens.len() as u32).to_le_bytes());
    head.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    head.extend_from_slice(header.fingerprint.as_bytes());
    header.tokens.iter().for_each(|t| head.extend_from_slice(&t.to_le_bytes()));
    head.extend_from_slice(&crc32fast::hash(&head).to_le_bytes());
    let partial = path.with_extension("part");
    let mut file = File::create(&partial)?;
    file.write_all(&head)?;
    file.write_all(payload)?;
    file.write_all(&crc32fast::hash(payload).to_le_bytes())?;
    file.sync_data()?;
    drop(file);
    std::fs::rename(&partial, path)
}

/// Reads a file's description only.
pub(super) fn read_header(path: &Path) -> Result<Header, FileError> {
    read_header_from(&mut BufReader::new(File::open(path)?))
}

/// Reads a file whole and checks it.
pub(super) fn read(path: &Path) -> Result<(Header, Vec<u8>), FileError> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let header = read_header_from(&mut reader)?;
    if header.payload_len > size {
        return Err(FileError::Format("the payload is cut off"));
    }
    let mut payload = vec![0; header.payload_len as usize];
    reader.read_exact(&mut payload)?;
    if u32::from_le_bytes(take(&mut reader)?) != crc32fast::hash(&payload) {
        return Err(FileError::Checksum("payload"));
    }
    Ok((header, payload))
}

fn take<const N: usize>(reader: &mut impl Read) -> Result<[u8; N], FileError> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn read_header_from(reader: &mut impl Read) -> Result<Header, FileError> {
    let fixed: [u8; 28] = take(reader)?;
    let word = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
    if &fixed[..8] != MAGIC {
        return Err(FileError::Format("magic"));
    }
    let kind = match word(8) {
        0 => Kind::Slot,
        1 => Kind::Page,
        _ => return Err(FileError::Format("kind")),
    };
    let (name_len, count) = (word(12) as usize, word(16) as usize);
    if name_len > MAX_FINGERPRINT || count > MAX_TOKENS {
        return Err(FileError::Format("lengths"));
    }
    let mut rest = vec![0; name_len + count * 4];
    reader.read_exact(&mut rest)?;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&fixed);
    crc.update(&rest);
    if u32::from_le_bytes(take(reader)?) != crc.finalize() {
        return Err(FileError::Checksum("header"));
    }
    let tokens = rest[name_len..].chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    rest.truncate(name_len);
    let fingerprint = String::from_utf8(rest).map_err(|_| FileError::Format("fingerprint"))?;
    let payload_len = u64::from(word(20)) | u64::from(word(24)) << 32;
    Ok(Header { kind, fingerprint, tokens, payload_len })
}
