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
    let mut text = String::new();
    from.take(limit + 1).read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= limit, "more than {limit} bytes (accepted: at most {limit})");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn a_reader_without_an_end_is_refused_and_one_of_the_largest_size_is_not() {
        let error = read(std::io::repeat(b'a'), 1000).unwrap_err();
        assert!(error.to_string().contains("at most 1000"), "{error}");
        assert_eq!(read(&vec![b'a'; 1000][..], 1000).unwrap().len(), 1000);
    }
}
