//! Keys: everything that decides which program a segment needs, as named ingredients.
use rsx_lazy::{SigParts, Trace};
use xxhash_rust::xxh3::xxh3_128;

/// Stands for the meaning of keys: change it when an ingredient changes its meaning.
const FORMAT: &str = "2";

/// One named ingredient of a key. The first seven come from the trace, the others from where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum Ingredient {
    /// Which ops, and which storage each operand is.
    Ops,
    /// Element types.
    DTypes,
    /// Sizes, strides and offsets of tensors.
    Geometry,
    /// Static arguments: dimensions, lists of integers, flags.
    Arguments,
    /// Which storages can be read from outside afterwards.
    LiveResults,
    /// Which storages existed before and which are written: what may be donated.
    Donation,
    /// Bytes of every storage.
    StorageSizes,
    /// The device, and the features of the processor that code is made for.
    Device,
    /// Versions and sources of lowerings, compiler and code generator.
    Compiler,
    /// The library of kernels that programs call.
    Library,
    /// Options that change code.
    Options,
    /// Who predicted the outputs' metadata: PyTorch's version.
    FrontEnd,
}

const N: usize = 12;

impl Ingredient {
    pub const ALL: [Ingredient; N] = [
        Ingredient::Ops,
        Ingredient::DTypes,
        Ingredient::Geometry,
        Ingredient::Arguments,
        Ingredient::LiveResults,
        Ingredient::Donation,
        Ingredient::StorageSizes,
        Ingredient::Device,
        Ingredient::Compiler,
        Ingredient::Library,
        Ingredient::Options,
        Ingredient::FrontEnd,
    ];

    /// In the user's terms.
    pub fn name(self) -> &'static str {
        match self {
            Ingredient::Ops => "ops",
            Ingredient::DTypes => "dtypes",
            Ingredient::Geometry => "sizes and strides",
            Ingredient::Arguments => "static arguments",
            Ingredient::LiveResults => "live results",
            Ingredient::Donation => "written tensors",
            Ingredient::StorageSizes => "storage sizes",
            Ingredient::Device => "device",
            Ingredient::Compiler => "compiler version",
            Ingredient::Library => "kernel library version",
            Ingredient::Options => "compiler options",
            Ingredient::FrontEnd => "PyTorch version",
        }
    }
}

/// Where programs are made and run, as text: one field for each ingredient that does not come from the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub device: String,
    pub compiler: String,
    pub library: String,
    pub options: String,
    pub front_end: String,
}

/// The ingredients of an [`Identity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Environment([u128; 5]);

impl Environment {
    pub fn new(identity: &Identity) -> Environment {
        let i = identity;
        let compiler = format!("{FORMAT} {}", i.compiler);
        Environment([&i.device, &compiler, &i.library, &i.options, &i.front_end].map(|t| xxh3_128(t.as_bytes())))
    }
}

/// A key. Equal keys may share a program; the hashes are stable across processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    parts: [u128; N],
    hash: u128,
}

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash as u64);
    }
}

impl Key {
    /// The key of a closed trace. `live[i]`: storage i is a result.
    pub fn of(trace: &Trace, live: &[bool], environment: Environment) -> Key {
        let mut bytes = Vec::with_capacity(16 * trace.nodes.len() + 4 * trace.refs.len() + 8 * live.len());
        let mut part = |fill: &mut dyn FnMut(&mut Vec<u8>)| {
            bytes.clear();
            fill(&mut bytes);
            xxh3_128(&bytes)
        };
        let mut of_nodes = |get: fn(&SigParts) -> u128, refs: bool| {
            part(&mut |out| {
                trace.nodes.iter().for_each(|n| out.extend_from_slice(&get(&n.sig.parts).to_le_bytes()));
                if refs {
                    trace.refs.iter().for_each(|r| out.extend_from_slice(&r.to_le_bytes()));
                }
            })
        };
        let ops = of_nodes(|p| p.ops, true);
        let dtypes = of_nodes(|p| p.dtypes, false);
        let geometry = of_nodes(|p| p.geometry, false);
        let arguments = of_nodes(|p| p.arguments, false);
        let live_results = part(&mut |out| out.extend(live.iter().map(|&l| u8::from(l))));
        let uses = &trace.storages;
        let donation = part(&mut |out| out.extend(uses.iter().map(|u| u8::from(u.created) | u8::from(u.written) << 1)));
        let sizes = part(&mut |out| {
            uses.iter().for_each(|u| out.extend_from_slice(&(u.storage.nbytes() as u64).to_le_bytes()));
        });
        let [device, compiler, library, options, front_end] = environment.0;
        Key::new([
            ops,
            dtypes,
            geometry,
            arguments,
            live_results,
            donation,
            sizes,
            device,
            compiler,
            library,
            options,
            front_end,
        ])
    }

