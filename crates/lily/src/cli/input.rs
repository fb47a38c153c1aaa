//! Files that an option names, read up to a size that any sensible one keeps: a device or a pipe may have no end.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, ensure};

/// Text of the file that `option` names, at most `limit` bytes.
pub(super) fn text(option: &str, path: &Path, limit: u64) -> anyhow::Result<String> {
    let place = || format!("{option} {}", path.display());
    read(File::open(path).with_context(place)?, limit).with_context(place)
}

/// All text that a reader gives, at most `limit` bytes.
pub(super) fn read(from: impl Read, limit: u64) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    from.take(limit + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= limit, "more than {limit} bytes (accepted: at most {limit})");
    String::from_utf8(bytes).context("not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn a_reader_without_an_end_is_refused_and_one_of_the_largest_size_is_not() {
        let error = read(std::io::repeat(b'a'), 1000).unwrap_err();
        assert!(error.to_string().contains("at most 1000"), "{error}");
        assert_eq!(read(&vec![b'a'; 1000][..], 1000).unwrap().len(), 1000);
        // Cut within a character, it is still too long and not wrongly encoded.
        let error = read("é".repeat(501).as_bytes(), 1001).unwrap_err();
        assert!(error.to_string().contains("at most 1001"), "{error}");
        assert!(read(&[0xff][..], 1000).unwrap_err().to_string().contains("UTF-8"));
    }
}
