//! Metal source to C++: a rewrite of tokens, not of grammar.
//!
//! What changes: attributes are dropped, threadgroup variables become arena references (host) or `__shared__` (CUDA), float
//! literals get their `f`, swizzles become calls, kernel templates with a host name become entry points. Everything else
//! passes through and is understood by the shim headers. `#line` directives keep messages and reports on Metal lines.

use std::fmt::Write as _;

use crate::lex::{Kind, Token, join};
use crate::reflect::{Param, Unit, attributes};

/// Which compiler the text is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// g++ or clang++, run by the fibre runtime.
    Host,
    /// NVRTC.
    Cuda,
    /// clang's OpenCL C++ mode, type check only.
    Strict,
}

const TYPES: &str = include_str!("../shim/types.h");
const MATH: &str = include_str!("../shim/math.h");
const BINDERS: &str = include_str!("../shim/binders.h");
const SIMD: &str = include_str!("../shim/simd.h");
const TENSOR: &str = include_str!("../shim/tensor.h");
const BACKEND_HOST: &str = include_str!("../shim/backend_host.h");
const BACKEND_CUDA: &str = include_str!("../shim/backend_cuda.h");
const MATRIX_HOST: &str = include_str!("../shim/matrix_host.h");
const MATRIX_CUDA: &str = include_str!("../shim/matrix_cuda.h");
const LAYOUT_HOST: &str = include_str!("../shim/layout_host.h");
const LAYOUT_CUDA: &str = include_str!("../shim/layout_cuda.h");
const MATMUL: &str = include_str!("../shim/matmul.h");
const MATMUL_STRICT: &str = include_str!("../shim/matmul_strict.h");
const STRICT: &str = include_str!("../shim/strict.h");
const BACKEND_STRICT: &str = include_str!("../shim/backend_strict.h");
const MATRIX_STRICT: &str = include_str!("../shim/matrix_strict.h");
const LAYOUT_STRICT: &str = include_str!("../shim/layout_strict.h");
const TENSOR_HOST: &str = include_str!("../shim/tensor_host.h");
const TENSOR_CUDA: &str = include_str!("../shim/tensor_cuda.h");

/// The shim headers in front of a translation.
pub(crate) fn shim(target: Target) -> String {
    let parts: Vec<(&str, &str)> = match target {
        Target::Host => vec![
            ("types.h", TYPES),
            ("math.h", MATH),
            ("backend_host.h", BACKEND_HOST),
            ("binders.h", BINDERS),
            ("simd.h", SIMD),
            ("matrix_host.h", MATRIX_HOST),
            ("layout_host.h", LAYOUT_HOST),
            ("tensor.h", TENSOR),
            ("matmul.h", MATMUL),
            ("tensor_host.h", TENSOR_HOST),
        ],
        Target::Strict => vec![
            ("strict.h", STRICT),
            ("types.h", TYPES),
            ("math.h", MATH),
            ("backend_strict.h", BACKEND_STRICT),
            ("simd.h", SIMD),
            ("matrix_strict.h", MATRIX_STRICT),
            ("layout_strict.h", LAYOUT_STRICT),
            ("tensor.h", TENSOR),
            ("matmul_strict.h", MATMUL_STRICT),
        ],
        Target::Cuda => vec![
            ("types.h", TYPES),
            ("math.h", MATH),
            ("backend_cuda.h", BACKEND_CUDA),
            ("binders.h", BINDERS),
            ("simd.h", SIMD),
            ("matrix_cuda.h", MATRIX_CUDA),
            ("layout_cuda.h", LAYOUT_CUDA),
            ("tensor.h", TENSOR),
            ("matmul.h", MATMUL),
            ("tensor_cuda.h", TENSOR_CUDA),
        ],
    };
    let mut text = String::new();
    if target == Target::Cuda {
        text.push_str("#define MSL_CUDA 1\n");
    }
    for (name, part) in parts {
        let _ = writeln!(text, "#line 1 \"msl/{name}\"");
        text.push_str(part);
    }
    text
}

/// The user's code inside the `metal::kernels` namespace, without shim and entry points.
pub(crate) fn body(unit: &Unit, target: Target) -> String {
    let mut out = Writer { unit, text: String::new(), at: (u32::MAX, 0) };
    out.text.push_str("namespace metal { namespace kernels {\n");
    let tokens = &unit.tokens;
    let mut at = 0;
    while at < tokens.len() {
        if let Some(instance) = unit.instantiations.iter().find(|i| i.start == at) {
            at = instance.end;
            continue;
        }
        if let Some(kernel) = unit.kernels.iter().find(|k| k.keyword.0 == at) {
            out.word(&tokens[at], "static");
            at = kernel.keyword.1;
            continue;
        }
        if let Some((end, _)) = attributes(tokens, at) {
            at = end;
            continue;
        }
        let decl = unit.kernels.iter().flat_map(|k| &k.threadgroup).find(|d| d.start == at);
        if let Some(decl) = decl {
            threadgroup(&mut out, unit, decl, target);
            at = decl.end;
            continue;
        }
        let token = &tokens[at];
        match token.kind {
            Kind::Pragma => out.pragma(token, target),
            // Constant memory is read-only; clang's qualifier says so itself.
            Kind::Ident if token.is("constant") && target != Target::Strict => {
                let doubled = at > 0 && tokens[at - 1].is("const") || tokens.get(at + 1).is_some_and(|t| t.is("const"));
                out.word(token, if doubled { "" } else { "const" });
            }
            Kind::Number => out.word(token, &literal(&token.text)),
            Kind::Ident if swizzle(tokens, at) => {
                let assigned =
                    tokens.get(at + 1).is_some_and(|t| ["=", "+=", "-=", "*=", "/="].iter().any(|o| t.is(o)));
                let prefix = if assigned { "msl_to_" } else { "" };
                out.word(token, &format!("{prefix}{}()", token.text));
            }
            _ => out.word(token, &token.text),
        }
        at += 1;
    }
    out.text.push_str("\n}}\n");
    out.text
}

