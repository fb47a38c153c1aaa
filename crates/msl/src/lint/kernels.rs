//! Rules about a kernel's signature: buffer indices, position types, threadgroup memory.

use super::Findings;
use crate::reflect::Param;

/// Threadgroup memory of every Apple GPU.
pub const THREADGROUP_LIMIT: usize = 32_768;

/// Attributes that come as vectors and must agree in width within one kernel.
const POSITIONS: [&str; 6] = [
    "thread_position_in_grid",
    "threadgroup_position_in_grid",
    "thread_position_in_threadgroup",
    "threads_per_threadgroup",
    "threadgroups_per_grid",
    "threads_per_grid",
];

pub(super) fn check(findings: &mut Findings) {
    let unit = findings.unit;
    for decl in &unit.kernels {
        let token = &unit.tokens[decl.name_at];
        let mut indices: Vec<u32> = Vec::new();
        let mut width: Option<(&str, u32)> = None;
        for param in &decl.params {
            match param {
                Param::Buffer(buffer) => {
                    if indices.contains(&buffer.index) {
                        let message = format!("{}: buffer index {} is used twice", decl.name, buffer.index);
                        findings.add(token, "buffer index", message);
                    }
                    indices.push(buffer.index);
                }
                Param::Builtin { attribute, ty, .. } if POSITIONS.contains(&attribute.as_str()) => {
                    let lanes = ty.chars().last().and_then(|c| c.to_digit(10)).unwrap_or(1);
                    match width {
                        Some((first, other)) if other != lanes => {
                            let message =
                                format!("{}: {attribute} and {first} have vectors of different width", decl.name);
                            findings.add(token, "position width", message);
                        }
                        _ => width = Some((attribute, lanes)),
                    }
                }
                Param::Builtin { .. } => {}
            }
        }
        indices.sort_unstable();
        indices.dedup();
        let missing: Vec<String> = (0..indices.last().copied().unwrap_or(0))
            .filter(|index| !indices.contains(index))
            .map(|index| index.to_string())
            .collect();
        if !missing.is_empty() {
            let message = format!("{}: no parameter for buffer {}", decl.name, missing.join(", "));
            findings.add(token, "buffer index", message);
        }
    }
    for (at, instance) in unit.instantiations.iter().enumerate() {
        let same = unit.instantiations[..at].iter().find(|other| other.function == instance.function);
        if let Some(first) = same {
            // clang, and so Apple's compiler, takes an explicit instantiation once, whatever its host name.
            let message = format!("{} is instantiated already, as \"{}\"", instance.function, first.name);
            findings.add(&unit.tokens[instance.start], "instantiation", message);
        }
    }
    for kernel in &unit.reflections {
        let sum = kernel.threadgroup_bytes().unwrap_or(0);
        if sum > THREADGROUP_LIMIT {
            let declared = unit
                .kernels
                .iter()
                .find(|decl| (unit.tokens[decl.name_at].file, unit.tokens[decl.name_at].line) == kernel.at);
            if let Some(decl) = declared {
                let message =
                    format!("{}: {sum} bytes of threadgroup memory, the limit is {THREADGROUP_LIMIT}", kernel.name);
                findings.add(&unit.tokens[decl.name_at], "threadgroup memory", message);
            }
        }
    }
}
