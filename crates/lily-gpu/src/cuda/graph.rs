//! A program as a CUDA graph: one kernel node a dispatch, and exactly the edges that follow from what dispatches declare.
//!
//! Edges that follow from others are left out. A node that waits for one other alone may be launched while that one still
//! runs (a programmatic edge): its kernel waits on the device before it touches what others write.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys;
use lily_model::device::DeviceError;

use super::api::{Function, Stream, check};
use super::native::Shape;

/// For each node, the earlier ones it must wait for, without those that others imply.
pub fn reduced(edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
    // `before[i]` has a bit for every node that is finished when i starts.
    let words = edges.len().div_ceil(64);
    let mut before: Vec<Vec<u64>> = Vec::with_capacity(edges.len());
    let mut out = Vec::with_capacity(edges.len());
    for waits in edges {
        let mut implied = vec![0u64; words];
        for &wait in waits {
            for (word, other) in implied.iter_mut().zip(&before[wait]) {
                *word |= other;
            }
        }
        let direct: Vec<usize> = waits.iter().copied().filter(|&w| implied[w / 64] >> (w % 64) & 1 == 0).collect();
        for &wait in &direct {
            implied[wait / 64] |= 1 << (wait % 64);
        }
        before.push(implied);
        out.push(direct);
    }
    out
}

/// One launch.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Kernel.
    pub function: Function,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Device addresses that are its arguments.
    pub arguments: Vec<u64>,
}

impl Launch {
    /// A launch of a given shape.
    pub fn new(function: Function, shape: Shape, shared: u32, arguments: Vec<u64>) -> Self {
        let Shape { grid, threads } = shape;
        Launch { function, grid, threads, shared, arguments }
    }
}

/// Edges between launches, from those between dispatches of `lengths` launches each: the first launch of a dispatch waits
/// for the last of those before it, the others for the one before them.
pub fn chained(edges: &[Vec<usize>], lengths: &[usize]) -> Vec<Vec<usize>> {
    let mut ends = Vec::with_capacity(lengths.len());
    let mut out = Vec::new();
    for (waits, &length) in edges.iter().zip(lengths) {
        for place in 0..length {
            let waits = match place {
                0 => waits.iter().map(|&w: &usize| ends[w]).collect(),
                _ => vec![out.len() - 1],
            };
            out.push(waits);
        }
        ends.push(out.len() - 1);
    }
    out
}

/// How a node may wait for the only one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Until it has ended.
    Full,
    /// On the device: every kernel waits for its predecessors itself.
    OnDevice,
}

/// A graph ready to be launched.
#[derive(Debug)]
pub struct Graph {
    executable: sys::CUgraphExec,
}

// SAFETY: the driver API is thread-safe.
unsafe impl Send for Graph {}

impl Graph {
    /// Builds the graph of `launches`; `edges[i]` are the nodes that node i waits for (reduced).
    pub fn new(launches: &[Launch], edges: &[Vec<usize>], waiting: Waiting) -> Result<Self, DeviceError> {
        let mut graph = ptr::null_mut();
        // SAFETY: writes one handle.
        check("cuGraphCreate", unsafe { sys::cuGraphCreate(&mut graph, 0) })?;
        let built = fill(graph, launches, edges, waiting).and_then(|()| {
            let mut executable = ptr::null_mut();
            // SAFETY: the graph is complete; writes one handle.
            check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) })?;
            Ok(Graph { executable })
        });
        // SAFETY: created above, destroyed once; the executable does not need it.
        unsafe { sys::cuGraphDestroy(graph) };
        built
    }

    /// Starts it.
    pub fn launch(&self, stream: &Stream) -> Result<(), DeviceError> {
        // SAFETY: both handles are live.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.executable, stream.0) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated by `new`, destroyed once.
        unsafe { sys::cuGraphExecDestroy(self.executable) };
    }
}

fn fill(graph: sys::CUgraph, launches: &[Launch], edges: &[Vec<usize>], waiting: Waiting) -> Result<(), DeviceError> {
    let mut nodes = Vec::with_capacity(launches.len());
    for (launch, waits) in launches.iter().zip(edges) {
        let mut arguments = launch.arguments.clone();
        let mut pointers: Vec<*mut c_void> = arguments.iter_mut().map(|a| ptr::from_mut(a).cast()).collect();
        let parameters = sys::CUDA_KERNEL_NODE_PARAMS {
            func: launch.function.0,
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            kernelParams: pointers.as_mut_ptr(),
            extra: ptr::null_mut(),
            kern: ptr::null_mut(),
            ctx: ptr::null_mut(),
        };
        let mut node = ptr::null_mut();
        // SAFETY: the parameters are copied during the call; there are as many pointers as the kernel has arguments.
        check("cuGraphAddKernelNode", unsafe {
            sys::cuGraphAddKernelNode_v2(&mut node, graph, ptr::null(), 0, &parameters)
        })?;
        let overlap = waiting == Waiting::OnDevice && waits.len() == 1;
        for &wait in waits {
            let edge = sys::CUgraphEdgeData {
                from_port: u8::from(overlap),
                to_port: 0,
                type_: u8::from(overlap),
                reserved: [0; 5],
            };
            let from: sys::CUgraphNode = nodes[wait];
            // SAFETY: both nodes are of this graph; one edge is read.
            check("cuGraphAddDependencies", unsafe { sys::cuGraphAddDependencies_v2(graph, &from, &node, &edge, 1) })?;
        }
        nodes.push(node);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dispatch_of_two_launches_is_waited_for_at_its_second() {
        let edges = vec![vec![], vec![0], vec![0, 1]];
        assert_eq!(chained(&edges, &[1, 2, 1]), vec![vec![], vec![0], vec![1], vec![0, 2]]);
    }

    #[test]
    fn edges_that_follow_from_others_are_left_out_and_no_others() {
        let edges = vec![vec![], vec![0], vec![0, 1], vec![0], vec![2, 3, 0]];
        assert_eq!(reduced(&edges), vec![vec![], vec![0], vec![1], vec![0], vec![2, 3]]);
    }
}