    fn new(parts: [u128; N]) -> Key {
        Key { parts, hash: xxh3_128(&parts.map(u128::to_le_bytes).concat()) }
    }

    pub fn part(&self, ingredient: Ingredient) -> u128 {
        self.parts[ingredient as usize]
    }

    /// All ingredients, in order.
    pub fn parts(&self) -> &[u128; N] {
        &self.parts
    }

    /// One hash of all ingredients.
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// The ingredients in which two keys differ.
    pub fn differences(&self, other: &Key) -> Vec<Ingredient> {
        Ingredient::ALL.into_iter().filter(|&i| self.part(i) != other.part(i)).collect()
    }
}

/// Name and hash of every ingredient, for logs.
impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}:", self.hash)?;
        Ingredient::ALL.iter().try_for_each(|&i| write!(f, " {} {:08x}", i.name(), self.part(i) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rsx_lazy::words::Tag;
    use rsx_lazy::{Node, OpId, OpInfo, Sig, SigFlags, Storage, StorageUse};
    use std::sync::Arc;

    /// What a key is made of.
    #[derive(Clone)]
    struct Case {
        op: u64,
        dtype: u32,
        sizes: [u64; 2],
        dim: u64,
        refs: [u32; 2],
        live: [bool; 2],
        storages: [(usize, bool, bool); 2],
        identity: Identity,
        /// Of no consequence.
        data: u64,
    }

    fn key(c: &Case) -> Key {
        let words = [c.op, Tag::Tensor.header(c.dtype | 2 << 8, 0), 0, c.sizes[0], c.sizes[1], c.sizes[1], 1, 4, c.dim];
        let (name, written, rets) = ("test".into(), Default::default(), Default::default());
        let op = Arc::new(OpInfo { id: OpId(0), hash: c.op, row: None, name, args: Vec::new(), written, rets });
        let sig = Arc::new(Sig::new(op, &words, &[], SigFlags::default()));
        let node = Node { sig, inputs: 0..1, outputs: 1..2, data: 0..1, frame: Default::default() };
        let storages = c.storages.map(|(bytes, created, written)| StorageUse {
            storage: Storage::shadow(bytes),
            created,
            written,
        });
        let (nodes, refs, data) = (vec![node], c.refs.into(), vec![c.data]);
        let trace = Trace { nodes, refs, data, storages: storages.into(), ..Trace::default() };
        Key::of(&trace, &c.live, Environment::new(&c.identity))
    }

    /// A change of a case, and the ingredient that shows it.
    type Change = (Option<Ingredient>, fn(&mut Case));

    #[test]
    fn each_ingredient_shows_in_the_key_and_nothing_else_does() {
        let base = Case {
            op: 1,
            dtype: 6,
            sizes: [3, 4],
            dim: 0,
            refs: [0, 1],
            live: [false, true],
            storages: [(48, false, false), (48, true, true)],
            identity: Identity::default(),
            data: 5,
        };
        let changes: [Change; 16] = [
            (Some(Ingredient::Ops), |c| c.op = 2),
            (Some(Ingredient::Ops), |c| c.refs = [1, 0]),
            (Some(Ingredient::DTypes), |c| c.dtype = 7),
            (Some(Ingredient::Geometry), |c| c.sizes = [2, 6]),
            (Some(Ingredient::Arguments), |c| c.dim = 1),
            (Some(Ingredient::LiveResults), |c| c.live = [true, true]),
            (Some(Ingredient::Donation), |c| c.storages[0].2 = true),
            (Some(Ingredient::Donation), |c| c.storages[1].1 = false),
            (Some(Ingredient::StorageSizes), |c| c.storages[0].0 = 64),
            (Some(Ingredient::Device), |c| c.identity.device = "cpu avx2".into()),
            (Some(Ingredient::Compiler), |c| c.identity.compiler = "2".into()),
            (Some(Ingredient::Library), |c| c.identity.library = "2".into()),
            (Some(Ingredient::Options), |c| c.identity.options = "-fusion".into()),
            (Some(Ingredient::FrontEnd), |c| c.identity.front_end = "torch 2".into()),
            (None, |c| c.data = 6),
            (None, |_| ()),
        ];
        let mut shown: Vec<Ingredient> = changes.iter().filter_map(|c| c.0).collect();
        for (ingredient, change) in changes {
            let mut case = base.clone();
            change(&mut case);
            let (a, b) = (key(&base), key(&case));
            assert_eq!(a.differences(&b), ingredient.into_iter().collect::<Vec<_>>());
            assert_eq!(a.hash() == b.hash(), ingredient.is_none(), "{ingredient:?}");
            assert_eq!(a == b, ingredient.is_none());
        }
        shown.dedup();
        assert_eq!(shown, Ingredient::ALL, "every ingredient has a case");
    }
}
