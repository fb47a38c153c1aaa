//! What a Metal source declares: kernels, their parameters and bindings, and the threadgroup memory they take.
//!
//! Works on preprocessed tokens, without a compiler. C++ types are never parsed: only address space, constness, pointer or
//! reference, and the attribute of each parameter are read. Sizes of threadgroup arrays are folded where their types are
//! built in and their lengths are integer constants (template arguments included); otherwise they are reported as unknown.

use std::collections::BTreeMap;

use crate::fold::{fold, type_size};
use crate::lex::{Kind, Token, join, skip_angles, skip_balanced};
use crate::preprocess::preprocess;
use crate::{Error, Source};

/// Address space of a buffer parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// `device`: read, and written unless const.
    Device,
    /// `constant`: read only.
    Constant,
}

/// What a kernel may do with a buffer, from the constness of its parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// `const device` or `constant`.
    Read,
    /// `device` without const.
    ReadWrite,
}

/// One `[[buffer(n)]]` parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferParam {
    /// Buffer index.
    pub index: u32,
    /// Parameter name.
    pub name: String,
    /// Type as written, without address space and const.
    pub ty: String,
    /// Address space.
    pub space: Space,
    /// What the kernel may do with it.
    pub access: Access,
    /// Whether it is a reference (`constant Params&`) rather than a pointer.
    pub reference: bool,
}

/// A parameter of a kernel, in declaration order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Param {
    /// A bound buffer.
    Buffer(BufferParam),
    /// A thread position or size, by attribute name (`thread_index_in_simdgroup`).
    Builtin {
        /// Attribute name.
        attribute: String,
        /// Type as written (`uint3`).
        ty: String,
        /// Parameter name.
        name: String,
    },
}

/// A threadgroup variable at kernel scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadgroupVar {
    /// Variable name.
    pub name: String,
    /// Size in bytes, where it could be folded.
    pub bytes: Option<usize>,
}

/// One callable kernel: a plain one or one instantiation of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelReflection {
    /// Name the host looks up (`host_name` for instantiations).
    pub name: String,
    /// C++ expression that names the function (`gemm<4, true>`).
    pub function: String,
    /// Parameters in declaration order.
    pub params: Vec<Param>,
    /// Threadgroup variables in declaration order.
    pub threadgroup: Vec<ThreadgroupVar>,
    /// `[[max_total_threads_per_threadgroup(n)]]`, where given and folded.
    pub max_threads: Option<u32>,
    /// Part index and line of the declaration.
    pub at: (u32, u32),
}

impl KernelReflection {
    /// The buffer parameters in order of their index.
    pub fn buffers(&self) -> Vec<&BufferParam> {
        let mut buffers: Vec<_> = self
            .params
            .iter()
            .filter_map(|param| match param {
                Param::Buffer(buffer) => Some(buffer),
                Param::Builtin { .. } => None,
            })
            .collect();
        buffers.sort_by_key(|buffer| buffer.index);
        buffers
    }

    /// Bytes of threadgroup memory: the sum over variables, each aligned to 16; `None` where one is unknown.
    pub fn threadgroup_bytes(&self) -> Option<usize> {
        self.threadgroup.iter().try_fold(0, |sum, var| Some(sum + var.bytes?.next_multiple_of(16)))
    }
}

/// Names of the attributes that stand for a thread's position or a size of the grid.
pub const BUILTINS: [&str; 15] = [
    "thread_position_in_grid",
    "threadgroup_position_in_grid",
    "thread_position_in_threadgroup",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "threadgroups_per_grid",
    "threads_per_grid",
    "simdgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "threads_per_simdgroup",
    "quadgroup_index_in_threadgroup",
    "thread_index_in_quadgroup",
];

/// A `[[name(args)]]` item.
#[derive(Debug, Clone)]
pub(crate) struct Attribute {
    pub name: String,
    pub args: Vec<Token>,
}

/// A threadgroup declaration inside a kernel body, as token positions.
#[derive(Debug, Clone)]
pub(crate) struct ThreadgroupDecl {
    /// Tokens `start..end` are the declaration with its semicolon.
    pub start: usize,
    pub end: usize,
    pub ty: (usize, usize),
    /// Name position and the range of its `[..]` suffixes.
    pub declarators: Vec<(usize, (usize, usize))>,
}

/// A kernel function as it stands in the tokens.
#[derive(Debug, Clone)]
pub(crate) struct KernelDecl {
    /// Position of `kernel` or of the `[[` around it, and just past it.
    pub keyword: (usize, usize),
    pub name: String,
    pub name_at: usize,
    /// Names of template parameters, if it is a template.
    pub template: Option<Vec<String>>,
    pub params: Vec<Param>,
    pub threadgroup: Vec<ThreadgroupDecl>,
    pub max_threads: Vec<Token>,
}