struct Writer<'a> {
    unit: &'a Unit,
    text: String,
    at: (u32, u32),
}

impl Writer<'_> {
    fn place(&mut self, token: &Token) {
        if self.at == (token.file, token.line) {
            return;
        }
        if self.at.0 == token.file && token.line > self.at.1 && token.line - self.at.1 < 4 {
            for _ in self.at.1..token.line {
                self.text.push('\n');
            }
        } else {
            let name = self.unit.names[token.file as usize].replace('\\', "\\\\").replace('"', "\\\"");
            let _ = write!(self.text, "\n#line {} \"{name}\"\n", token.line);
        }
        self.at = (token.file, token.line);
    }

    fn word(&mut self, token: &Token, text: &str) {
        let fresh = self.at != (token.file, token.line);
        self.place(token);
        if !fresh && (token.space || touching(&self.text, text)) {
            self.text.push(' ');
        }
        self.text.push_str(text);
    }

    /// Unroll requests reach NVRTC; the host compilers judge for themselves.
    fn pragma(&mut self, token: &Token, target: Target) {
        let text = token.text.trim();
        let count = text.strip_prefix("unroll").or_else(|| text.strip_prefix("clang loop unroll"));
        let Some(count) = count.filter(|_| target == Target::Cuda) else {
            return;
        };
        let count = count.trim().trim_start_matches("_count").trim_matches(['(', ')']);
        let line = match count {
            "" | "full" | "enable" => "#pragma unroll".to_string(),
            "disable" => "#pragma unroll 1".to_string(),
            number => format!("#pragma unroll {number}"),
        };
        self.place(token);
        let _ = write!(self.text, "\n{line}\n");
        self.at = (u32::MAX, 0);
    }
}

fn touching(text: &str, next: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match (text.chars().last(), next.chars().next()) {
        (Some(a), Some(b)) => (word(a) && word(b)) || (a == b && "+-&|<>".contains(a)),
        _ => false,
    }
}

/// `.xy` and longer selections of a vector, unless it is a call already.
fn swizzle(tokens: &[Token], at: usize) -> bool {
    let text = &tokens[at].text;
    (2..=4).contains(&text.len())
        && text.bytes().all(|b| b"xyzw".contains(&b))
        && at > 0
        && (tokens[at - 1].is(".") || tokens[at - 1].is("->"))
        && !tokens.get(at + 1).is_some_and(|t| t.is("("))
}

/// A Metal number as C++: floating literals are f32, `h` and `bf` suffixes become conversions.
fn literal(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    if lower.starts_with("0x") || lower.starts_with("0b") {
        return text.to_string();
    }
    let float = |digits: &str| match digits.contains(['.', 'e', 'E']) {
        true => format!("{digits}f"),
        false => format!("{digits}.0f"),
    };
    if let Some(digits) = lower.strip_suffix("bf") {
        return format!("metal::bfloat({})", float(digits));
    }
    if let Some(digits) = lower.strip_suffix('h') {
        return format!("metal::half({})", float(digits));
    }
    if lower.contains(['.', 'e']) && !lower.ends_with('f') {
        return float(&lower);
    }
    text.to_string()
}

