//! A C preprocessor for Metal sources: macros, conditionals, pragmas.
//!
//! Written here, rather than asking a C++ compiler for `-E`, so that reflection and translation to CUDA work on machines
//! with no compiler. `#include <...>` lines are dropped (the shim plays the standard headers); `#include "x"` is an error
//! unless a part named `x` was handed in before, because sources are concatenated by the caller.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use crate::fold::fold;
use crate::lex::{Kind, Token, lex};
use crate::{Error, Source};

struct Macro {
    /// Parameter names; `None` for an object-like macro.
    params: Option<Vec<Rc<str>>>,
    variadic: bool,
    body: Vec<Token>,
}

struct Preprocessor<'a> {
    source: &'a Source,
    macros: BTreeMap<Rc<str>, Macro>,
    out: Vec<Token>,
    /// One entry per open `#if`: whether this branch is taken, whether some branch was.
    conditions: Vec<(bool, bool)>,
}

/// Preprocesses all parts into one token list.
///
/// # Errors
/// Malformed directives, `#error`, unknown includes, unbalanced conditionals, macro calls with wrong argument counts.
pub fn preprocess(source: &Source) -> Result<Vec<Token>, Error> {
    let mut this = Preprocessor { source, macros: BTreeMap::new(), out: Vec::new(), conditions: Vec::new() };
    let version = source.metal_version.to_string();
    for (name, value) in [("__METAL__", "1"), ("__METAL_VERSION__", version.as_str())] {
        let body = lex(value, 0, "<predefined>")?;
        this.macros.insert(name.into(), Macro { params: None, variadic: false, body });
    }
    for (index, part) in source.parts.iter().enumerate() {
        this.part(lex(&part.text, index as u32, &part.name)?)?;
        if !this.conditions.is_empty() {
            let line = part.text.lines().count() as u32;
            return Err(Error::Syntax { file: part.name.clone(), line, message: "#if without #endif".into() });
        }
    }
    Ok(this.out)
}

