//! Matrix roles: what a kernel calls a matrix, and how the matrices that play a role are stored.
//!
//! Storage is compiled into the kernels. Almost every checkpoint stores a role alike in all layers, and then there is one
//! library; a checkpoint with per-layer overrides gets one more library for each combination that does not fit.

use std::collections::BTreeMap;

use lily_model::config::Quantization;
use lily_model::graph::{MixerWeights, Model, Op, OpKind, WeightId, WeightKind};

/// A place in a kernel's signature that takes a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // as `WeightId`s in `lily_model::graph`
pub enum Role {
    Embed,
    Qkv,
    Z,
    B,
    A,
    GdnOut,
    Q,
    K,
    V,
    O,
    Gate,
    SharedGate,
    SwitchGate,
    SwitchUp,
    SwitchDown,
    SharedGateProj,
    SharedUp,
    SharedDown,
    LmHead,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 19] = [
        Role::Embed,
        Role::Qkv,
        Role::Z,
        Role::B,
        Role::A,
        Role::GdnOut,
        Role::Q,
        Role::K,
        Role::V,
        Role::O,
        Role::Gate,
        Role::SharedGate,
        Role::SwitchGate,
        Role::SwitchUp,
        Role::SwitchDown,
        Role::SharedGateProj,
        Role::SharedUp,
        Role::SharedDown,
        Role::LmHead,
    ];

    /// Prefix of its constants in the kernels (`QKV` of `QKV_BITS`).
    pub fn name(self) -> &'static str {
        match self {
            Role::Embed => "EMBED",
            Role::Qkv => "QKV",
            Role::Z => "Z",
            Role::B => "B",
            Role::A => "A",
            Role::GdnOut => "GDN_OUT",
            Role::Q => "Q",
            Role::K => "K",
            Role::V => "V",
            Role::O => "O",
            Role::Gate => "GATE",
            Role::SharedGate => "SHARED_GATE",
            Role::SwitchGate => "SWITCH_GATE",
            Role::SwitchUp => "SWITCH_UP",
            Role::SwitchDown => "SWITCH_DOWN",
            Role::SharedGateProj => "SHARED_GATE_PROJ",
            Role::SharedUp => "SHARED_UP",
            Role::SharedDown => "SHARED_DOWN",
            Role::LmHead => "LM_HEAD",
        }
    }
}

/// How a matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Storage {
    /// 4, 8, or 16 for bf16.
    pub bits: usize,
    /// Inputs that share a scale; the whole row for bf16.
    pub group: usize,
}

impl Storage {
    /// Storage of a matrix of `inputs` columns.
    pub fn of(quantization: Option<Quantization>, inputs: usize) -> Self {
        match quantization {
            Some(q) => Storage { bits: q.bits, group: q.group_size },
            None => Storage { bits: 16, group: inputs },
        }
    }

    /// 16-byte vectors of a row of `inputs` columns.
    pub fn vectors(self, inputs: usize) -> usize {
        inputs * self.bits / 128
    }

    /// Matrix rows that a simdgroup reads next to one another (`SIDE` in `matvec.metal`).
    pub fn side(self, inputs: usize) -> usize {
        match self.vectors(inputs) {
            17.. => 1,
            9..=16 => 2,
            5..=8 => 4,
            _ => 8,
        }
    }

    fn of_weight(model: &Model, id: WeightId) -> Self {
        match model.weight(id).kind {
            WeightKind::Matrix { inputs, quantization, .. } => Storage::of(quantization, inputs),
            WeightKind::Gain { len } | WeightKind::Vector { len } => Storage::of(None, len),
            WeightKind::Conv { taps, .. } => Storage::of(None, taps),
        }
    }
}

/// Storage of every role in one library.
pub type StorageTable = BTreeMap<Role, Storage>;

/// The libraries a model needs, and which one each set of roles is compiled in.
#[derive(Debug, Clone)]
pub struct Libraries {
    /// One table a library; complete.
    pub tables: Vec<StorageTable>,
}

impl Libraries {
    /// The fewest libraries, first fit, that hold every operation of the model.
    pub fn of(model: &Model) -> Self {
        let mut tables: Vec<StorageTable> = vec![StorageTable::new()];
        for needs in needs(model) {
            let fits = |table: &StorageTable| needs.iter().all(|(role, s)| table.get(role).is_none_or(|t| t == s));
            let index = match tables.iter().position(fits) {
                Some(index) => index,
                None => {
                    tables.push(StorageTable::new());
                    tables.len() - 1
                }
            };
            tables[index].extend(needs);
        }
        // A role that a library never serves still has to compile: it is given the storage of the first that does, or
        // else of the first role there is.
        let fallback = tables[0].values().next().copied().unwrap_or(Storage { bits: 4, group: 32 });
        let first = tables[0].clone();
        for table in &mut tables {
            for role in Role::ALL {
                table.entry(role).or_insert_with(|| first.get(&role).copied().unwrap_or(fallback));
            }
        }
        Libraries { tables }
    }

