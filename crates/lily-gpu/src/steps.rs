//! Steps as the host sees them: the contract they must keep, and their inputs as words.

use lily_model::device::{Capacity, DeviceError, MAX_STEPS_IN_FLIGHT, Step, Tokens};
use lily_model::graph::{Phase, Plan};

use crate::device::{logit_row_indices, takes_previous};

/// What the newest step left for [`Tokens::Previous`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Chosen {
    /// Rows whose token the device chose.
    pub rows: usize,
}

/// What a step is checked against.
pub(crate) struct Limits<'a> {
    pub device: &'static str,
    pub capacity: &'a Capacity,
    pub vocab: usize,
    pub table: usize,
    pub unfinished: usize,
    pub chosen: Chosen,
}

/// Inputs of a step as u32 words.
pub(crate) struct Inputs {
    pub step: Vec<u32>,
    pub tokens: Vec<u32>,
    pub rows: Vec<u32>,
    pub pages: Vec<u32>,
    pub logit_rows: Vec<u32>,
    pub segments: Vec<u32>,
}

/// Refuses a capacity that no step could have.
pub(crate) fn check_capacity(device: &'static str, capacity: &Capacity) -> Result<(), DeviceError> {
    let refuse = |what: &str, value: usize, accepted: &str| {
        Err(DeviceError::Unsupported { device, what: what.into(), value: value.to_string(), accepted: accepted.into() })
    };
    match capacity {
        c if c.slots == 0 => refuse("number of slots", c.slots, "at least 1"),
        c if c.pages == 0 => refuse("number of pages", c.pages, "at least 1"),
        c if c.prefill_rows == 0 || c.prefill_rows > 8192 => refuse("prefill rows", c.prefill_rows, "1 to 8192"),
        c if c.decode_rows == 0 || c.decode_rows > Plan::MAX_DECODE_ROWS => {
            refuse("decode rows", c.decode_rows, "1 to 16")
        }
        c if c.max_seq == 0 => refuse("longest sequence", c.max_seq, "at least 1"),
        _ => Ok(()),
    }
}

/// Checks the contract of `Device::submit`.
pub(crate) fn check(step: &Step<'_>, limits: &Limits<'_>) -> Result<(), DeviceError> {
    let refuse = |reason: String| Err(DeviceError::BadStep { device: limits.device, reason });
    let (capacity, rows) = (limits.capacity, step.rows());
    if limits.unfinished >= MAX_STEPS_IN_FLIGHT {
        return refuse(format!("{} steps are unfinished, the most there may be", limits.unfinished));
    }
    let most = match step.phase {
        Phase::Decode => capacity.decode_rows,
        Phase::Prefill => capacity.prefill_rows,
    };
    if rows == 0 || rows > most {
        return refuse(format!("{rows} rows (1 to {most})"));
    }
    match step.tokens {
        Tokens::Ids(ids) => {
            if ids.len() != rows {
                return refuse(format!("{} tokens for {rows} rows", ids.len()));
            }
            if let Some(id) = ids.iter().find(|&&id| id as usize >= limits.vocab) {
                return refuse(format!("token {id} of a vocabulary of {}", limits.vocab));
            }
        }
        Tokens::Previous if limits.chosen.rows < rows => {
            return refuse(format!("{rows} rows take tokens of a step that chose {}", limits.chosen.rows));
        }
        Tokens::Previous => {}
    }
    let table: usize = step.segments.iter().map(|s| s.pages.len()).sum();
    if table > limits.table {
        return refuse(format!("{table} pages in block tables (at most {})", limits.table));
    }
    for (index, segment) in step.segments.iter().enumerate() {
        let end = segment.start + segment.rows;
        if segment.rows == 0 || (step.phase == Phase::Decode && segment.rows != 1) {
            return refuse(format!("segment {index} has {} rows", segment.rows));
        }
        if end > capacity.max_seq {
            return refuse(format!("segment {index} ends at position {end} of {}", capacity.max_seq));
        }
        if segment.slot.0 as usize >= capacity.slots {
            return refuse(format!("segment {index} has slot {} of {}", segment.slot.0, capacity.slots));
        }
        if step.segments[..index].iter().any(|other| other.slot == segment.slot) {
            return refuse(format!("two segments have slot {}", segment.slot.0));
        }
        if segment.pages.len() * Plan::PAGE_TOKENS < end {
            return refuse(format!("segment {index} has {} pages for {end} positions", segment.pages.len()));
        }
        if let Some(page) = segment.pages.iter().find(|page| page.0 as usize >= capacity.pages) {
            return refuse(format!("segment {index} has page {} of {}", page.0, capacity.pages));
        }
    }
    Ok(())
}

/// The inputs of a step that keeps the contract.
pub(crate) fn inputs(step: &Step<'_>) -> Inputs {
    let mut inputs = Inputs {
        step: Vec::new(),
        tokens: match step.tokens {
            Tokens::Ids(ids) => ids.to_vec(),
            Tokens::Previous => Vec::new(),
        },
        rows: Vec::new(),
        pages: Vec::new(),
        logit_rows: logit_row_indices(step),
        segments: Vec::new(),
    };
    let mut first = 0;
    for segment in step.segments {
        let table = inputs.pages.len() as u32;
        for row in 0..segment.rows {
            let position = (segment.start + row) as u32;
            inputs.rows.extend([position, segment.slot.0, first, segment.rows as u32, table]);
        }
        inputs.segments.push(first);
        inputs.pages.extend(segment.pages.iter().map(|page| page.0));
        first += segment.rows as u32;
    }
    let previous = u32::from(takes_previous(step));
    inputs.step = vec![first, inputs.logit_rows.len() as u32, previous, inputs.segments.len() as u32];
    inputs
}
