//! The table against the plan: a dispatch binds what its operation declares, and nothing else.

use lily_model::config::ModelConfig;
use lily_model::device::{Capacity, LogitRows, Output, PageId, Segment, SlotId, Step, Tokens};
use lily_model::graph::{BufferRole, Model, Op, Phase, Plan};

use super::Table;
use crate::memory::{Arrivals, DeviceMemory, Input, Private, WeightSpans};
use crate::program::{Access, BufferId, Dispatch, Span};
use crate::roles::Libraries;
use crate::shape::StepShape;
use crate::source::WeightAlignment;
use crate::tuning::Tuning;

fn is_in(inner: &Span, outer: &Span) -> bool {
    inner.buffer == outer.buffer
        && inner.offset >= outer.offset
        && inner.offset + inner.bytes <= outer.offset + outer.bytes
}

/// What is wrong with the bindings of a dispatch of `op`.
fn undeclared(table: &Table<'_>, op: &Op, dispatch: &Dispatch) -> Vec<String> {
    let accesses = op.accesses();
    let (memory, plan, shape) = (table.memory, table.plan, &table.shape);
    let mut readable: Vec<Span> = accesses.reads.iter().map(|id| memory.buffer(plan, shape, *id)).collect();
    let mut writable: Vec<Span> = accesses.writes.iter().map(|id| memory.buffer(plan, shape, *id)).collect();
    for id in &accesses.weights {
        match memory.weight(*id) {
            WeightSpans::Matrix(spans) => readable.extend(spans),
            WeightSpans::Vector(span) => readable.push(span),
        }
    }
    // Inputs of every operation, and what a kernel keeps to itself or hands to the next dispatch of the same layer.
    readable.extend([Input::Step, Input::Segments].map(|input| memory.input(shape.set, input)));
    readable.push(memory.chosen());
    let private =
        [Private::RouterLogits, Private::ArgmaxParts, Private::Scanned, Private::SortCounts, Private::SortTiles];
    let own: Vec<Span> = private
        .into_iter()
        .filter(|p| p.used_by(&op.kind))
        .map(|p| memory.private(table.model, shape, p))
        .chain([Arrivals::OutProj, Arrivals::Down, Arrivals::Router, Arrivals::Argmax].map(|a| memory.arrivals(a)))
        .collect();
    readable.extend(&own);
    writable.extend(&own);
    if op.name() == "argmax" {
        writable.push(memory.chosen());
    }
    // An output may be read back within the operation, by the dispatch that finishes it.
    let may = |spans: &[Span], span: &Span| spans.iter().any(|s| is_in(span, s));
    let mut wrong = Vec::new();
    for binding in &dispatch.bindings {
        let reads = matches!(binding.access, Access::Read | Access::ReadWrite);
        let writes = binding.access != Access::Read;
        let declared = (!reads || may(&readable, &binding.span)) && (!writes || may(&writable, &binding.span));
        if !declared {
            wrong.push(format!(
                "{} binds {} as {:?}: {:?}",
                dispatch.label(),
                binding.index,
                binding.access,
                binding.span
            ));
        }
    }
    wrong
}

#[test]
fn every_range_that_a_dispatch_binds_is_declared_by_its_operation() {
    let model = Model::new(ModelConfig::qwen36_35b_a3b()).expect("the preset is a valid geometry");
    let capacity = Capacity { slots: 8, pages: 64, prefill_rows: 2048, decode_rows: 8, max_seq: 8192 };
    let plans = [Plan::decode(&model, 8), Plan::prefill(&model, 2048)];
    let mut next = 0;
    let mut buffer = || {
        next += 1;
        BufferId(next)
    };
    let weights = (0..model.weights.len())
        .map(|_| WeightSpans::Matrix([0; 3].map(|_| Span { buffer: buffer(), offset: 0, bytes: 64 })))
        .collect();
    let memory = DeviceMemory::around(
        (weights, WeightAlignment::Sixteen),
        &model,
        &Tuning::APPLE,
        &plans,
        &capacity,
        &mut |_, _, _| Ok(buffer()),
    )
    .expect("memory on paper");
    let libraries = Libraries::of(&model);
    let mut wrong = Vec::new();
    for (phase, rows) in [(Phase::Decode, 1), (Phase::Prefill, 5), (Phase::Prefill, 600), (Phase::Prefill, 2048)] {
        let plan = &plans[usize::from(phase == Phase::Prefill)];
        let (pages, ids): (Vec<PageId>, _) = ((0..16).map(PageId).collect(), vec![0; rows]);
        let segments = [Segment { slot: SlotId(0), start: 300, rows, pages: &pages }];
        let (tokens, logit_rows, output) = (Tokens::Ids(&ids), LogitRows::Last, Output::Argmax);
        let shape = StepShape::of(&Step { phase, tokens, segments: &segments, logit_rows, output }, 1);
        let table =
            Table { model: &model, plan, memory: &memory, libraries: &libraries, tuning: &Tuning::APPLE, shape };
        let (mut operations, mut written) = (0, 0);
        for op in &plan.ops {
            let mut dispatches = Vec::new();
            table.op(op, &mut dispatches);
            operations += usize::from(!dispatches.is_empty());
            wrong.extend(dispatches.iter().flat_map(|d| undeclared(&table, op, d)));
            // Every buffer that the plan says is written is bound for writing by some dispatch.
            for id in op.accesses().writes {
                let span = memory.buffer(plan, &shape, id);
                let bound =
                    dispatches.iter().flat_map(|d| &d.bindings).any(|b| b.access != Access::Read && b.span == span);
                assert!(bound, "{} of layer {:?} does not write {}", op.name(), op.layer, plan.buffer(id).name);
                written += usize::from(plan.buffer(id).role != BufferRole::Output);
            }
        }
        assert_eq!(operations, plan.ops.len());
        assert!(written > plan.ops.len());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