/// `template [[host_name("x")]] [[kernel]] decltype(f<A>) f<A>;`
#[derive(Debug, Clone)]
pub(crate) struct Instantiation {
    pub start: usize,
    pub end: usize,
    pub name: String,
    pub function: String,
    pub base: String,
    pub args: Vec<Vec<Token>>,
}

/// A preprocessed source with what was found in it.
#[derive(Debug)]
pub struct Unit {
    pub(crate) tokens: Vec<Token>,
    pub(crate) kernels: Vec<KernelDecl>,
    pub(crate) instantiations: Vec<Instantiation>,
    pub(crate) names: Vec<String>,
    /// The callable kernels.
    pub reflections: Vec<KernelReflection>,
}

/// Preprocesses `source` and finds its kernels.
///
/// # Errors
/// Syntax that the preprocessor or the kernel declarations do not allow; parameters without a known attribute.
pub fn reflect(source: &Source) -> Result<Unit, Error> {
    let tokens = preprocess(source)?;
    let mut unit = Unit {
        tokens,
        kernels: Vec::new(),
        instantiations: Vec::new(),
        names: source.parts.iter().map(|part| part.name.clone()).collect(),
        reflections: Vec::new(),
    };
    let constants = constants(&unit.tokens);
    scan(&mut unit, &constants)?;
    for kernel in unit.kernels.iter().filter(|kernel| kernel.template.is_none()) {
        unit.reflections.push(reflection(&unit.tokens, kernel, &kernel.name, &kernel.name, &constants));
    }
    for instance in &unit.instantiations {
        let kernel = unit.kernels.iter().find(|k| k.name == instance.base && k.template.is_some());
        let kernel = kernel.ok_or_else(|| {
            unit.error(instance.start, format!("{} is not a kernel template declared before", instance.base))
        })?;
        let mut known = constants.clone();
        for (name, value) in kernel.template.iter().flatten().zip(&instance.args) {
            if let Some(value) = fold(value, &|name| constants.get(name).copied()) {
                known.insert(name.clone(), value);
            } else if let Some(size) = value.first().and_then(|t| type_size(&t.text)) {
                known.insert(format!("sizeof {name}"), size as i64);
            }
        }
        unit.reflections.push(reflection(&unit.tokens, kernel, &instance.name, &instance.function, &known));
    }
    for (index, kernel) in unit.reflections.iter().enumerate() {
        if unit.reflections[..index].iter().any(|other| other.name == kernel.name) {
            let (file, line) = kernel.at;
            let message = format!("kernel name {} is used twice", kernel.name);
            return Err(Error::Syntax { file: source.name(file).to_string(), line, message });
        }
    }
    Ok(unit)
}

impl Unit {
    pub(crate) fn error(&self, at: usize, message: impl Into<String>) -> Error {
        let token = self.tokens.get(at).or(self.tokens.last());
        let (file, line) = token.map_or((0, 0), |t| (t.file, t.line));
        let file = self.names.get(file as usize).cloned().unwrap_or_default();
        Error::Syntax { file, line, message: message.into() }
    }
}

/// Integer constants at namespace scope: `constant constexpr int N = 4;` and friends, where their value folds.
fn constants(tokens: &[Token]) -> BTreeMap<String, i64> {
    let mut known: BTreeMap<String, i64> = BTreeMap::new();
    for (at, token) in tokens.iter().enumerate() {
        if !token.is("=") || at < 2 || tokens[at - 1].kind != Kind::Ident {
            continue;
        }
        let head = tokens[..at].iter().rposition(|t| t.is(";") || t.is("}") || t.is("{")).map_or(0, |p| p + 1);
        if !tokens[head..at].iter().any(|t| t.is("constexpr") || t.is("constant")) {
            continue;
        }
        let Some(end) = tokens[at..].iter().position(|t| t.is(";")) else {
            continue;
        };
        if let Some(value) = fold(&tokens[at + 1..at + end], &|name| known.get(name).copied()) {
            known.insert(tokens[at - 1].text.to_string(), value);
        }
    }
    known
}

