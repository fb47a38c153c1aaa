//! Marks: how data keeps its origin while a chat template handles it.
//!
//! A template joins its own control strings with the words of a conversation, and the result is one string. To
//! know afterwards which `<|im_end|>` the template wrote and which one a user typed, every data character that
//! could start a control token is preceded by a mark before rendering; a character of the template has none.
//! The mark is the noncharacter U+FDD0. Data that holds U+FDD0 itself is escaped (U+FDD0 U+FDD1), so a mark can
//! be neither forged nor hidden. Marks are no white space and sit directly before the character that they tag, so
//! `trim`, `split`, `in` and joins work as without them; what needs care is in `jinja.rs`.
//!
//! This file knows nothing about templates or token ids.

use std::borrow::Cow;
use std::ops::Range;

/// Precedes a data character that could start a control token.
pub(crate) const MARK: char = '\u{FDD0}';
/// After [`MARK`]: the data holds U+FDD0 itself.
const LITERAL: char = '\u{FDD1}';

/// The first characters of a tokenizer's control strings (for Qwen: `<` alone), sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlLeads(Vec<char>);

impl ControlLeads {
    /// Collects the first characters of `controls`.
    pub fn of<'a>(controls: impl IntoIterator<Item = &'a str>) -> Self {
        let mut leads: Vec<char> = controls.into_iter().filter_map(|c| c.chars().next()).collect();
        leads.sort_unstable();
        leads.dedup();
        Self(leads)
    }

    fn contains(&self, c: char) -> bool {
        self.0.contains(&c)
    }
}

/// `text` with a mark before every character of `leads`; borrowed when there is none.
pub(crate) fn mark<'a>(text: &'a str, leads: &ControlLeads) -> Cow<'a, str> {
    let needs = |c: char| c == MARK || leads.contains(c);
    let Some(first) = text.find(needs) else {
        return Cow::Borrowed(text);
    };
    let mut marked = String::with_capacity(text.len() + text.len() / 8 + 8);
    marked.push_str(&text[..first]);
    for c in text[first..].chars() {
        if c == MARK {
            marked.extend([MARK, LITERAL]);
        } else {
            if leads.contains(c) {
                marked.push(MARK);
            }
            marked.push(c);
        }
    }
    Cow::Owned(marked)
}

/// A marked string taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unmarked {
    /// The text without marks.
    pub plain: String,
    /// Byte offsets in `plain` of the characters that were marked, ascending.
    pub tagged: Vec<usize>,
}

impl Unmarked {
    /// Takes `marked` apart. A mark that has lost its character (an operation cut between the two) tags whatever
    /// follows it, which can only make a control string into data, never data into a control string.
    pub fn of(marked: &str) -> Self {
        let mut plain = String::with_capacity(marked.len());
        let mut tagged = Vec::new();
        let mut rest = marked;
        while let Some(at) = rest.find(MARK) {
            plain.push_str(&rest[..at]);
            rest = &rest[at + MARK.len_utf8()..];
            if let Some(after) = rest.strip_prefix(LITERAL) {
                plain.push(MARK);
                rest = after;
            } else if !rest.is_empty() && !rest.starts_with(MARK) {
                tagged.push(plain.len());
            }
        }
        plain.push_str(rest);
        Self { plain, tagged }
    }

    /// The part `range` of `plain`, marked again.
    pub fn slice(&self, range: Range<usize>) -> String {
        let from = self.tagged.partition_point(|&at| at < range.start);
        let mut tags = self.tagged[from..].iter().peekable();
        let mut marked = String::with_capacity(range.len() + 8);
        for (at, c) in self.plain[range.clone()].char_indices() {
            if tags.next_if_eq(&&(range.start + at)).is_some() {
                marked.push(MARK);
            }
            marked.push(c);
            if c == MARK {
                marked.push(LITERAL);
            }
        }
        marked
    }
}

/// The text of a marked string, without marks; borrowed when there are none.
pub(crate) fn plain(marked: &str) -> Cow<'_, str> {
    if marked.contains(MARK) { Cow::Owned(Unmarked::of(marked).plain) } else { Cow::Borrowed(marked) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn leads() -> ControlLeads {
        ControlLeads::of(["<a>", "</a>", "[x]"])
    }

    #[test]
    fn text_without_leads_is_borrowed() {
        assert!(matches!(mark("plain text, é", &leads()), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn unmarking_gives_the_text_back_and_tags_exactly_its_leads(text in "[<\\[a\u{FDD0}\u{FDD1}é ]{0,40}") {
            let unmarked = Unmarked::of(&mark(&text, &leads()));
            let expected: Vec<usize> = text.char_indices().filter(|(_, c)| "<[".contains(*c)).map(|(i, _)| i).collect();
            prop_assert_eq!(&unmarked.plain, &text);
            prop_assert_eq!(&unmarked.tagged, &expected);
            prop_assert_eq!(Unmarked::of(&unmarked.slice(0..text.len())), unmarked);
        }
    }
}
