//! The Qwen graph: which weights it has ([`weights`]), which operations compute it ([`op`]), and in what order ([`Plan`]).

mod build;
mod bytes;
mod op;
mod plan;
mod weights;

pub use bytes::{OpBytes, Traffic};
pub use op::{Accesses, Op, OpKind};
pub use plan::{Buffer, BufferId, BufferRole, Element, Extent, Phase, Plan};
pub use weights::{
    AttentionWeights, GdnWeights, LayerWeights, MixerWeights, Model, MoeWeights, WeightId, WeightKind, WeightSpec,
};
