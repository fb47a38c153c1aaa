//! The situations an operation is tried in: rows, positions, routing, values.

use lily_model::config::ModelConfig;
use lily_model::device::{LogitRows, PageId, Segment, SlotId};
use lily_model::graph::{OpKind, Phase, Plan};

use super::{PAGES, SLOTS};

/// Consecutive tokens of one sequence: first position, and how many.
pub(super) type Run = (usize, usize);

/// What the values of activations are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// Bell-shaped, variance 1.
    Random,
    /// The same, and one in 16 is 100 times as large.
    Outliers,
    /// Zeros: every logit ties, every norm sees its epsilon alone.
    Zeros,
}

/// Which experts the rows of a case go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Routing {
    /// Different ones a row, at random.
    Random,
    /// All slots of all rows to the last expert; the others are empty.
    OneExpert,
}

/// What an operation's result depends on besides its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aspect {
    /// The number of rows.
    Rows,
    /// The number of rows, and which experts they go to.
    Experts,
    /// Where rows stand in their sequences; a recurrent state or a window.
    State,
    /// Where rows stand in their sequences; the cache.
    Cache,
    /// Which rows yield logits.
    Logits,
    /// Where the tokens come from.
    Tokens,
}

impl Aspect {
    /// That of an operation.
    pub fn of(kind: &OpKind) -> Self {
        match kind {
            OpKind::Embed { .. } => Aspect::Tokens,
            OpKind::GdnInProj { .. }
            | OpKind::AttnInProj { .. }
            | OpKind::OutProjNorm { .. }
            | OpKind::OutProj { .. }
            | OpKind::AddRmsNorm { .. } => Aspect::Rows,
            OpKind::GdnStep { .. } | OpKind::GdnConv { .. } | OpKind::GdnScan { .. } => Aspect::State,
            OpKind::QkNormRopeStore { .. }
            | OpKind::AttnDecode { .. }
            | OpKind::AttnCombine { .. }
            | OpKind::AttnPrefill { .. } => Aspect::Cache,
            OpKind::Router { .. }
            | OpKind::RouteSort { .. }
            | OpKind::ExpertGateUp { .. }
            | OpKind::ExpertDownNorm { .. }
            | OpKind::GroupedGateUp { .. }
            | OpKind::GroupedDown { .. }
            | OpKind::Combine { .. } => Aspect::Experts,
            OpKind::LmHead { .. } | OpKind::Argmax { .. } => Aspect::Logits,
        }
    }
}

/// One situation.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub name: String,
    pub phase: Phase,
    pub runs: Vec<Run>,
    pub fill: Fill,
    pub routing: Routing,
    pub logit_rows: LogitRows,
    /// Whether tokens come from the step before.
    pub previous: bool,
    /// Whether the grids have room for twice the rows, segments and logit rows that the step has.
    pub roomy: bool,
    /// The operations it says something about.
    pub aspects: &'static [Aspect],
}

const ALL: &[Aspect] = &[Aspect::Rows, Aspect::Experts, Aspect::State, Aspect::Cache, Aspect::Logits, Aspect::Tokens];

impl Case {
    fn new(phase: Phase, runs: &[Run], aspects: &'static [Aspect]) -> Self {
        let rows: usize = runs.iter().map(|run| run.1).sum();
        let places: Vec<String> = runs.iter().map(|&(start, rows)| place(start, rows)).collect();
        Case {
            name: match rows {
                1 => format!("1 row at {}", places.join(", ")),
                _ => format!("{rows} rows at {}", places.join(", ")),
            },
            phase,
            runs: runs.to_vec(),
            fill: Fill::Random,
            routing: Routing::Random,
            logit_rows: LogitRows::Last,
            previous: false,
            roomy: false,
            aspects,
        }
    }

    fn filled(mut self, fill: Fill) -> Self {
        self.fill = fill;
        self.name += match fill {
            Fill::Random => "",
            Fill::Outliers => ", outliers",
            Fill::Zeros => ", all zeros",
        };
        self
    }

    fn one_expert(mut self) -> Self {
        self.routing = Routing::OneExpert;
        self.name += ", all on one expert";
        self
    }

    fn all_logits(mut self) -> Self {
        self.logit_rows = LogitRows::All;
        self.name += ", logits of all";
        self
    }

    fn previous(mut self) -> Self {
        self.previous = true;
        self.name += ", tokens of the step before";
        self
    }

    fn roomy(mut self) -> Self {
        self.roomy = true;
        self.name += ", in a grid for twice as many";
        self
    }

    /// Rows of all runs.
    pub fn rows(&self) -> usize {
        self.runs.iter().map(|run| run.1).sum()
    }

