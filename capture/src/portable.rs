//! Recordings as bytes, for programs that are saved and loaded.
//!
//! Little-endian 64-bit words throughout: a magic word, counts and contents in the order of [`Recording::to_bytes`], and a
//! checksum. Signatures are stable across processes: their first word is the hash of the op's name. A damaged file is an
//! error and nothing else.
use crate::Session;
use crate::key::Key;
use crate::recording::{Held, Recording};
use rsx_lazy::{FrameId, Node, OpInfo, OutKind, OutMeta, SigFlags, Storage, StorageUse, Trace};
use std::sync::{Arc, Weak};
use xxhash_rust::xxh3::xxh3_64;

/// "rsxprog" and the version of the form.
const MAGIC: u64 = u64::from_le_bytes(*b"rsxprog\x01");

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn word(&mut self, w: u64) {
        self.0.extend_from_slice(&w.to_le_bytes());
    }
    fn words(&mut self, words: impl ExactSizeIterator<Item = u64>) {
        self.word(words.len() as u64);
        words.for_each(|w| self.word(w));
    }
    fn text(&mut self, s: &str) {
        self.word(s.len() as u64);
        self.0.extend_from_slice(s.as_bytes());
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, n: usize) -> Result<&'a [u8], String> {
        let (head, tail) = self.0.split_at_checked(n).ok_or("the program is cut short")?;
        self.0 = tail;
        Ok(head)
    }
    fn word(&mut self) -> Result<u64, String> {
        let mut word = [0; 8];
        word.copy_from_slice(self.bytes(8)?);
        Ok(u64::from_le_bytes(word))
    }
    /// A count of things of at least `size` bytes each.
    fn count(&mut self, size: usize) -> Result<usize, String> {
        let n = self.word()? as usize;
        if n > self.0.len() / size.max(1) { Err("the program is damaged".into()) } else { Ok(n) }
    }
    fn words(&mut self) -> Result<Vec<u64>, String> {
        let n = self.count(8)?;
        (0..n).map(|_| self.word()).collect()
    }
    fn text(&mut self) -> Result<&'a str, String> {
        let n = self.count(1)?;
        std::str::from_utf8(self.bytes(n)?).map_err(|e| e.to_string())
    }
}

fn write_out(w: &mut Writer, o: &OutMeta) {
    w.word(u64::from(o.rank) | u64::from(o.dtype) << 8 | (o.kind as u64) << 16);
    w.word(o.nbytes);
    w.words(o.sizes().iter().chain(o.strides()).map(|&v| v as u64).collect::<Vec<_>>().into_iter());
}

fn read_out(r: &mut Reader<'_>) -> Result<OutMeta, String> {
    let head = r.word()?;
    let nbytes = r.word()?;
    let dims = r.words()?;
    let rank = head as u8;
    let kind = match head >> 16 & 0xff {
        0 => OutKind::Fresh,
        1 => OutKind::Undef,
        2 => OutKind::List,
        3 => OutKind::Int,
        _ => return Err("the program is damaged: kind of an output".into()),
    };
    let (mut sizes, mut strides) = ([0i64; rsx_lazy::MAX_RANK], [0i64; rsx_lazy::MAX_RANK]);
    let n = rank as usize;
    if n > sizes.len() || dims.len() != 2 * n {
        return Err("the program is damaged: rank of an output".into());
    }
    for d in 0..n {
        (sizes[d], strides[d]) = (dims[d] as i64, dims[n + d] as i64);
    }
    Ok(OutMeta { sizes, strides, nbytes, rank, dtype: (head >> 8) as u8, kind, pad: [0; 5] })
}

impl Recording {
    /// Storages that the call reads and that are neither its arguments nor made by it: they belong to the program.
    /// Errors if it writes one.
    pub fn captured(&self) -> Result<Vec<u32>, String> {
        let mut out = Vec::new();
        for (i, used) in self.trace.storages.iter().enumerate() {
            if self.made[i] || self.args.contains(&Some(i as u32)) {
                continue;
            }
            if used.written {
                let (op, _) = self.first_use(i as u32);
                return Err(format!("{op} writes a tensor that is no argument: pass it as one"));
            }
            out.push(i as u32);
        }
        Ok(out)
    }

    /// The storage with number `index`, if it still is.
    pub fn storage(&self, index: u32) -> Option<Arc<Storage>> {
        let constant = self.constants.iter().find(|(s, _)| Arc::as_ptr(&s.0) == self.storages[index as usize].as_ptr());
        constant.map(|(s, _)| s.0.clone()).or_else(|| self.storages.get(index as usize)?.upgrade())
    }

    /// `storage` is the one with number `index` from now on, with the contents that every call reads.
    pub fn hold(&mut self, index: u32, storage: &Arc<Storage>) {
        if let Some(slot) = self.storages.get_mut(index as usize) {
            *slot = Arc::downgrade(storage);
            self.constants.push((Held::new(storage.clone()), u64::from(index)));
        }
    }

