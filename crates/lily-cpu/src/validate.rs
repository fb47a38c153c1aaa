//! Whether a step keeps the contract of [`lily_model::device::Device::submit`]. After this nothing indexes out of bounds.

use lily_model::config::ModelConfig;
use lily_model::device::{Capacity, DeviceError, Segment, SlotId, Step, Tokens};
use lily_model::graph::{Phase, Plan};

/// An error of the step.
pub fn bad_step(reason: String) -> DeviceError {
    DeviceError::BadStep { device: "cpu", reason }
}

/// Checks a step and gives the ids of its rows; `previous` are those that the last step chose.
pub fn tokens(
    step: &Step<'_>,
    previous: &[u32],
    capacity: &Capacity,
    config: &ModelConfig,
) -> Result<Vec<u32>, DeviceError> {
    if step.segments.is_empty() {
        return Err(bad_step("no segments".into()));
    }
    let most = match step.phase {
        Phase::Decode => capacity.decode_rows,
        Phase::Prefill => capacity.prefill_rows,
    };
    let mut rows = 0usize;
    for (index, segment) in step.segments.iter().enumerate() {
        rows = rows.saturating_add(segment.rows);
        if rows > most {
            return Err(bad_step(format!("{rows} rows or more, of at most {most} in a {:?} step", step.phase)));
        }
        check_segment(index, segment, step, capacity)?;
    }
    let ids = match step.tokens {
        Tokens::Ids(ids) if ids.len() == rows => ids.to_vec(),
        Tokens::Ids(ids) => return Err(bad_step(format!("{} token ids for {rows} rows", ids.len()))),
        Tokens::Previous if previous.len() >= rows => previous[..rows].to_vec(),
        Tokens::Previous => {
            return Err(bad_step(format!(
                "{rows} rows take the previous step's tokens, which chose {}",
                previous.len()
            )));
        }
    };
    if let Some((row, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= config.vocab_size) {
        return Err(bad_step(format!("row {row}: token id {id} of a vocabulary of {}", config.vocab_size)));
    }
    Ok(ids)
}

fn check_segment(index: usize, segment: &Segment<'_>, step: &Step<'_>, capacity: &Capacity) -> Result<(), DeviceError> {
    let bad = |what: String| Err(bad_step(format!("segment {index}: {what}")));
    if segment.rows == 0 {
        return bad("no rows".into());
    }
    if step.phase == Phase::Decode && segment.rows != 1 {
        return bad(format!("{} rows in a decode step (accepted: 1)", segment.rows));
    }
    slot(segment.slot, capacity)?;
    if let Some(other) = step.segments[..index].iter().position(|s| s.slot == segment.slot) {
        return bad(format!("slot {} is segment {other}'s too", segment.slot.0));
    }
    let end = segment.start.saturating_add(segment.rows);
    if end > capacity.max_seq {
        return bad(format!("positions up to {end}, of at most {}", capacity.max_seq));
    }
    let needed = end.div_ceil(Plan::PAGE_TOKENS);
    if segment.pages.len() < needed {
        return bad(format!("{} pages for {end} positions (needed: {needed})", segment.pages.len()));
    }
    if let Some(page) = segment.pages[..needed].iter().find(|p| p.0 as usize >= capacity.pages) {
        return bad(format!("page {} of {}", page.0, capacity.pages));
    }
    let written = &segment.pages[segment.start / Plan::PAGE_TOKENS..needed];
    for (i, page) in written.iter().enumerate() {
        if written[..i].contains(page) {
            return bad(format!("page {} holds two blocks of new positions", page.0));
        }
        let shared = step.segments[..index].iter().any(|s| {
            let end = s.start.saturating_add(s.rows).div_ceil(Plan::PAGE_TOKENS).min(s.pages.len());
            s.pages[(s.start / Plan::PAGE_TOKENS).min(end)..end].contains(page)
        });
        if shared {
            return bad(format!("page {} is written by another segment too", page.0));
        }
    }
    Ok(())
}

/// Index of a slot.
pub fn slot(slot: SlotId, capacity: &Capacity) -> Result<usize, DeviceError> {
    let index = slot.0 as usize;
    if index < capacity.slots { Ok(index) } else { Err(bad_step(format!("slot {index} of {}", capacity.slots))) }
}