    /// The library in which all of an operation's matrices have the right storage.
    pub fn serving(&self, model: &Model, op: &Op) -> usize {
        let needs = op_needs(model, op);
        self.tables.iter().position(|t| needs.iter().all(|(role, s)| t.get(role) == Some(s))).unwrap_or(0)
    }
}

/// Roles and storage of each operation of the model that has matrices.
fn needs(model: &Model) -> Vec<Vec<(Role, Storage)>> {
    let of = |pairs: &[(Role, WeightId)]| pairs.iter().map(|&(r, id)| (r, Storage::of_weight(model, id))).collect();
    let mut all = vec![of(&[(Role::Embed, model.embed_tokens)]), of(&[(Role::LmHead, model.lm_head)])];
    for layer in &model.layers {
        match layer.mixer {
            MixerWeights::Gdn(w) => {
                let (qkv, z, b, a) = (w.in_proj_qkv, w.in_proj_z, w.in_proj_b, w.in_proj_a);
                all.push(of(&[(Role::Qkv, qkv), (Role::Z, z), (Role::B, b), (Role::A, a)]));
                all.push(of(&[(Role::GdnOut, w.out_proj)]));
            }
            MixerWeights::Attention(w) => {
                all.push(of(&[(Role::Q, w.q_proj), (Role::K, w.k_proj), (Role::V, w.v_proj)]));
                all.push(of(&[(Role::O, w.o_proj)]));
            }
        }
        let w = layer.moe;
        all.push(of(&[(Role::Gate, w.gate), (Role::SharedGate, w.shared_expert_gate)]));
        all.push(of(&[
            (Role::SwitchGate, w.switch_gate_proj),
            (Role::SwitchUp, w.switch_up_proj),
            (Role::SharedGateProj, w.shared_gate_proj),
            (Role::SharedUp, w.shared_up_proj),
        ]));
        all.push(of(&[(Role::SwitchDown, w.switch_down_proj), (Role::SharedDown, w.shared_down_proj)]));
    }
    all
}

/// Roles and storage of one operation.
fn op_needs(model: &Model, op: &Op) -> Vec<(Role, Storage)> {
    let of = |pairs: &[(Role, WeightId)]| pairs.iter().map(|&(r, id)| (r, Storage::of_weight(model, id))).collect();
    match op.kind {
        OpKind::Embed { weight, .. } => of(&[(Role::Embed, weight)]),
        OpKind::LmHead { weight, .. } => of(&[(Role::LmHead, weight)]),
        OpKind::GdnInProj { weights: w, .. } => {
            of(&[(Role::Qkv, w.in_proj_qkv), (Role::Z, w.in_proj_z), (Role::B, w.in_proj_b), (Role::A, w.in_proj_a)])
        }
        OpKind::AttnInProj { weights: w, .. } => of(&[(Role::Q, w.q_proj), (Role::K, w.k_proj), (Role::V, w.v_proj)]),
        OpKind::OutProjNorm { weight, .. } | OpKind::OutProj { weight, .. } => of(&[(out_role(model, op), weight)]),
        OpKind::Router { weights: w, .. } => of(&[(Role::Gate, w.gate), (Role::SharedGate, w.shared_expert_gate)]),
        OpKind::ExpertGateUp { weights: w, .. } | OpKind::GroupedGateUp { weights: w, .. } => of(&[
            (Role::SwitchGate, w.switch_gate_proj),
            (Role::SwitchUp, w.switch_up_proj),
            (Role::SharedGateProj, w.shared_gate_proj),
            (Role::SharedUp, w.shared_up_proj),
        ]),
        OpKind::ExpertDownNorm { weights: w, .. } | OpKind::GroupedDown { weights: w, .. } => {
            of(&[(Role::SwitchDown, w.switch_down_proj), (Role::SharedDown, w.shared_down_proj)])
        }
        _ => Vec::new(),
    }
}

/// Whose output projection an operation is: that of a Gated DeltaNet or of attention.
pub fn out_role(model: &Model, op: &Op) -> Role {
    let layer = op.layer.and_then(|index| model.layers.get(index));
    match layer.map(|layer| layer.mixer) {
        Some(MixerWeights::Attention(_)) => Role::O,
        _ => Role::GdnOut,
    }
}
