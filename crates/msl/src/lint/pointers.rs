//! Every pointer and reference names its address space: Metal has no generic one. And there are no function pointers.

use std::collections::BTreeSet;

use super::Findings;
use crate::fold::type_size;
use crate::lex::{Kind, Token, skip_angles, skip_balanced};
use crate::reflect::split;

const SPACES: [&str; 4] = ["device", "constant", "threadgroup", "thread"];
const RULE: &str = "address space";

pub(super) fn check(findings: &mut Findings) {
    let unit = findings.unit;
    let tokens = &unit.tokens;
    let types = type_names(tokens);
    for (at, token) in tokens.iter().enumerate() {
        let starts =
            at == 0 || [";", "{", "}", ")"].iter().any(|p| tokens[at - 1].is(p)) || tokens[at - 1].kind == Kind::Pragma;
        if starts && let Some(name) = declared_pointer(tokens, at, &types) {
            let message = format!("{name}: a pointer or reference needs device, constant, threadgroup or thread");
            findings.add(token, RULE, message);
        }
        if token.text.ends_with("_cast") && tokens.get(at + 1).is_some_and(|t| t.is("<")) {
            if let Some(end) = skip_angles(tokens, at + 1) {
                unspaced(findings, token, &tokens[at + 2..end - 1], "cast");
            }
        } else if token.is("(") {
            parenthesised(findings, tokens, at, &types);
        }
    }
}

/// What an open parenthesis starts: a parameter list, a C cast to a pointer, or a function pointer.
fn parenthesised(findings: &mut Findings, tokens: &[Token], at: usize, types: &BTreeSet<String>) {
    let Some(end) = skip_balanced(tokens, at) else { return };
    let inner = &tokens[at + 1..end - 1];
    let called = tokens.get(end).is_some_and(|t| t.is("("));
    if inner.len() == 2 && inner[0].is("*") && inner[1].kind == Kind::Ident && called && at > 0 {
        if tokens[at - 1].kind == Kind::Ident && (types.contains(&*tokens[at - 1].text) || tokens[at - 1].is("void")) {
            findings.add(
                &tokens[at],
                "function pointer",
                format!("{}: Metal has no function pointers here", inner[1].text),
            );
        }
        return;
    }
    if is_cast(inner, types) {
        unspaced(findings, &tokens[at], inner, "cast");
        return;
    }
    let named = at > 0 && tokens[at - 1].kind == Kind::Ident && !KEYWORDS.contains(&&*tokens[at - 1].text);
    let mut body = end;
    while tokens.get(body).is_some_and(|t| t.is("const") || t.is("thread") || t.is("noexcept")) {
        body += 1;
    }
    let defines = named && tokens.get(body).is_some_and(|t| t.is("{"));
    if !defines {
        return;
    }
    for param in split(inner, ",") {
        if param.first().is_some_and(|t| t.kind == Kind::Ident) && param.len() > 2 {
            unspaced(findings, &param[0], param, "parameter");
        }
    }
}

const KEYWORDS: [&str; 6] = ["if", "while", "for", "switch", "return", "constexpr"];

/// `(const T*)`: only type words, then stars.
fn is_cast(inner: &[Token], types: &BTreeSet<String>) -> bool {
    let stars = inner.iter().rev().take_while(|t| t.is("*")).count();
    let words = &inner[..inner.len() - stars];
    stars > 0
        && !words.is_empty()
        && words
            .iter()
            .all(|t| t.is("const") || t.is("volatile") || SPACES.iter().any(|s| t.is(s)) || types.contains(&*t.text))
}

fn unspaced(findings: &mut Findings, at: &Token, tokens: &[Token], what: &str) {
    let mut index = 0;
    let mut indirect = false;
    while index < tokens.len() {
        let token = &tokens[index];
        if token.is("=") {
            break;
        }
        if token.is("<")
            && let Some(end) = skip_angles(tokens, index)
        {
            index = end;
            continue;
        }
        if SPACES.iter().any(|space| token.is(space)) {
            return;
        }
        indirect |= token.is("*") || token.is("&") || token.is("&&");
        index += 1;
    }
    if indirect {
        let text = crate::lex::join(tokens);
        let message = format!("{what} `{text}`: a pointer or reference needs device, constant, threadgroup or thread");
        findings.add(at, RULE, message);
    }
}

/// Name declared by a statement that starts at `at` with a type and `*` or `&` but no address space.
fn declared_pointer(tokens: &[Token], at: usize, types: &BTreeSet<String>) -> Option<String> {
    let mut index = at;
    while ["const", "constexpr", "static", "inline", "volatile"].iter().any(|w| tokens[index].is(w)) {
        index += 1;
    }
    if tokens.get(index)?.kind != Kind::Ident || !types.contains(&*tokens[index].text) {
        return None;
    }
    index += 1;
    if tokens.get(index)?.is("<") {
        index = skip_angles(tokens, index)?;
    }
    if tokens.get(index)?.is("const") {
        index += 1;
    }
    let mark = index;
    while tokens.get(index)?.is("*") || tokens.get(index)?.is("&") {
        index += 1;
    }
    let name = tokens.get(index)?;
    let follows = ["=", ";", ",", "(", "["].iter().any(|p| tokens.get(index + 1).is_some_and(|t| t.is(p)));
    (index > mark && name.kind == Kind::Ident && follows).then(|| name.text.to_string())
}

/// Names known to be types: built in, or declared by struct, enum, typedef, using or `typename T`.
fn type_names(tokens: &[Token]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, token) in tokens.iter().enumerate() {
        if token.kind != Kind::Ident {
            continue;
        }
        if type_size(&token.text).is_some() {
            names.insert(token.text.to_string());
        }
        let next = tokens.get(at + 1);
        if ["struct", "class", "enum", "union", "typename", "using"].iter().any(|word| token.is(word))
            && let Some(name) = next.filter(|t| t.kind == Kind::Ident && !t.is("namespace"))
        {
            names.insert(name.text.to_string());
        }
        if token.is("typedef")
            && let Some(end) = tokens[at..].iter().position(|t| t.is(";"))
            && end > 1
        {
            names.insert(tokens[at + end - 1].text.to_string());
        }
    }
    names
}