impl Preprocessor<'_> {
    fn error(&self, at: &Token, message: impl Into<String>) -> Error {
        Error::Syntax { file: self.source.name(at.file).to_string(), line: at.line, message: message.into() }
    }

    fn part(&mut self, tokens: Vec<Token>) -> Result<(), Error> {
        let mut pending: Vec<Token> = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            if tokens[at].first && tokens[at].is("#") {
                let flushed = std::mem::take(&mut pending);
                let expanded = self.expand(flushed)?;
                self.out.extend(expanded);
                let mut end = at + 1;
                while end < tokens.len() && !tokens[end].first {
                    end += 1;
                }
                self.directive(&tokens[at], &tokens[at + 1..end])?;
                at = end;
            } else {
                if self.active() {
                    pending.push(tokens[at].clone());
                }
                at += 1;
            }
        }
        let expanded = self.expand(pending)?;
        self.out.extend(expanded);
        Ok(())
    }

    fn active(&self) -> bool {
        self.conditions.iter().all(|(taken, _)| *taken)
    }

    fn directive(&mut self, hash: &Token, line: &[Token]) -> Result<(), Error> {
        let Some((name, rest)) = line.split_first() else {
            return Ok(());
        };
        match &*name.text {
            "if" | "ifdef" | "ifndef" => {
                let taken = self.active() && self.condition(&name.text, hash, rest)?;
                self.conditions.push((taken, taken));
            }
            "elif" => {
                let (_, done) = self.conditions.pop().ok_or_else(|| self.error(hash, "#elif without #if"))?;
                let taken = !done && self.active() && self.condition("if", hash, rest)?;
                self.conditions.push((taken, done || taken));
            }
            "else" => {
                let (_, done) = self.conditions.pop().ok_or_else(|| self.error(hash, "#else without #if"))?;
                self.conditions.push((!done, true));
            }
            "endif" => {
                self.conditions.pop().ok_or_else(|| self.error(hash, "#endif without #if"))?;
            }
            _ if !self.active() => {}
            "define" => self.define(hash, rest)?,
            "undef" => {
                if let Some(token) = rest.first() {
                    self.macros.remove(&token.text);
                }
            }
            "include" => {
                if let Some(file) = rest.first().filter(|t| t.kind == Kind::Literal) {
                    let wanted = file.text.trim_matches('"');
                    let before = &self.source.parts[..hash.file as usize];
                    if !before.iter().any(|part| part.name == wanted || part.name.ends_with(&format!("/{wanted}"))) {
                        let message = format!("\"{wanted}\" is not among the parts put in front of this one");
                        return Err(self.error(hash, message));
                    }
                }
            }
            "pragma" => {
                let text = crate::lex::join(rest);
                self.out.push(pragma(hash, &text));
            }
            "error" => return Err(self.error(hash, format!("#error {}", crate::lex::join(rest)))),
            "warning" | "line" => {}
            other => return Err(self.error(hash, format!("unknown directive #{other}"))),
        }
        Ok(())
    }

    fn condition(&mut self, kind: &str, hash: &Token, rest: &[Token]) -> Result<bool, Error> {
        if kind != "if" {
            let name = rest.first().ok_or_else(|| self.error(hash, format!("#{kind} needs a name")))?;
            return Ok(self.macros.contains_key(&name.text) == (kind == "ifdef"));
        }
        // `defined X` is answered before expansion, everything else after it.
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < rest.len() {
            if rest[at].is("defined") || rest[at].is("__has_include") || rest[at].is("__has_feature") {
                let parenthesised = rest.get(at + 1).is_some_and(|t| t.is("("));
                let name = rest.get(at + 1 + usize::from(parenthesised));
                let known = rest[at].is("defined") && name.is_some_and(|t| self.macros.contains_key(&t.text));
                let mut token = rest[at].clone();
                token.kind = Kind::Number;
                token.text = if known { "1".into() } else { "0".into() };
                tokens.push(token);
                at = match parenthesised {
                    true => crate::lex::skip_balanced(rest, at + 1).unwrap_or(rest.len()),
                    false => at + 2,
                };
            } else {
                tokens.push(rest[at].clone());
                at += 1;
            }
        }
        let tokens = self.expand(tokens)?;
        fold(&tokens, &|_| Some(0))
            .map(|value| value != 0)
            .ok_or_else(|| self.error(hash, "not an integer constant expression"))
    }

    fn define(&mut self, hash: &Token, rest: &[Token]) -> Result<(), Error> {
        let (name, mut body) = rest.split_first().ok_or_else(|| self.error(hash, "#define needs a name"))?;
        let mut variadic = false;
        let mut params = None;
        if body.first().is_some_and(|t| t.is("(") && !t.space) {
            let close = body.iter().position(|t| t.is(")")).ok_or_else(|| self.error(hash, "missing )"))?;
            let mut names = Vec::new();
            for token in body[1..close].iter().filter(|t| !t.is(",")) {
                if token.is("...") {
                    variadic = true;
                    names.push("__VA_ARGS__".into());
                } else {
                    names.push(token.text.clone());
                }
            }
            params = Some(names);
            body = &body[close + 1..];
        }
        self.macros.insert(name.text.clone(), Macro { params, variadic, body: body.to_vec() });
        Ok(())
    }

    /// Expands macros (Prosser's algorithm: each token carries the names it must not expand again).
    fn expand(&self, tokens: Vec<Token>) -> Result<Vec<Token>, Error> {
        let mut input: VecDeque<Token> = tokens.into();
        let mut out = Vec::new();
        while let Some(token) = input.pop_front() {
            if token.kind != Kind::Ident {
                out.push(token);
                continue;
            }
            if token.is("_Pragma") && input.front().is_some_and(|t| t.is("(")) && input.len() >= 3 {
                let text = input[1].text.trim_matches('"').replace("\\\"", "\"");
                input.drain(..3);
                out.push(pragma(&token, &text));
                continue;
            }
            if token.is("__LINE__") {
                out.push(Token { kind: Kind::Number, text: token.line.to_string().into(), ..token });
                continue;
            }
            let hidden = token.hidden.as_ref().is_some_and(|set| set.contains(&token.text));
            let Some(found) = self.macros.get(&token.text).filter(|_| !hidden) else {
                out.push(token);
                continue;
            };
            let mut names: Vec<Rc<str>> = token.hidden.as_ref().map_or_else(Vec::new, |set| set.to_vec());
            names.push(token.text.clone());
            let hide = Rc::new(names);
            let arguments = match &found.params {
                None => Vec::new(),
                Some(params) => {
                    if !input.front().is_some_and(|t| t.is("(")) {
                        out.push(token);
                        continue;
                    }
                    self.arguments(&token, &mut input, params.len(), found.variadic)?
                }
            };
            let mut body = self.substitute(&token, found, &arguments)?;
            for (index, new) in body.iter_mut().enumerate() {
                new.file = token.file;
                new.line = token.line;
                new.first = index == 0 && token.first;
                if index == 0 {
                    new.space = token.space;
                }
                let mut merged = new.hidden.as_ref().map_or_else(Vec::new, |set| set.to_vec());
                merged.extend(hide.iter().cloned());
                new.hidden = Some(Rc::new(merged));
            }
            for new in body.into_iter().rev() {
                input.push_front(new);
            }
        }
        Ok(out)
    }

    fn arguments(
        &self,
        call: &Token,
        input: &mut VecDeque<Token>,
        count: usize,
        variadic: bool,
    ) -> Result<Vec<Vec<Token>>, Error> {
        input.pop_front();
        let mut arguments = vec![Vec::new()];
        let mut depth = 0;
        loop {
            let token = input.pop_front().ok_or_else(|| self.error(call, "macro call does not end"))?;
            match &*token.text {
                "(" | "[" | "{" if token.kind == Kind::Punct => depth += 1,
                ")" | "]" | "}" if token.kind == Kind::Punct && depth > 0 => depth -= 1,
                ")" if token.kind == Kind::Punct => break,
                "," if depth == 0 && token.kind == Kind::Punct && !(variadic && arguments.len() >= count) => {
                    arguments.push(Vec::new());
                    continue;
                }
                _ => {}
            }
            if let Some(last) = arguments.last_mut() {
                last.push(token);
            }
        }
        if count == 0 && arguments.len() == 1 && arguments[0].is_empty() {
            arguments.clear();
        }
        if variadic && arguments.len() + 1 == count {
            arguments.push(Vec::new());
        }
        if arguments.len() != count {
            let message = format!("macro {} takes {count} arguments, {} given", call.text, arguments.len());
            return Err(self.error(call, message));
        }
        Ok(arguments)
    }

    fn substitute(&self, call: &Token, found: &Macro, arguments: &[Vec<Token>]) -> Result<Vec<Token>, Error> {
        let index = |token: &Token| {
            let params = found.params.as_ref()?;
            (token.kind == Kind::Ident).then(|| params.iter().position(|p| *p == token.text)).flatten()
        };
        let body = &found.body;
        let mut out: Vec<Token> = Vec::new();
        let mut at = 0;
        while at < body.len() {
            let token = &body[at];
            let paste = body.get(at + 1).is_some_and(|t| t.is("##"));
            if token.is("##") && !out.is_empty() && at + 1 < body.len() {
                let right = match index(&body[at + 1]) {
                    Some(i) => arguments[i].clone(),
                    None => vec![body[at + 1].clone()],
                };
                let mut right = right.into_iter();
                if let (Some(left), Some(first)) = (out.pop(), right.next()) {
                    let text = format!("{}{}", left.text, first.text);
                    let mut pasted = lex(&text, call.file, self.source.name(call.file))?;
                    if let Some(head) = pasted.first_mut() {
                        head.space = left.space;
                    }
                    out.extend(pasted);
                }
                out.extend(right);
                at += 2;
            } else if token.is("#") && found.params.is_some() && at + 1 < body.len() {
                let i = index(&body[at + 1]).ok_or_else(|| self.error(call, "# needs a macro parameter"))?;
                let text = crate::lex::join(&arguments[i]).replace('\\', "\\\\").replace('"', "\\\"");
                out.push(Token { kind: Kind::Literal, text: format!("\"{text}\"").into(), ..token.clone() });
                at += 2;
            } else {
                match index(token) {
                    Some(i) if paste => out.extend(arguments[i].clone()),
                    Some(i) => {
                        let mut expanded = self.expand(arguments[i].clone())?;
                        if let Some(head) = expanded.first_mut() {
                            head.space = token.space;
                        }
                        out.extend(expanded);
                    }
                    None => out.push(token.clone()),
                }
                at += 1;
            }
        }
        Ok(out)
    }
}

fn pragma(at: &Token, text: &str) -> Token {
    Token { kind: Kind::Pragma, text: text.into(), first: true, ..at.clone() }
}
