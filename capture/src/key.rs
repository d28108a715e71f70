//! Keys: everything that decides which program a segment needs, as named ingredients.
use rsx_lazy::Trace;
use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

/// One named ingredient of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum Ingredient {
    /// Ops, operand metadata, static arguments and which storage each operand is: the trace's fingerprint.
    Ops,
    /// Which storages can be read from outside afterwards.
    LiveResults,
    /// Which storages existed before and which are written: what may be donated.
    Writes,
    /// Bytes of every storage.
    StorageSizes,
    /// Device, CPU features, compiler version and options.
    Device,
}

impl Ingredient {
    pub const ALL: [Ingredient; 5] =
        [Ingredient::Ops, Ingredient::LiveResults, Ingredient::Writes, Ingredient::StorageSizes, Ingredient::Device];

    /// In the user's terms.
    pub fn name(self) -> &'static str {
        match self {
            Ingredient::Ops => "ops",
            Ingredient::LiveResults => "live results",
            Ingredient::Writes => "writes",
            Ingredient::StorageSizes => "storage sizes",
            Ingredient::Device => "device",
        }
    }
}

/// A key. Equal keys may share a program; the hashes are stable across processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    parts: [u128; Ingredient::ALL.len()],
}

impl Key {
    /// The key of a closed trace. `live[i]`: storage i is a result.
    pub fn of(trace: &Trace, live: &[bool], device: u128) -> Key {
        let flags = |f: &mut dyn FnMut(usize) -> u8| {
            let bytes: smallvec::SmallVec<[u8; 512]> = (0..trace.storages.len()).map(f).collect();
            xxh3_128(&bytes)
        };
        let mut sizes = smallvec::SmallVec::<[u8; 4096]>::new();
        for u in &trace.storages {
            sizes.extend_from_slice(&(u.storage.nbytes() as u64).to_le_bytes());
        }
        Key {
            parts: [
                trace.hash,
                flags(&mut |i| u8::from(live[i])),
                flags(&mut |i| u8::from(trace.storages[i].created) | u8::from(trace.storages[i].written) << 1),
                xxh3_128(&sizes),
                device,
            ],
        }
    }

    /// The device's ingredient from [`crate::Backend::identity`].
    pub fn device(identity: &str) -> u128 {
        // The seed stands for the meaning of keys: change it when an ingredient changes its meaning.
        xxh3_128_with_seed(identity.as_bytes(), 1)
    }

    pub fn part(&self, ingredient: Ingredient) -> u128 {
        self.parts[ingredient as usize]
    }

    /// One hash of all ingredients.
    pub fn hash(&self) -> u128 {
        let bytes: smallvec::SmallVec<[u8; 80]> = self.parts.iter().flat_map(|p| p.to_le_bytes()).collect();
        xxh3_128(&bytes)
    }

    /// The ingredients in which two keys differ.
    pub fn differences(&self, other: &Key) -> Vec<Ingredient> {
        Ingredient::ALL.into_iter().filter(|&i| self.part(i) != other.part(i)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rsx_lazy::{Storage, StorageUse};

    fn trace(hash: u128, storages: &[(usize, bool, bool)]) -> Trace {
        let storages = storages.iter().map(|&(bytes, created, written)| StorageUse {
            storage: Storage::shadow(bytes),
            created,
            written,
        });
        Trace { hash, storages: storages.collect(), ..Trace::default() }
    }

    #[test]
    fn each_ingredient_shows_and_nothing_else() {
        let device = Key::device("cpu avx512");
        let base = Key::of(&trace(7, &[(64, false, true), (8, true, true)]), &[true, false], device);
        let same = Key::of(&trace(7, &[(64, false, true), (8, true, true)]), &[true, false], device);
        assert_eq!((base, base.hash()), (same, same.hash()));
        let cases = [
            (Ingredient::Ops, Key::of(&trace(8, &[(64, false, true), (8, true, true)]), &[true, false], device)),
            (Ingredient::LiveResults, Key::of(&trace(7, &[(64, false, true), (8, true, true)]), &[true, true], device)),
            (Ingredient::Writes, Key::of(&trace(7, &[(64, false, false), (8, true, true)]), &[true, false], device)),
            (
                Ingredient::StorageSizes,
                Key::of(&trace(7, &[(60, false, true), (8, true, true)]), &[true, false], device),
            ),
            (
                Ingredient::Device,
                Key::of(&trace(7, &[(64, false, true), (8, true, true)]), &[true, false], Key::device("cpu avx2")),
            ),
        ];
        for (ingredient, key) in cases {
            assert_eq!(base.differences(&key), [ingredient]);
            assert_ne!(base.hash(), key.hash());
        }
    }
}
