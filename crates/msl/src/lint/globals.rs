//! Variables at namespace scope live in constant memory, and threadgroup variables in kernels.

use super::Findings;
use crate::lex::{Kind, skip_balanced};

/// Words that start a declaration which is no variable.
const OTHER: [&str; 12] = [
    "typedef",
    "using",
    "struct",
    "class",
    "enum",
    "union",
    "template",
    "namespace",
    "static_assert",
    "kernel",
    "extern",
    "inline",
];

pub(super) fn check(findings: &mut Findings) {
    let tokens = &findings.unit.tokens;
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].kind == Kind::Pragma || tokens[at].is(";") || tokens[at].is("}") {
            at += 1;
            continue;
        }
        // One declaration: up to its semicolon or past its body.
        let start = at;
        let (mut call, mut assigned, mut end) = (false, None, None);
        while at < tokens.len() && end.is_none() {
            let token = &tokens[at];
            if token.is("(") && assigned.is_none() {
                call = true;
            }
            if token.is("=") {
                assigned = assigned.or(Some(at));
            }
            if token.is("{") && assigned.is_none() && tokens[start..at].iter().any(|t| t.is("namespace")) {
                // Descend into a namespace.
                end = Some(at + 1);
            } else if token.is("(") || token.is("[") || token.is("{") {
                let body = token.is("{") && assigned.is_none();
                at = skip_balanced(tokens, at).unwrap_or(tokens.len());
                if body && !tokens.get(at).is_some_and(|t| t.is(";")) {
                    end = Some(at);
                }
            } else if token.is(";") {
                end = Some(at + 1);
            } else {
                at += 1;
            }
        }
        let end = end.unwrap_or(tokens.len());
        at = end;
        let words = &tokens[start..assigned.unwrap_or(end)];
        let first = &tokens[start];
        let other = OTHER.iter().any(|word| first.is(word)) || first.kind != Kind::Ident;
        if other || (call && assigned.is_none()) || !tokens[end - 1].is(";") {
            continue;
        }
        if words.iter().any(|t| t.is("threadgroup")) {
            findings.add(first, "scope", "threadgroup variables are declared at kernel scope");
        } else if !words.iter().any(|t| t.is("constant")) {
            findings.add(first, "scope", "a variable at namespace scope must be `constant`");
        }
    }
}
