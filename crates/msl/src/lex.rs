//! Tokens of Metal source text.
//!
//! The lexer knows spelling only: identifiers, numbers, strings, punctuators, and where each one stood. It does not know
//! types or grammar; comments disappear here, preprocessor lines are recognised by [`crate::preprocess`].

use std::rc::Rc;

use crate::Error;

/// What sort of token a piece of text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A name or keyword.
    Ident,
    /// A preprocessing number (`1`, `0x1F`, `1.5e-3h`).
    Number,
    /// A string or character literal with its quotes.
    Literal,
    /// An operator or bracket.
    Punct,
    /// A whole `#pragma` line that has to stand on a line of its own.
    Pragma,
}

/// One token: its text and the line it came from.
#[derive(Debug, Clone)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// Its spelling.
    pub text: Rc<str>,
    /// Index of the source part it came from.
    pub file: u32,
    /// 1-based line in that part; for a macro expansion the line of the use.
    pub line: u32,
    /// Whether white space stood before it.
    pub space: bool,
    /// Whether it is the first token of its line.
    pub first: bool,
    /// Names of macros that must not be expanded again in this token.
    pub(crate) hidden: Option<Rc<Vec<Rc<str>>>>,
}

impl Token {
    /// Whether this is the punctuator or identifier `text`.
    pub fn is(&self, text: &str) -> bool {
        self.kind != Kind::Literal && &*self.text == text
    }
}

const PUNCTUATORS: [&str; 24] = [
    "<<=", ">>=", "...", "->*", "::", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=", "/=", "%=",
    "&=", "|=", "^=", "++", "--", "->",
];

/// Splits one part into tokens; line continuations are joined, comments dropped.
///
/// # Errors
/// A string or comment that does not end, or a character that no token starts with.
pub fn lex(text: &str, file: u32, name: &str) -> Result<Vec<Token>, Error> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut line, mut space, mut first) = (0usize, 1u32, false, true);
    let error = |line: u32, message: String| Error::Syntax { file: name.to_string(), line, message };
    while at < bytes.len() {
        let c = bytes[at];
        if c == b'\n' {
            line += 1;
            at += 1;
            first = true;
            space = false;
            continue;
        }
        if c == b'\\' && matches!(bytes.get(at + 1), Some(b'\n')) {
            line += 1;
            at += 2;
            space = true;
            continue;
        }
        if c.is_ascii_whitespace() {
            at += 1;
            space = true;
            continue;
        }
        if bytes[at..].starts_with(b"//") {
            while at < bytes.len() && bytes[at] != b'\n' {
                at += 1;
            }
            continue;
        }
        if bytes[at..].starts_with(b"/*") {
            let start = line;
            at += 2;
            loop {
                match bytes.get(at) {
                    None => return Err(error(start, "comment does not end".into())),
                    Some(b'*') if bytes.get(at + 1) == Some(&b'/') => break,
                    Some(b'\n') => line += 1,
                    Some(_) => {}
                }
                at += 1;
            }
            at += 2;
            space = true;
            continue;
        }
        let start = at;
        let kind = if c.is_ascii_alphabetic() || c == b'_' {
            while at < bytes.len() && (bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_') {
                at += 1;
            }
            Kind::Ident
        } else if c.is_ascii_digit() || (c == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)) {
            let hex = bytes[at..].starts_with(b"0x") || bytes[at..].starts_with(b"0X");
            while at < bytes.len() {
                let b = bytes[at];
                let sign = (b == b'+' || b == b'-')
                    && if hex { matches!(bytes[at - 1], b'p' | b'P') } else { matches!(bytes[at - 1], b'e' | b'E') };
                if b.is_ascii_alphanumeric() || b == b'_' || b == b'.' || sign {
                    at += 1;
                } else {
                    break;
                }
            }
            Kind::Number
        } else if c == b'"' || c == b'\'' {
            at += 1;
            while at < bytes.len() && bytes[at] != c {
                if bytes[at] == b'\n' {
                    break;
                }
                at += if bytes[at] == b'\\' { 2 } else { 1 };
            }
            if at >= bytes.len() || bytes[at] != c {
                return Err(error(line, "literal does not end on its line".into()));
            }
            at += 1;
            Kind::Literal
        } else if !c.is_ascii() {
            return Err(error(line, "only ASCII is allowed outside comments".into()));
        } else if let Some(p) = PUNCTUATORS.iter().find(|p| bytes[at..].starts_with(p.as_bytes())) {
            at += p.len();
            Kind::Punct
        } else if bytes[at..].starts_with(b"##") {
            at += 2;
            Kind::Punct
        } else {
            at += 1;
            Kind::Punct
        };
        tokens.push(Token { kind, text: text[start..at].into(), file, line, space, first, hidden: None });
        space = false;
        first = false;
    }
    Ok(tokens)
}

/// Index just past the bracket that closes the one at `open`, or `None` if it does not close.
pub fn skip_balanced(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        if token.kind == Kind::Punct {
            match &*token.text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => {
                    depth = depth.checked_sub(1)?;
                    if depth == 0 {
                        return Some(index + 1);
                    }
                }
                _ => {}
            }
        }
    }
    None
}

/// Index just past the `>` that closes the `<` at `open` (template brackets; shifts inside parentheses are skipped).
pub fn skip_angles(tokens: &[Token], open: usize) -> Option<usize> {
    let (mut index, mut depth) = (open, 0i32);
    while index < tokens.len() {
        let token = &tokens[index];
        if token.kind == Kind::Punct {
            match &*token.text {
                "<" => depth += 1,
                ">" => depth -= 1,
                ">>" => depth -= 2,
                "(" | "[" | "{" => {
                    index = skip_balanced(tokens, index)?;
                    continue;
                }
                ";" | ")" | "]" | "}" => return None,
                _ => {}
            }
        }
        index += 1;
        if depth <= 0 {
            return Some(index);
        }
    }
    None
}

/// Joins tokens into readable text, single-spaced where the source had white space.
pub fn join(tokens: &[Token]) -> String {
    let mut text = String::new();
    for token in tokens {
        if !text.is_empty() {
            let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let touching = text.ends_with(word) && token.text.starts_with(word);
            if token.space || token.first || touching {
                text.push(' ');
            }
        }
        text.push_str(&token.text);
    }
    text
}