fn scan(unit: &mut Unit, constants: &BTreeMap<String, i64>) -> Result<(), Error> {
    let mut at = 0;
    let mut template: Option<Vec<String>> = None;
    let mut max_threads = Vec::new();
    while at < unit.tokens.len() {
        let token = &unit.tokens[at];
        if token.is(";") || token.is("}") {
            template = None;
            max_threads = Vec::new();
        }
        if token.is("template") && unit.tokens.get(at + 1).is_some_and(|t| t.is("<")) {
            let end = skip_angles(&unit.tokens, at + 1).ok_or_else(|| unit.error(at, "template < does not close"))?;
            template = Some(template_names(&unit.tokens[at + 2..end - 1]));
            at = end;
        } else if token.is("template") && unit.tokens.get(at + 1).is_some_and(|t| t.is("[") || t.is("kernel")) {
            let instance = instantiation(unit, at)?;
            at = instance.end;
            unit.instantiations.push(instance);
        } else if let Some((end, attributes)) = attributes(&unit.tokens, at) {
            if let Some(found) = attributes.iter().find(|a| a.name == "max_total_threads_per_threadgroup") {
                max_threads = found.args.clone();
            }
            if attributes.iter().any(|a| a.name == "kernel") {
                let kernel = kernel(unit, (at, end), template.take(), &mut max_threads, constants)?;
                at = kernel.0;
                unit.kernels.push(kernel.1);
            } else {
                at = end;
            }
        } else if token.is("kernel") {
            let kernel = kernel(unit, (at, at + 1), template.take(), &mut max_threads, constants)?;
            at = kernel.0;
            unit.kernels.push(kernel.1);
        } else if token.is("{") && !namespace_body(&unit.tokens, at) {
            at = skip_balanced(&unit.tokens, at).ok_or_else(|| unit.error(at, "{ does not close"))?;
            template = None;
        } else {
            at += 1;
        }
    }
    Ok(())
}

fn namespace_body(tokens: &[Token], open: usize) -> bool {
    let head = tokens[..open].iter().rposition(|t| t.is(";") || t.is("}") || t.is("{")).map_or(0, |p| p + 1);
    tokens[head..open].iter().any(|t| t.is("namespace"))
}

/// The `[[...]]` at `at`: the position past it and its items.
pub(crate) fn attributes(tokens: &[Token], at: usize) -> Option<(usize, Vec<Attribute>)> {
    if !tokens.get(at)?.is("[") || !tokens.get(at + 1)?.is("[") || tokens[at + 1].space {
        return None;
    }
    let end = skip_balanced(tokens, at)?;
    let mut items = Vec::new();
    for item in split(&tokens[at + 2..end.checked_sub(2)?], ",") {
        let mut rest = item;
        if rest.get(1).is_some_and(|t| t.is("::")) {
            rest = &rest[2..];
        }
        let Some(name) = rest.first() else { continue };
        let args = if rest.len() > 2 { rest[2..rest.len() - 1].to_vec() } else { Vec::new() };
        items.push(Attribute { name: name.text.to_string(), args });
    }
    Some((end, items))
}

/// Splits at `separator` outside brackets and template angles.
pub(crate) fn split<'t>(tokens: &'t [Token], separator: &str) -> Vec<&'t [Token]> {
    let mut pieces = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at < tokens.len() {
        let token = &tokens[at];
        let skipped = match &*token.text {
            "(" | "[" | "{" if token.kind == Kind::Punct => skip_balanced(tokens, at),
            "<" if at > 0 && tokens[at - 1].kind == Kind::Ident => skip_angles(tokens, at),
            _ => None,
        };
        if let Some(end) = skipped {
            at = end;
            continue;
        }
        if token.is(separator) {
            pieces.push(&tokens[start..at]);
            start = at + 1;
        }
        at += 1;
    }
    if start < tokens.len() {
        pieces.push(&tokens[start..]);
    }
    pieces
}

fn template_names(tokens: &[Token]) -> Vec<String> {
    split(tokens, ",")
        .into_iter()
        .map(|param| {
            let head = param.iter().position(|t| t.is("=")).unwrap_or(param.len());
            param[..head].last().map_or_else(String::new, |t| t.text.to_string())
        })
        .collect()
}

