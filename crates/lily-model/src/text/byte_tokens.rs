//! The bytes of every token id: the inverse of byte-level BPE's alphabet, in one flat table.

/// Bytes by token id. Ids that no token has (gaps, the padding of the model's vocabulary) are empty.
#[derive(Debug, Clone, Default)]
pub(crate) struct ByteTokens {
    bytes: Vec<u8>,
    /// `ends[id]` is where the bytes of `id` end; they start where those of `id - 1` end.
    ends: Vec<usize>,
}

impl ByteTokens {
    /// Builds the table from (id, bytes) in ascending order of id.
    pub fn new<'a>(tokens: impl IntoIterator<Item = (u32, &'a [u8])>) -> Self {
        let mut table = Self::default();
        for (id, bytes) in tokens {
            table.ends.resize(id as usize, table.bytes.len());
            table.bytes.extend_from_slice(bytes);
            table.ends.push(table.bytes.len());
        }
        table
    }

    /// One more than the largest id.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of `id`, if it has any.
    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let id = usize::try_from(id).ok()?;
        let end = *self.ends.get(id)?;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        (start < end).then(|| &self.bytes[start..end])
    }
}

/// The character that byte-level BPE writes for `byte` (GPT-2's alphabet: printable Latin-1 stands for itself, the
/// 68 others are U+0100 and up, in order).
pub(crate) fn alphabet_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let others_before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    // At most 68 others exist, so this is a valid character below U+0144.
    char::from_u32(0x100 + others_before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The bytes that a vocabulary entry stands for; `None` if it has a character outside the alphabet.
pub(crate) fn bytes_of(entry: &str) -> Option<Vec<u8>> {
    entry.chars().map(alphabet_byte).collect()
}

fn alphabet_byte(c: char) -> Option<u8> {
    match u32::from(c) {
        low @ 0..=0xff => {
            let byte = low as u8;
            (alphabet_char(byte) == c).then_some(byte)
        }
        0x100..=0x120 => Some((u32::from(c) - 0x100) as u8),
        0x121..=0x142 => Some((u32::from(c) - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection() {
        for byte in 0..=255 {
            assert_eq!(alphabet_byte(alphabet_char(byte)), Some(byte));
        }
        assert_eq!(bytes_of("ĠfoxĊ"), Some(b" fox\n".to_vec()));
        assert_eq!(bytes_of("日"), None);
    }

    #[test]
    fn ids_without_a_token_have_no_bytes() {
        let table = ByteTokens::new([(1, &b"a"[..]), (4, b"bc")]);
        let found: Vec<_> = (0..7).map(|id| table.get(id)).collect();
        assert_eq!(found, [None, Some(&b"a"[..]), None, None, Some(&b"bc"[..]), None, None]);
        assert_eq!((table.len(), table.get(u32::MAX)), (5, None));
    }
}
