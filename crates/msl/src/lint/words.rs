//! Words, attributes and operators that do not exist in Metal or do not do what C++ does.

use super::Findings;
use crate::fold::fold;
use crate::lex::{Kind, Token};
use crate::reflect::{BUILTINS, attributes};

/// Words that may not occur, and why.
const WORDS: [(&str, &str); 18] = [
    ("virtual", "Metal has no virtual functions"),
    ("goto", "Metal has no goto"),
    ("new", "Metal has no new"),
    ("delete", "Metal has no delete"),
    ("throw", "Metal has no exceptions"),
    ("try", "Metal has no exceptions"),
    ("catch", "Metal has no exceptions"),
    ("typeid", "Metal has no run-time type information"),
    ("dynamic_cast", "Metal has no run-time type information"),
    ("double", "Metal has no double; use float"),
    ("asm", "Metal has no inline assembly"),
    ("thread_local", "Metal has no thread_local"),
    ("wchar_t", "Metal has no wchar_t"),
    ("std", "Metal's library is metal::, there is no std::"),
    ("log1p", "Metal has no log1p; write log(1.0f + x)"),
    ("erf", "Metal has no erf"),
    ("thread_elements", "the layout of a fragment over lanes is not specified; use simdgroup_load and simdgroup_store"),
    ("printf", "Metal has no printf"),
];

/// Those of [`WORDS`] that are functions: other uses of the name are fine.
const FUNCTIONS: [&str; 4] = ["log1p", "erf", "printf", "thread_elements"];

/// Words that fast math, Metal's default, may optimise away.
const FAST_MATH: [&str; 3] = ["INFINITY", "isnan", "isinf"];

/// Attributes of Metal that are not thread positions.
const ATTRIBUTES: [&str; 14] = [
    "buffer",
    "threadgroup",
    "kernel",
    "host_name",
    "max_total_threads_per_threadgroup",
    "function_constant",
    "texture",
    "sampler",
    "id",
    "visible",
    "stitchable",
    "user",
    "early_fragment_tests",
    "required_threads_per_threadgroup",
];

pub(super) fn check(findings: &mut Findings) {
    let unit = findings.unit;
    let tokens = &unit.tokens;
    for (at, token) in tokens.iter().enumerate() {
        if token.kind == Kind::Ident {
            let member = at > 0 && (tokens[at - 1].is(".") || tokens[at - 1].is("->"));
            let deleted = token.is("delete") && at > 0 && tokens[at - 1].is("=");
            let found = WORDS.iter().find(|(word, _)| token.is(word));
            let called = tokens.get(at + 1).is_some_and(|t| t.is("("));
            let found = found.filter(|(word, _)| called || !FUNCTIONS.contains(word));
            if let Some((word, why)) = found.filter(|(word, _)| !deleted && (!member || *word == "thread_elements")) {
                findings.add(token, "not in Metal", format!("{word}: {why}"));
            }
            if FAST_MATH.iter().any(|word| token.is(word)) && !member {
                let message = format!("{}: fast math may drop it; use a large finite value", token.text);
                findings.add(token, "fast math", message);
            }
            if token.text.starts_with("__metal_") {
                findings.add(
                    token,
                    "reserved name",
                    format!("{}: names in __metal_ belong to the compiler", token.text),
                );
            }
        }
        if let Some((_, items)) = attributes(tokens, at) {
            for item in items {
                let name = item.name.as_str();
                if !ATTRIBUTES.contains(&name) && !BUILTINS.contains(&name) {
                    findings.add(token, "unknown attribute", format!("[[{name}]] is no attribute of a kernel"));
                }
            }
        }
        if (token.is("<<") || token.is(">>")) && at > 0 {
            shift(findings, tokens, at);
        }
    }
}

/// A shift by a constant of 32 or more whose left side is not visibly 64 bits wide.
fn shift(findings: &mut Findings, tokens: &[Token], at: usize) {
    let Some(next) = tokens.get(at + 1) else { return };
    let amount = match next.kind {
        Kind::Number => fold(&tokens[at + 1..at + 2], &|_| None),
        _ => None,
    };
    let Some(amount) = amount else { return };
    // `a<b>>4` of nested template arguments is no shift: a number before `>>` and a name or bracket after it would be one.
    let limit = if wide(tokens, at) { 64 } else { 32 };
    if !(0..limit).contains(&amount) {
        findings.add(&tokens[at], "shift", format!("shift by {amount} of a value of {limit} bits or less"));
    }
}

fn wide(tokens: &[Token], at: usize) -> bool {
    const WIDE: [&str; 6] = ["ulong", "long", "uint64_t", "int64_t", "size_t", "ptrdiff_t"];
    let left = &tokens[at - 1];
    if left.kind == Kind::Number {
        return left.text.to_ascii_lowercase().contains('l');
    }
    if left.is(")") {
        // Within the statement: any 64-bit word on the left side counts.
        let head = tokens[..at].iter().rposition(|t| t.is(";") || t.is("{") || t.is("}")).unwrap_or(0);
        return tokens[head..at].iter().any(|t| WIDE.iter().any(|w| t.is(w)));
    }
    if left.kind == Kind::Ident {
        // Declared with a 64-bit type somewhere before.
        return tokens[..at].windows(2).any(|pair| pair[1].text == left.text && WIDE.iter().any(|w| pair[0].is(w)));
    }
    true
}