fn threadgroup(out: &mut Writer, unit: &Unit, decl: &crate::reflect::ThreadgroupDecl, target: Target) {
    let tokens = &unit.tokens;
    let kernel = unit.kernels.iter().find(|k| k.threadgroup.iter().any(|d| d.start == decl.start));
    let mut ty = decl.ty.0;
    if tokens[ty].is("alignas") {
        ty = crate::lex::skip_balanced(tokens, ty + 1).unwrap_or(ty);
    }
    let ty = join(&tokens[ty..decl.ty.1]);
    out.place(&tokens[decl.start]);
    for (name_at, (from, to)) in &decl.declarators {
        let name = &tokens[*name_at].text;
        let mut suffix = String::new();
        for token in &tokens[*from..*to] {
            let _ = write!(suffix, "{} ", token.text);
        }
        match target {
            Target::Cuda => {
                let _ = write!(out.text, " __shared__ alignas(16) {ty} {name}{suffix};");
            }
            Target::Strict => {
                let _ = write!(
                    out.text,
                    " typedef {ty} msl_type_{name}{suffix}; __local msl_type_{name}& {name} = \
                     *msl_threadgroup<msl_type_{name}>();"
                );
            }
            Target::Host => {
                // The offset of a variable follows from the one declared before it.
                let all = kernel.iter().flat_map(|k| &k.threadgroup).flat_map(|d| &d.declarators);
                let before = all.map(|(at, _)| *at).take_while(|at| at != name_at).last();
                let (end, sum) = match before.map(|at| &tokens[at].text) {
                    Some(previous) => (format!("msl_end_{previous}"), format!("msl_sum_{previous}")),
                    None => ("0".to_string(), "0".to_string()),
                };
                let _ = write!(
                    out.text,
                    " typedef {ty} msl_type_{name}{suffix}; \
                     constexpr unsigned msl_end_{name} = msl_next({end}, sizeof(msl_type_{name})); \
                     constexpr unsigned msl_sum_{name} = msl_sum({sum}, sizeof(msl_type_{name})); \
                     static_assert(msl_sum_{name} <= 32768, \"threadgroup memory of the kernel exceeds 32768 bytes\"); \
                     msl_type_{name}& {name} = *reinterpret_cast<msl_type_{name}*>(\
                     msl_rt_threadgroup({end}, sizeof(msl_type_{name}), \"{name}\"));"
                );
            }
        }
    }
}

/// Call arguments of kernel `index` for buffers named by `buffer(i)` and a thread object `msl_t`.
fn arguments(unit: &Unit, index: usize, buffer: &dyn Fn(u32) -> String) -> String {
    let mut text = String::new();
    for param in &unit.reflections[index].params {
        if !text.is_empty() {
            text.push_str(", ");
        }
        let _ = match param {
            Param::Buffer(b) if b.reference => write!(text, "MslReference{{{}}}", buffer(b.index)),
            Param::Buffer(b) => write!(text, "MslPointer{{{}}}", buffer(b.index)),
            Param::Builtin { attribute, .. } => write!(text, "MSL_BUILTIN_{attribute}(msl_t)"),
        };
    }
    text
}

/// Thunks and the entry table of the host library.
pub(crate) fn host_entries(unit: &Unit) -> String {
    let mut text = String::from("#line 1 \"msl/entries\"\nnamespace metal { namespace kernels {\n");
    for (index, kernel) in unit.reflections.iter().enumerate() {
        let arguments = arguments(unit, index, &|n| format!("msl_b[{n}]"));
        let _ = writeln!(
            text,
            "static void msl_thunk_{index}(void* const* msl_b, const void* msl_p) {{\n\
             \x20   const MslThread& msl_t = *static_cast<const MslThread*>(msl_p); (void)msl_b; (void)msl_t;\n\
             \x20   {}({arguments});\n}}",
            kernel.function
        );
    }
    text.push_str("}}\n");
    for index in 0..unit.reflections.len() {
        let _ = writeln!(
            text,
            "extern \"C\" __attribute__((visibility(\"default\"))) void msl_kernel_{index}(void* const* b, const void* t) \
             {{ metal::kernels::msl_thunk_{index}(b, t); }}"
        );
    }
    text
}

/// Explicit instantiations of the kernel templates, so that their bodies are checked.
pub(crate) fn strict_entries(unit: &Unit) -> String {
    let mut text = String::from("namespace metal { namespace kernels {\n");
    for instance in &unit.instantiations {
        let token = &unit.tokens[instance.start];
        let name = &unit.names[token.file as usize];
        let _ = writeln!(text, "#line {} \"{name}\"\ntemplate decltype({1}) {1};", token.line, instance.function);
    }
    text.push_str("}}\n");
    text
}

/// `extern "C" __global__` entry points, one a kernel: device pointers in order of buffer index.
pub(crate) fn cuda_entries(
    unit: &Unit,
    names: &[String],
    threads: &dyn Fn(&crate::KernelReflection) -> Option<u32>,
) -> String {
    let mut text = String::from("#line 1 \"msl/entries\"\n");
    for (index, kernel) in unit.reflections.iter().enumerate() {
        let params: Vec<String> = kernel.buffers().iter().map(|b| format!("void* msl_b{}", b.index)).collect();
        let bounds = threads(kernel).or(kernel.max_threads);
        let bounds = bounds.map_or_else(String::new, |n| format!("__launch_bounds__({n}) "));
        let _ = writeln!(
            text,
            "extern \"C\" __global__ void {bounds}{}({}) {{\n\
             \x20   using namespace metal; using namespace metal::kernels;\n\
             \x20   const MslThread msl_t = msl_this_thread(); (void)msl_t;\n\
             \x20   MSL_ENTER\n\
             \x20   metal::kernels::{}({});\n}}",
            names[index],
            params.join(", "),
            kernel.function,
            arguments(unit, index, &|n| format!("msl_b{n}"))
        );
    }
    text
}