fn instantiation(unit: &Unit, start: usize) -> Result<Instantiation, Error> {
    let tokens = &unit.tokens;
    let end = tokens[start..].iter().position(|t| t.is(";")).map(|p| start + p + 1);
    let end = end.ok_or_else(|| unit.error(start, "instantiation does not end"))?;
    let mut at = start + 1;
    let mut name = None;
    while let Some((next, items)) = attributes(tokens, at) {
        for item in items.iter().filter(|item| item.name == "host_name") {
            name = item.args.first().map(|t| t.text.trim_matches('"').to_string());
        }
        at = next;
    }
    let name = name.ok_or_else(|| unit.error(start, "template instantiation without [[host_name(\"...\")]]"))?;
    while tokens[at].is("kernel") || tokens[at].is("void") {
        at += 1;
    }
    if tokens[at].is("decltype") {
        at = skip_balanced(tokens, at + 1).ok_or_else(|| unit.error(at, "decltype( does not close"))?;
    }
    let base = tokens[at].text.to_string();
    let (args, past) = match tokens.get(at + 1).filter(|t| t.is("<")).and_then(|_| skip_angles(tokens, at + 1)) {
        Some(past) => (split(&tokens[at + 2..past - 1], ",").into_iter().map(<[Token]>::to_vec).collect(), past),
        None => (Vec::new(), at + 1),
    };
    Ok(Instantiation { start, end, name, function: join(&tokens[at..past]), base, args })
}

/// Reads the kernel whose keyword is `keyword`; returns the position past its body.
fn kernel(
    unit: &Unit,
    keyword: (usize, usize),
    template: Option<Vec<String>>,
    max_threads: &mut Vec<Token>,
    constants: &BTreeMap<String, i64>,
) -> Result<(usize, KernelDecl), Error> {
    let tokens = &unit.tokens;
    let mut at = keyword.1;
    while let Some((end, items)) = attributes(tokens, at) {
        if let Some(found) = items.iter().find(|a| a.name == "max_total_threads_per_threadgroup") {
            *max_threads = found.args.clone();
        }
        at = end;
    }
    if !tokens.get(at).is_some_and(|t| t.is("void")) {
        return Err(unit.error(at, "a kernel returns void"));
    }
    let name_at = at + 1;
    let name = tokens.get(name_at).map_or_else(String::new, |t| t.text.to_string());
    let open = name_at + 1;
    if !tokens.get(open).is_some_and(|t| t.is("(")) {
        return Err(unit.error(name_at, "kernel name must be followed by its parameters"));
    }
    let close = skip_balanced(tokens, open).ok_or_else(|| unit.error(open, "( does not close"))?;
    let mut params = Vec::new();
    for param in split(&tokens[open + 1..close - 1], ",") {
        params.push(parameter(unit, param, constants)?);
    }
    let mut body = close;
    while let Some((end, _)) = attributes(tokens, body) {
        body = end;
    }
    if !tokens.get(body).is_some_and(|t| t.is("{")) {
        return Err(unit.error(body, format!("kernel {name} has no body")));
    }
    let end = skip_balanced(tokens, body).ok_or_else(|| unit.error(body, "{ does not close"))?;
    let threadgroup = threadgroup_decls(unit, body, end)?;
    let max_threads = std::mem::take(max_threads);
    Ok((end, KernelDecl { keyword, name, name_at, template, params, threadgroup, max_threads }))
}

fn parameter(unit: &Unit, tokens: &[Token], constants: &BTreeMap<String, i64>) -> Result<Param, Error> {
    let first = tokens.first();
    let error = |message: String| {
        let (file, line) = first.map_or((0, 0), |t| (t.file, t.line));
        Error::Syntax { file: unit.names.get(file as usize).cloned().unwrap_or_default(), line, message }
    };
    let cut = (0..tokens.len()).find(|&at| attributes(tokens, at).is_some());
    let plain = &tokens[..cut.unwrap_or(tokens.len())];
    let name = plain.last().map_or_else(String::new, |t| t.text.to_string());
    let items = cut.and_then(|at| attributes(tokens, at)).map_or_else(Vec::new, |(_, items)| items);
    if let Some(item) = items.iter().find(|item| BUILTINS.contains(&item.name.as_str())) {
        let ty = join(&plain[..plain.len().saturating_sub(1)]);
        return Ok(Param::Builtin { attribute: item.name.clone(), ty, name });
    }
    let Some(item) = items.iter().find(|item| item.name == "buffer") else {
        return Err(match items.first() {
            Some(item) if item.name == "threadgroup" => {
                error(format!("{name}: declare threadgroup memory at kernel scope, not as a parameter"))
            }
            Some(item) => error(format!("{name}: [[{}]] is not supported on a kernel parameter", item.name)),
            None => error(format!("{name}: kernel parameter without [[buffer(n)]] or a position attribute")),
        });
    };
    let index = fold(&item.args, &|name| constants.get(name).copied())
        .and_then(|value| u32::try_from(value).ok())
        .filter(|index| *index < 31)
        .ok_or_else(|| error(format!("{name}: buffer index must be a constant from 0 to 30")))?;
    let space = match plain.iter().find(|t| t.is("device") || t.is("constant")) {
        Some(token) if token.is("device") => Space::Device,
        Some(_) => Space::Constant,
        None => return Err(error(format!("{name}: a buffer is `device` or `constant`"))),
    };
    let mark = plain.iter().position(|t| t.is("*") || t.is("&"));
    let mark = mark.ok_or_else(|| error(format!("{name}: a buffer is a pointer or a reference")))?;
    let constant = space == Space::Constant || plain[..mark].iter().any(|t| t.is("const"));
    let ty: Vec<Token> =
        plain[..mark].iter().filter(|t| !matches!(&*t.text, "const" | "device" | "constant")).cloned().collect();
    Ok(Param::Buffer(BufferParam {
        index,
        name,
        ty: join(&ty),
        space,
        access: if constant { Access::Read } else { Access::ReadWrite },
        reference: plain[mark].is("&"),
    }))
}

