//! Random schedules of submissions and cancellations against the oracle: whatever happens around a request, its tokens are
//! those of a cold run, and at the end every page and slot is accounted for.

mod oracle;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use lily_engine::{EngineConfig, Event, Request, SamplingParams};
use lily_model::device::Capacity;
use oracle::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Plan {
    /// Which of a few shared prefixes, how much of it, and an own part.
    prefix: u64,
    prefix_len: usize,
    own: u64,
    own_len: usize,
    max_tokens: usize,
    sampled: bool,
    branch: bool,
    /// Drop after so many events.
    cancel_after: Option<usize>,
    /// Pause before the next submission.
    pause: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    let prefix = (0u64..2, prop_oneof![Just(0usize), Just(256), 1usize..700]);
    let own = (0u64..3, 1usize..200);
    let cancel = prop_oneof![3 => Just(None), 1 => (0usize..20).prop_map(Some)];
    (prefix, own, 0usize..30, any::<bool>(), any::<bool>(), cancel, any::<bool>()).prop_map(
        |((prefix, prefix_len), (own, own_len), max_tokens, sampled, branch, cancel_after, pause)| Plan {
            prefix,
            prefix_len,
            own,
            own_len,
            max_tokens,
            sampled,
            branch,
            cancel_after,
            pause,
        },
    )
}

fn request(plan: &Plan) -> Request {
    let prompt = [&tokens(plan.prefix, plan.prefix_len)[..], &tokens(50 + plan.own, plan.own_len)].concat();
    let sampling = if plan.sampled {
        SamplingParams { seed: Some(plan.own), top_k: 40, ..SamplingParams::default() }
    } else {
        SamplingParams::greedy()
    };
    Request {
        max_tokens: Some(plan.max_tokens),
        branch_points: if plan.branch { vec![plan.prefix_len] } else { vec![] },
        ..Request::new(prompt, sampling)
    }
}

/// Answers of cold runs, computed once each.
fn expected(plan: &Plan) -> Vec<u32> {
    static KNOWN: Mutex<Option<HashMap<String, Vec<u32>>>> = Mutex::new(None);
    let key = format!("{:?}", Plan { cancel_after: None, pause: false, branch: false, ..plan.clone() });
    if let Some(ids) = KNOWN.lock().unwrap().get_or_insert_default().get(&key) {
        return ids.clone();
    }
    let ids = cold(request(plan)).ids;
    KNOWN.lock().unwrap().get_or_insert_default().insert(key, ids.clone());
    ids
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 40, ..ProptestConfig::default() })]
    #[test]
    fn every_schedule_gives_cold_answers_and_leaks_nothing(
        plans in proptest::collection::vec(plan(), 1..14),
        parallel in 1usize..5,
        spare_slots in 0usize..6,
        pages in 8usize..40,
        cache_pages in 0u64..30,
    ) {
        let capacity = Capacity { slots: parallel + spare_slots, pages, prefill_rows: 96, decode_rows: 16, max_seq: 2048 };
        let cache_bytes = cache_pages * PAGE_BYTES;
        let config = EngineConfig { parallel, cache_bytes, max_stall: Duration::from_millis(5), ..config() };
        let (engine, control) = engine_with(capacity, config);
        control.lock().unwrap().step_time = Duration::from_micros(20);
        let mut readers = Vec::new();
        for plan in plans {
            let mut generation = engine.submit(request(&plan)).unwrap();
            let pause = plan.pause;
            readers.push(std::thread::spawn(move || {
                let (mut ids, mut events) = (Vec::new(), 0);
                while plan.cancel_after.is_none_or(|n| events < n) {
                    match generation.recv_blocking() {
                        Some(Event::Token(token)) => ids.push(token.id),
                        Some(Event::Finished { reason, .. }) => {
                            return (plan, ids, Some(reason));
                        }
                        Some(_) => {}
                        None => panic!("no Finished"),
                    }
                    events += 1;
                }
                (plan, ids, None)
            }));
            if pause {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        for reader in readers {
            let (plan, ids, reason) = reader.join().unwrap();
            let expected = expected(&plan);
            match reason {
                Some(reason) => prop_assert_eq!((&ids, reason.clone()), (&expected, reason)),
                None => prop_assert!(expected.starts_with(&ids)),
            }
        }
        settle(&engine);
        let m = engine.metrics();
        prop_assert!(m.cache_bytes <= cache_bytes);
        prop_assert_eq!(m.pages_used * PAGE_BYTES + m.cache_snapshots * SLOT_BYTES, m.cache_bytes);
        prop_assert!(m.cache_snapshots as usize <= spare_slots);
        prop_assert_eq!((m.device_errors, m.finished_error), (0, 0));
    }
}