    /// Block tables, one a run: blocks that the case writes have pages of their own; those that it only reads are few
    /// pages again and again in a long context.
    pub fn tables(&self) -> Vec<Vec<PageId>> {
        const SHARED: usize = 6;
        let mut next = SHARED;
        let mut own = || {
            let page = next;
            next += 1;
            // Scattered: 7 has no divisor in common with the pages there are.
            PageId((page * 7 % PAGES) as u32)
        };
        let shared = |block: usize| PageId((block % SHARED * 7 % PAGES) as u32);
        self.runs
            .iter()
            .map(|&(start, rows)| {
                let written = start / Plan::PAGE_TOKENS..(start + rows).div_ceil(Plan::PAGE_TOKENS);
                (0..written.end).map(|block| if written.contains(&block) { own() } else { shared(block) }).collect()
            })
            .collect()
    }

    /// The segments of the step.
    pub fn segments<'a>(&self, tables: &'a [Vec<PageId>]) -> Vec<Segment<'a>> {
        let slot = |index: usize| SlotId(((5 * index + 3) % SLOTS) as u32);
        self.runs
            .iter()
            .zip(tables)
            .enumerate()
            .map(|(i, (&(start, rows), pages))| Segment { slot: slot(i), start, rows, pages })
            .collect()
    }
}

fn place(start: usize, rows: usize) -> String {
    match rows {
        1 => start.to_string(),
        _ => format!("{start}..{}", start + rows),
    }
}

/// Rows from which the grouped products take tiles of 64 (at most the rows that a step of the doctor's device has).
pub(super) fn wide_rows(config: &ModelConfig) -> usize {
    (64 * config.num_experts).div_ceil(config.num_experts_per_tok)
}

/// Every case of both phases whose sequences have at most `longest` tokens.
pub(super) fn cases(config: &ModelConfig, prefill_rows: usize, longest: usize) -> Vec<Case> {
    use Aspect::{Cache, Experts, Logits, Rows, State, Tokens};
    let decode = |positions: &[usize], aspects| {
        let runs: Vec<Run> = positions.iter().map(|&position| (position, 1)).collect();
        Case::new(Phase::Decode, &runs, aspects)
    };
    let prefill = |runs: &[Run], aspects| Case::new(Phase::Prefill, runs, aspects);
    // Ragged: 67 rows, a whole tile of 64 and 3 rows of the next; segments that begin and end around a page's border.
    let ragged: &[Run] = &[(0, 1), (219, 37), (255, 2), (257, 27)];
    let mut cases = vec![
        decode(&[0], ALL),
        decode(&[32_768, 257, 0, 256, 255], &[State, Cache]),
        decode(&[262_143], &[State, Cache]),
        decode(&[1, 2, 3, 4, 5], &[Rows, Experts, Logits, Tokens]),
        decode(&[0, 1, 2, 3, 254, 30, 31], &[Rows, Experts, State, Cache]).filled(Fill::Outliers),
        decode(&[0, 1, 2], &[Rows, Experts, State, Cache, Logits]).filled(Fill::Zeros),
        decode(&[9, 8, 7, 6], &[Experts]).one_expert(),
        decode(&[5, 6], &[Tokens]).previous(),
        decode(&[300, 40, 0], ALL).roomy(),
        prefill(&[(0, 1)], ALL),
        prefill(&[(250, 8)], ALL),
        prefill(&[(1015, 9)], &[Rows, Experts, State, Cache, Logits]).all_logits(),
        prefill(&[(32_760, 9)], &[Cache]),
        prefill(&[(0, 1), (30, 40), (250, 29)], ALL).roomy(),
        prefill(ragged, ALL),
        prefill(ragged, &[Experts]).one_expert(),
        prefill(&[(3, 66)], &[Rows, Experts, State, Cache]).filled(Fill::Outliers),
        prefill(&[(0, 10)], &[Rows, Experts, State, Cache]).filled(Fill::Zeros),
        prefill(&[(0, 300)], &[State, Cache]),
        prefill(&[(262_142, 2)], &[Cache]),
    ];
    let wide = wide_rows(config);
    if wide <= prefill_rows {
        cases.push(prefill(&[(0, wide)], &[Experts]));
    }
    cases.retain(|case| case.runs.iter().all(|&(start, rows)| start + rows <= longest));
    cases
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn pages_that_a_case_writes_are_nobody_elses() {
        for case in cases(&ModelConfig::qwen36_35b_a3b(), 4096, usize::MAX) {
            let tables = case.tables();
            let mut written = HashSet::new();
            let mut read = HashSet::new();
            for (&(start, rows), table) in case.runs.iter().zip(&tables) {
                assert!(table.len() * Plan::PAGE_TOKENS >= start + rows);
                for (block, page) in table.iter().enumerate() {
                    if block >= start / Plan::PAGE_TOKENS {
                        assert!(written.insert(*page), "{}: page {} twice", case.name, page.0);
                    } else {
                        read.insert(*page);
                    }
                }
            }
            assert!(written.is_disjoint(&read), "{}", case.name);
        }
    }
}