fn threadgroup_decls(unit: &Unit, open: usize, end: usize) -> Result<Vec<ThreadgroupDecl>, Error> {
    let tokens = &unit.tokens;
    let mut found = Vec::new();
    let mut depth = 0;
    for at in open..end {
        match &*tokens[at].text {
            "{" => depth += 1,
            "}" => depth -= 1,
            "threadgroup" if tokens[at - 1].is("{") || tokens[at - 1].is("}") || tokens[at - 1].is(";") => {
                if let Some(decl) = threadgroup_decl(unit, at)? {
                    if depth > 1 {
                        return Err(unit.error(at, "threadgroup memory is declared at kernel scope, not in a block"));
                    }
                    found.push(decl);
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Reads `threadgroup T a[n], b;`; `None` when it declares a pointer into threadgroup memory instead.
fn threadgroup_decl(unit: &Unit, start: usize) -> Result<Option<ThreadgroupDecl>, Error> {
    let tokens = &unit.tokens;
    let mut at = start + 1;
    let from = at;
    if tokens[at].is("alignas") {
        at = skip_balanced(tokens, at + 1).ok_or_else(|| unit.error(at, "( does not close"))?;
    }
    while tokens[at].is("const") || tokens[at].is("volatile") {
        at += 1;
    }
    at += 1;
    while tokens[at].is("::") {
        at += 2;
    }
    if tokens[at].is("<") {
        at = skip_angles(tokens, at).ok_or_else(|| unit.error(at, "< does not close"))?;
    }
    if tokens[at].is("*") || tokens[at].is("&") || tokens[at].is("const") {
        return Ok(None);
    }
    let ty = (from, at);
    let mut declarators = Vec::new();
    loop {
        let name = at;
        at += 1;
        let suffix = at;
        while tokens[at].is("[") {
            at = skip_balanced(tokens, at).ok_or_else(|| unit.error(at, "[ does not close"))?;
        }
        declarators.push((name, (suffix, at)));
        match &*tokens[at].text {
            "," => at += 1,
            ";" => break,
            _ => {
                return Err(unit.error(at, "threadgroup variables take no initialiser: write once, then barrier"));
            }
        }
    }
    Ok(Some(ThreadgroupDecl { start, end: at + 1, ty, declarators }))
}

fn reflection(
    tokens: &[Token],
    kernel: &KernelDecl,
    name: &str,
    function: &str,
    known: &BTreeMap<String, i64>,
) -> KernelReflection {
    let lookup = |name: &str| known.get(name).copied();
    let mut threadgroup = Vec::new();
    for decl in &kernel.threadgroup {
        let ty = &tokens[decl.ty.0..decl.ty.1];
        let element = ty.last().and_then(|t| {
            let named = known.get(&format!("sizeof {}", t.text)).map(|size| *size as usize);
            named.or_else(|| type_size(&t.text))
        });
        for (at, (from, to)) in &decl.declarators {
            let mut bytes = element;
            let mut open = *from;
            while open < *to {
                let Some(close) = skip_balanced(tokens, open) else {
                    break;
                };
                let length = fold(&tokens[open + 1..close - 1], &lookup).and_then(|n| usize::try_from(n).ok());
                bytes = bytes.zip(length).map(|(a, b)| a * b);
                open = close;
            }
            threadgroup.push(ThreadgroupVar { name: tokens[*at].text.to_string(), bytes });
        }
    }
    KernelReflection {
        name: name.to_string(),
        function: function.to_string(),
        params: kernel.params.clone(),
        threadgroup,
        max_threads: fold(&kernel.max_threads, &lookup).and_then(|n| u32::try_from(n).ok()),
        at: (tokens[kernel.name_at].file, tokens[kernel.name_at].line),
    }
}