    /// The structure, without contents of storages.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::default();
        let t = &self.trace;
        w.word(MAGIC);
        w.word(t.bytes);
        w.words(
            t.storages
                .iter()
                .zip(&self.made)
                .zip(&self.live)
                .map(|((u, &made), &live)| {
                    u64::from(u.created) | u64::from(u.written) << 1 | u64::from(made) << 2 | u64::from(live) << 3
                })
                .collect::<Vec<_>>()
                .into_iter(),
        );
        w.words(t.storages.iter().map(|u| u.storage.nbytes() as u64).collect::<Vec<_>>().into_iter());
        w.words(t.refs.iter().map(|&r| u64::from(r)));
        w.words(t.data.iter().copied());
        w.words(self.args.iter().map(|a| a.map_or(u64::MAX, u64::from)));
        w.words(self.fresh.iter().map(|&f| u64::from(f)));
        w.word(t.nodes.len() as u64);
        for n in &t.nodes {
            w.text(&n.sig.op.name);
            w.words([n.inputs.start, n.inputs.end, n.outputs.end, n.data.start, n.data.end].into_iter().map(u64::from));
            w.words(n.sig.words.iter().copied());
            w.word(n.sig.outs.len() as u64);
            n.sig.outs.iter().for_each(|o| write_out(&mut w, o));
        }
        let check = xxh3_64(&w.0);
        w.word(check);
        w.0
    }

    /// Inverse of [`Recording::to_bytes`]. `op` finds a registered op by its full name.
    pub fn from_bytes(
        session: &Session,
        bytes: &[u8],
        op: &mut dyn FnMut(&str) -> Option<Arc<OpInfo>>,
    ) -> Result<Recording, String> {
        let (body, check) = bytes.split_at_checked(bytes.len().saturating_sub(8)).ok_or("the program is cut short")?;
        if check != xxh3_64(body).to_le_bytes() {
            return Err("the program is damaged".into());
        }
        let mut r = Reader(body);
        if r.word()? != MAGIC {
            return Err("not a program of this version of rsx".into());
        }
        let all = r.word()?;
        let flags = r.words()?;
        let nbytes = r.words()?;
        if flags.len() != nbytes.len() {
            return Err("the program is damaged: storages".into());
        }
        let refs: Vec<u32> = r.words()?.into_iter().map(|w| w as u32).collect();
        let data = r.words()?;
        let args = r.words()?.into_iter().map(|w| u32::try_from(w).ok()).collect::<Vec<_>>();
        let fresh: Vec<u32> = r.words()?.into_iter().map(|w| w as u32).collect();
        let count = flags.len() as u32;
        if refs.iter().chain(&fresh).chain(args.iter().flatten()).any(|&i| i >= count) {
            return Err("the program is damaged: a storage that is none".into());
        }
        let n = r.count(8)?;
        let mut nodes = Vec::with_capacity(n);
        for _ in 0..n {
            let name = r.text()?;
            let info = op(name).ok_or_else(|| format!("this PyTorch has no op {name}"))?;
            let [i0, i1, o1, d0, d1] = r.words()?[..] else { return Err("the program is damaged".into()) };
            let words = r.words()?;
            let outs = r.count(16)?;
            let outs = (0..outs).map(|_| read_out(&mut r)).collect::<Result<Vec<_>, _>>()?;
            let ordered = i0 <= i1 && i1 <= o1 && o1 <= refs.len() as u64 && d0 <= d1 && d1 <= data.len() as u64;
            if !ordered || words.first() != Some(&info.hash) {
                return Err(format!("the program is damaged: {name}"));
            }
            let sig = session.recorder.insert(info, &words, &outs, SigFlags::default());
            if sig.args().is_err() || *sig.outs != *outs {
                return Err(format!("{name} has other results in this version of PyTorch: compile the program again"));
            }
            let (inputs, outputs, data) = (i0 as u32..i1 as u32, i1 as u32..o1 as u32, d0 as u32..d1 as u32);
            nodes.push(Node { sig, inputs, outputs, data, frame: FrameId::default() });
        }
        let bit = |f: u64, n: u32| f >> n & 1 != 0;
        let storages = flags.iter().zip(&nbytes).map(|(&f, &bytes)| StorageUse {
            storage: Storage::shadow(bytes as usize),
            created: bit(f, 0),
            written: bit(f, 1),
        });
        let trace =
            Trace { nodes, storages: storages.collect(), refs, data, bytes: all, sequence: 0, ends_step: false };
        // Nobody else has its constants: they stay.
        let live: Vec<bool> = flags.iter().map(|&f| bit(f, 3) || !bit(f, 2)).collect();
        Ok(Recording {
            key: Key::of(&trace, &live, session.core.environment),
            storages: trace.storages.iter().map(|_| Weak::new()).collect(),
            made: flags.iter().map(|&f| bit(f, 2)).collect(),
            trace,
            live,
            args,
            fresh,
            constants: Vec::new(),
        })
    }
}
