//! Recursion: Metal functions have no stack to recurse on.

use std::collections::{BTreeMap, BTreeSet};

use super::Findings;
use crate::lex::{Kind, Token, skip_balanced};
use crate::reflect::split;

/// A function is its name and how many arguments it takes, so that overloads which call each other are kept apart.
type Function = (String, usize);

pub(super) fn check(findings: &mut Findings) {
    let tokens = &findings.unit.tokens;
    let bodies = bodies(tokens);
    let mut calls: BTreeMap<Function, BTreeSet<Function>> = BTreeMap::new();
    for (function, _, body) in &bodies {
        let called = calls.entry(function.clone()).or_default();
        for at in body.0..body.1 {
            if let Some((callee, _)) = call(tokens, at)
                && bodies.iter().any(|(other, _, _)| *other == callee)
            {
                called.insert(callee);
            }
        }
    }
    for (function, name_at, _) in &bodies {
        if reaches(&calls, function, function) {
            findings.add(
                &tokens[*name_at],
                "recursion",
                format!("{} calls itself; Metal has no recursion", function.0),
            );
        }
    }
}

fn reaches(calls: &BTreeMap<Function, BTreeSet<Function>>, from: &Function, to: &Function) -> bool {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&Function> = calls.get(from).into_iter().flatten().collect();
    while let Some(next) = open.pop() {
        if next == to {
            return true;
        }
        if seen.insert(next) {
            open.extend(calls.get(next).into_iter().flatten());
        }
    }
    false
}

/// `name(arguments)` at `at`, not after `.` or `->`; and where the list ends.
fn call(tokens: &[Token], at: usize) -> Option<(Function, usize)> {
    let name = &tokens[at];
    if name.kind != Kind::Ident || !tokens.get(at + 1)?.is("(") {
        return None;
    }
    if at > 0 && (tokens[at - 1].is(".") || tokens[at - 1].is("->")) {
        return None;
    }
    let end = skip_balanced(tokens, at + 1)?;
    Some(((name.text.to_string(), split(&tokens[at + 2..end - 1], ",").len()), end))
}

/// Function definitions: name with arity, position of the name, range of the body.
fn bodies(tokens: &[Token]) -> Vec<(Function, usize, (usize, usize))> {
    let mut found = Vec::new();
    for at in 1..tokens.len() {
        let Some((function, mut end)) = call(tokens, at) else { continue };
        if ["if", "while", "for", "switch"].contains(&function.0.as_str()) {
            continue;
        }
        // A definition has a return type in front of its name; a call in front of a block does not occur.
        let typed = tokens[at - 1].kind == Kind::Ident
            || tokens[at - 1].is(">")
            || tokens[at - 1].is("*")
            || tokens[at - 1].is("&");
        while tokens.get(end).is_some_and(|t| t.is("const") || t.is("thread")) {
            end += 1;
        }
        if typed
            && tokens.get(end).is_some_and(|t| t.is("{"))
            && let Some(close) = skip_balanced(tokens, end)
        {
            found.push((function, at, (end, close)));
        }
    }
    found
}
