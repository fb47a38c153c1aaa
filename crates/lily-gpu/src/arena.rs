//! Places of a step's intermediates in one buffer: those that are never alive together share bytes.

use lily_model::graph::{BufferId as PlanBuffer, BufferRole, Op, Plan};

/// Something to place: its size, and the operations (inclusive ranges of indices) over which it is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Bytes.
    pub bytes: u64,
    /// Ranges of operations, in order.
    pub alive: Vec<(usize, usize)>,
}

/// Alignment of a place.
pub const ALIGNMENT: u64 = 256;

/// Ranges over which a plan's buffer is alive: each begins where it is written without being read.
pub fn alive(plan: &Plan, buffer: PlanBuffer) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (index, op) in plan.ops.iter().enumerate() {
        let accesses = op.accesses();
        let (reads, writes) = (accesses.reads.contains(&buffer), accesses.writes.contains(&buffer));
        match ranges.last_mut() {
            Some(last) if reads => last.1 = index,
            _ if reads || writes => ranges.push((index, index)),
            _ => {}
        }
    }
    ranges
}

/// Ranges of an intermediate that only the operations `is_user` picks use.
pub fn alive_in(plan: &Plan, is_user: impl Fn(&Op) -> bool) -> Vec<(usize, usize)> {
    plan.ops.iter().enumerate().filter(|(_, op)| is_user(op)).map(|(index, _)| (index, index)).collect()
}

/// Scratch buffers of a plan, in order.
pub fn scratch_buffers(plan: &Plan) -> impl Iterator<Item = PlanBuffer> + '_ {
    let is_scratch = |&(_, buffer): &(usize, &lily_model::graph::Buffer)| buffer.role == BufferRole::Scratch;
    plan.buffers.iter().enumerate().filter(is_scratch).map(|(index, _)| PlanBuffer(index as u32))
}

/// Offsets of the requests and the size of the buffer that holds them: largest first, each at the lowest offset where
/// nothing that lives with it lies.
pub fn place(requests: &[Request]) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(requests[i].bytes));
    let mut offsets = vec![0; requests.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for index in order {
        let request = &requests[index];
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|&&other| together(&request.alive, &requests[other].alive))
            .map(|&other| (offsets[other], offsets[other] + requests[other].bytes))
            .collect();
        taken.sort_unstable();
        let mut offset = 0u64;
        for (start, end) in taken {
            if offset + request.bytes <= start {
                break;
            }
            offset = offset.max(end.next_multiple_of(ALIGNMENT));
        }
        offsets[index] = offset;
        total = total.max(offset + request.bytes);
        placed.push(index);
    }
    (offsets, total.next_multiple_of(ALIGNMENT))
}

fn together(a: &[(usize, usize)], b: &[(usize, usize)]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.0 <= y.1 && y.0 <= x.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_share_bytes_only_when_never_alive_together() {
        let request = |bytes, alive: &[(usize, usize)]| Request { bytes, alive: alive.to_vec() };
        let requests = [
            request(1024, &[(0, 2), (8, 9)]),
            request(512, &[(3, 5)]),
            request(512, &[(5, 6)]),
            request(256, &[(2, 3)]),
        ];
        let (offsets, total) = place(&requests);
        let overlap = |a: usize, b: usize| {
            offsets[a] < offsets[b] + requests[b].bytes && offsets[b] < offsets[a] + requests[a].bytes
        };
        assert!(overlap(0, 1), "{offsets:?}");
        assert!(!overlap(1, 2) && !overlap(0, 3) && !overlap(1, 3), "{offsets:?}");
        assert_eq!(total, 1280);
    }
}
