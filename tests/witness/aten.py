"""Compares the lowering of every row of the ATen table with eager PyTorch on the CPU, without a device.

Each call is run by eager PyTorch and, as the flat record that the shim would write, by the lowering and the reference
interpreter (`lazy/examples/aten_eval.rs`). Inputs are views with odd strides and offsets as often as not.

    cargo build -p rsx-lazy --example aten_eval
    python tests/witness/aten.py [--only PATTERN] [--quick] [--device] [--verbose]
"""
import argparse
import collections
import fnmatch
import itertools
import json
import math
import os
import pathlib
import random
import struct
import subprocess
import sys

import torch

import aten_cases as cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODES = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.bool: 11, torch.bfloat16: 15,
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8,
          torch.int8, torch.bool]
QUICK = [torch.float32, torch.bfloat16, torch.int64, torch.bool]
# (rtol, atol) for results of one rounding.
TOLERANCE = {torch.float64: (1e-7, 1e-7), torch.float32: (1e-5, 1e-5), torch.bfloat16: (1.6e-2, 1e-2),
             torch.float16: (2e-3, 2e-3)}
HALF = (torch.bfloat16, torch.float16)
MASK = (1 << 64) - 1


def binary():
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return str(target / "debug" / "examples" / "aten_eval")


def bits(x):
    return struct.unpack("<Q", struct.pack("<d", float(x)))[0]


def raw(t):
    """The bytes of a tensor's storage."""
    flat = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())
    return bytes(flat.tolist())


class Record:
    """A call as the shim would record it."""

    def __init__(self, name, schema, values):
        self.storages, self.tensors, self.index = [], [], {}
        self.name = name
        args = [self.argument(a.type, v) for a, v in zip(schema.arguments, values)]
        self.names = [a.name for a in schema.arguments]
        self.written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        self.written = cases.WRITES.get(name, lambda w, v: w)(self.written, values)
        if name.split(".")[0].rstrip("_") in cases.RANDOM:
            args.append({"rng": list(cases.SEED)})
        self.args = args

    def storage(self, t):
        key = t.untyped_storage()._cdata
        if key not in self.index:
            self.index[key] = len(self.storages)
            self.storages.append(raw(t).hex())
            self.tensors.append(t)
        return self.index[key]

    def tensor(self, t):
        wrapped = 0
        return {"tensor": [self.storage(t), CODES[t.dtype], wrapped, t.storage_offset(), list(t.shape), list(t.stride())]}

    def number(self, v):
        if isinstance(v, bool):
            return {"number": ["bool", int(v)]}
        if isinstance(v, int):
            return {"number": ["int", v & MASK]}
        return {"number": ["double", bits(v)]}

    def argument(self, type_, v):
        kind = str(type_)
        if isinstance(v, cases.Host):
            t = v.tensor
            word = int.from_bytes(raw(t.clone())[:t.element_size()], "little")
            return {"cpu": [CODES[t.dtype], 0, word]}
        if v is None:
            return {"undef": 1} if kind == "Tensor" else None
        if isinstance(v, torch.Tensor):
            return self.tensor(v)
        if "Tensor" in kind and not kind.startswith("List") and isinstance(v, (int, float)):
            t = torch.tensor(v, dtype={bool: torch.bool, int: torch.int64, float: torch.float64}[type(v)])
            return {"cpu": [CODES[t.dtype], 1, int.from_bytes(raw(t), "little")]}
        if isinstance(v, torch.dtype):
            return {"int": CODES[v]}
        if isinstance(v, (torch.layout, torch.memory_format)):
            return {"int": 0}
        if isinstance(v, torch.device):
            return None
        if isinstance(v, str):
            return {"str": v}
        if isinstance(v, (list, tuple)):
            if "Optional[Tensor]" in kind:
                return {"optional": [self.argument(type_.getElementType(), e) for e in v]}
            if "Tensor" in kind:
                return {"list": [self.argument(type_.getElementType(), e) for e in v]}
            if kind in ("List[number]", "List[Scalar]"):
                return {"scalars": [self.number(e) for e in v]}
            if "bool" in kind:
                return {"bools": [int(e) for e in v]}
            if "float" in kind:
                return {"doubles": [bits(e) for e in v]}
            return {"ints": [int(e) & MASK for e in v]}
        if "number" in kind or "Scalar" in kind or "float" in kind:
            return self.number(float(v) if "float" in kind else v)
        if isinstance(v, bool):
            return {"bool": v}
        return {"int": int(v) & MASK}


def is_dense(t):
    expected = 1
    for n, s in sorted(((n, s) for n, s in zip(t.shape, t.stride()) if n != 1), key=lambda p: p[1]):
        if s != expected:
            return False
        expected *= n
    return True


def out_meta(v):
    if v is None:
        return [{"kind": "undef"}]
    if isinstance(v, (list, tuple)):
        return [{"kind": "list", "nbytes": len(v)}] + [m for e in v for m in out_meta(e)]
    if not isinstance(v, torch.Tensor):
        return [{"kind": "int", "nbytes": int(v) & MASK}]
    strides = list(v.stride())
    if not is_dense(v):
        strides = list(torch.empty(v.shape).stride())
    last = sum((n - 1) * s for n, s in zip(v.shape, strides)) + 1 if v.numel() else 0
    return [{"kind": "fresh", "dtype": CODES[v.dtype], "sizes": list(v.shape), "strides": strides,
             "nbytes": last * v.element_size()}]


def flat_tensors(v):
    if isinstance(v, torch.Tensor):
        return [v]
    return [t for e in v for t in flat_tensors(e)] if isinstance(v, (list, tuple)) else []


class Call:
    """One case: the record, and what eager made of it."""

    def __init__(self, name, op, values, eager, exact):
        self.name, self.schema = name, op._schema
        self.values = values
        self.record = Record(name, self.schema, values)
        real = [v.tensor if isinstance(v, cases.Host) else v for v in values]
        returned = eager(*real)
        rets = self.schema.returns
        returned = [] if not rets else [returned] if len(rets) == 1 else list(returned)
        fresh = [v for r, v in zip(rets, returned) if r.alias_info is None or not r.alias_info.is_write]
        self.outs = [m for v in fresh for m in out_meta(v)]
        self.expected = [t for v in fresh for t in flat_tensors(v)]
        self.after = [torch.empty(0, dtype=t.dtype).set_(t.untyped_storage()) for t in self.record.tensors]
        self.exact = exact

    def line(self):
        r = self.record
        return json.dumps({"op": "aten::" + self.name, "written": [int(w) for w in r.written], "names": r.names,
                           "args": r.args, "outs": self.outs, "storages": r.storages})

    def tolerance(self, dtype):
        return TOLERANCE[dtype]

    def differs(self, got, want):
        """Why two tensors differ, or None."""
        if got.shape != want.shape:
            return f"sizes {tuple(got.shape)}, expected {tuple(want.shape)}"
        if not want.dtype.is_floating_point:
            return None if torch.equal(got, want) else f"{got.tolist()}\n      expected {want.tolist()}"
        rtol, atol = self.tolerance(want.dtype)
        g, w = got.double(), want.double()
        bad = ~torch.isclose(g, w, rtol=rtol, atol=atol, equal_nan=True)
        if not bad.any():
            return None
        return f"{int(bad.sum())} of {bad.numel()}: {g[bad][:4].tolist()} expected {w[bad][:4].tolist()}"

    def nearer(self, got, k):
        """Is the result right by the same op in f64? Eager accumulates some bf16 sums in bf16."""
        try:
            returned, _ = self.exact()
        except Exception:  # eager has no such op for f64
            return False
        want = flat_tensors(returned)[k]
        return self.differs(got, want.to(got.dtype)) is None

    def nearer_written(self, i, storage):
        """The same for the arguments in storage `i` after the call."""
        try:
            _, copies = self.exact()
        except Exception:  # eager has no such op for f64
            return False
        for t, want in zip(flat_tensors(self.values), flat_tensors(copies)):
            if t.untyped_storage()._cdata == self.record.tensors[i].untyped_storage()._cdata:
                got = storage.as_strided(t.shape, t.stride(), t.storage_offset())
                if self.differs(got, want.to(got.dtype)):
                    return False
        return True

    def check(self, answer):
        """'declined', None, or what is wrong."""
        if "declined" in answer:
            return "declined: " + answer["declined"]
        if "error" in answer:
            return "error: " + answer["error"]
        n = len(self.record.storages)
        storages = {int(k): bytes.fromhex(v) for k, v in answer["storages"].items()}
        fresh = [o for o in self.outs if o["kind"] == "fresh"]
        for k, (o, want) in enumerate(zip(fresh, self.expected)):
            if n + k not in storages:
                return f"result {k} is missing"
            data = storages[n + k]
            got = torch.frombuffer(bytearray(data), dtype=want.dtype) if data else torch.empty(0, dtype=want.dtype)
            got = got.as_strided(o["sizes"], o["strides"])
            why = self.differs(got, want)
            if why and not (want.dtype in HALF and self.nearer(got, k)):
                return f"result {k} ({want.dtype}, {tuple(want.shape)}): {why}"
        for i, want in enumerate(self.after):
            data = storages.get(i, bytes.fromhex(self.record.storages[i]))
            got = torch.frombuffer(bytearray(data), dtype=want.dtype) if data else torch.empty(0, dtype=want.dtype)
            # Eager enlarges some `out=` storages for intermediate results.
            why = self.differs(got, want[: got.numel()])
            if why and not (want.dtype in HALF and self.nearer_written(i, got)):
                return f"storage {i} ({want.dtype}): {why}"
        return None


def exact_of(values, eager):
    """The same call on f64 copies of the inputs, to be made when it is needed."""
    def wide(v):
        if isinstance(v, cases.Host):
            return v.tensor.clone()
        if isinstance(v, torch.Tensor):
            return v.double() if v.dtype in HALF else v.clone()
        return [wide(e) for e in v] if isinstance(v, (list, tuple)) else v

    copies = [wide(v) for v in values]
    return lambda: (eager(*copies), copies)


class DeviceRun:
    """One call on the device `rsx`: recorded now, compared later, so that several share a segment."""

    def __init__(self, call, op):
        self.call, self.bases = call, {}
        values = [self.move(v) for v in call.values]
        for i, a in enumerate(op._schema.arguments):
            if a.name == "device" and not any(flat_tensors(v) for v in values):
                values[i] = torch.device("rsx")
        self.inputs = [t for v in values for t in flat_tensors(v)]
        returned = kwargs_call(op)(*values)
        known = {id(t) for t in self.inputs}
        self.results = [t for t in flat_tensors(returned) if id(t) not in known]

    def move(self, v):
        if isinstance(v, cases.Host):
            return v.tensor
        if isinstance(v, torch.Tensor):
            i = self.call.record.index[v.untyped_storage()._cdata]
            if i not in self.bases:
                data = bytearray(bytes.fromhex(self.call.record.storages[i]))
                flat = torch.frombuffer(data, dtype=v.dtype) if data else torch.empty(0, dtype=v.dtype)
                self.bases[i] = flat.to("rsx")
            return self.bases[i].as_strided(v.shape, v.stride(), v.storage_offset())
        return [self.move(e) for e in v] if isinstance(v, (list, tuple)) else v

    def check(self):
        """What is wrong, in the words of `Call.check`."""
        storages = {}
        for i, base in self.bases.items():
            storages[str(i)] = raw(base.cpu()).hex()
        n = len(self.call.record.storages)
        fresh = [o for o in self.call.outs if o["kind"] == "fresh"]
        for k, (t, o) in enumerate(zip(self.results, fresh)):
            flat = torch.zeros(o["nbytes"] // t.element_size(), dtype=t.dtype)
            flat.as_strided(o["sizes"], o["strides"]).copy_(t.cpu())
            storages[str(n + k)] = raw(flat).hex()
        return self.call.check({"storages": storages})


def on_device(calls):
    """Failures by overload, of runs on the device."""
    import rsx

    failures, batch = collections.defaultdict(list), []
    for n, call in enumerate(calls):
        if packet(call.name) in cases.RANDOM:
            continue
        try:
            batch.append(DeviceRun(call, overload(call.name)))
        except Exception as e:
            failures[call.name].append("raised " + str(e).splitlines()[0][:300])
        if len(batch) == 24 or n + 1 == len(calls):
            for run in batch:
                try:
                    why = run.check()
                except Exception as e:
                    why = "raised " + str(e).splitlines()[0][:300]
                if why:
                    failures[run.call.name].append(why)
            batch = []
    print("call nodes:", dict(rsx.metrics()["calls"]))
    return failures


def overload(name):
    base, _, ov = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), ov or "default")


def out_args(schema):
    """Names of the `out=` arguments."""
    return {a.name for a in schema.arguments if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write}


def same_inputs(a, b):
    """Do two schemas take the same arguments, `out=` ones and generators' places aside?"""
    def key(s):
        # A number and a tensor are different cases.
        drop = out_args(s) | FACTORY
        return [(x.name, str(x.type)) for x in s.arguments if x.name not in drop]
    return key(a) == key(b)


FACTORY = {"generator", "dtype", "layout", "device", "pin_memory", "non_blocking", "memory_format"}


def build(name, op, make, dtype, seed):
    """Values for all arguments of `op`, or None if the case has none for this type."""
    random.seed(seed)
    torch.manual_seed(seed)
    given = make(dtype)
    if given is None:
        return None
    values = []
    given = list(given)
    outs = out_args(op._schema)
    for a in op._schema.arguments:
        if a.name in outs:
            values.append(None)
        elif given:
            values.append(given.pop(0))
        else:
            values.append(a.default_value)
    for i, a in enumerate(op._schema.arguments):
        if a.name in outs and given:
            values[i] = given.pop(0)
    return None if given else values


def kwargs_call(op):
    """Calls an overload with all arguments in schema order."""
    def call(*values):
        pos, kw = [], {}
        for a, v in zip(op._schema.arguments, values):
            if a.kwarg_only:
                kw[a.name] = v
            else:
                pos.append(v)
        return op(*pos, **kw)
    return call


def packet(name):
    return name.split(".")[0].rstrip("_")


def variants(row):
    """(overload, case source) for every overload of a row that has cases of its own or shares another's."""
    for name in row:
        op = overload(name)
        if name in cases.CASES:
            yield name, op, cases.CASES[name]
            continue
        for other in sorted(row, key=lambda o: packet(o) != packet(name)):
            if other in cases.CASES and same_inputs(op._schema, overload(other)._schema):
                yield name, op, cases.CASES[other]
                break


def calls_of(name, op, makes, stats):
    if name in cases.EAGER_WRONG:
        return
    eager = reference(name) or kwargs_call(op)
    if out_args(op._schema) and reference(name):
        try:
            eager = into_outs(name)
        except RuntimeError as e:
            stats["skipped"][name] = str(e)
            return
    for n, (make, dtype) in enumerate(itertools.product(makes, DTYPES)):
        seed = hash_of(name, n)
        try:
            values = build(name, op, make, dtype, seed)
            if values is None:
                continue
            outs = [i for i, a in enumerate(op._schema.arguments) if a.name in out_args(op._schema)]
            if outs and values[outs[0]] is None:
                functional = functional_of(name)
                made = functional(op._schema, values)
                for i, t in zip(outs, made):
                    values[i] = [torch.full_like(e, 1) for e in t] if isinstance(t, list) else torch.full_like(t, 1)
            yield Call(name, op, values, eager, exact_of(values, eager))
        except Exception as e:  # eager does not take this type: not a case
            stats["skipped"][name] = f"{dtype}: {str(e).splitlines()[0][:150] if str(e) else type(e).__name__}"


def reference(name):
    """What stands in for eager, by overload (without `_out`) or packet."""
    plain = name.removesuffix("_out")
    return cases.REFERENCE.get(plain) or cases.REFERENCE.get(name.split(".")[0])


def functional_of(name):
    """Runs the functional overload that an `out=` overload belongs to; one result per `out=` argument."""
    op = overload(name)
    packet = getattr(torch.ops.aten, name.split(".")[0])
    for ov in packet.overloads():
        other = getattr(packet, ov)
        if out_args(other._schema) or not same_inputs(op._schema, other._schema):
            continue
        stand_in = reference(name)

        def run(schema, values):
            by_name = {a.name: v for a, v in zip(schema.arguments, values)}
            given = [by_name.get(a.name, a.default_value) for a in other._schema.arguments]
            given = [v.tensor if isinstance(v, cases.Host) else v for v in given]
            result = stand_in(*given) if stand_in else kwargs_call(other)(*given)
            return list(result) if isinstance(result, tuple) else [result]

        return run
    raise RuntimeError("no functional form")


def into_outs(name):
    """Stands in for an `out=` overload whose packet has a reference."""
    functional = functional_of(name)

    def call(*values):
        schema = overload(name)._schema
        outs = [v for a, v in zip(schema.arguments, values) if a.name in out_args(schema)]
        for o, r in zip(outs, functional(schema, values)):
            o.copy_(r)
        return outs[0] if len(outs) == 1 else outs

    return call


def hash_of(name, n):
    return sum(ord(c) * 31 ** (i % 7) for i, c in enumerate(name)) + 7919 * n


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="*")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--device", action="store_true", help="run on the device rsx instead of the interpreter")
    parser.add_argument("--quick", action="store_true", help="four element types instead of nine")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quick:
        DTYPES[:] = QUICK
    rows = subprocess.run([binary(), "names"], capture_output=True, text=True, check=True).stdout.split("\n")
    stats = collections.defaultdict(dict)
    calls, uncovered = [], []
    for row in filter(None, rows):
        names = row.split()
        for n in names:
            overload(n)  # every name in the table exists in this PyTorch
        covered = set()
        for name, op, makes in variants(names):
            if not fnmatch.fnmatch(name, options.only):
                continue
            new = list(calls_of(name, op, makes, stats))
            calls += new
            if new:
                covered.add(name)
        uncovered += [n for n in names if n not in covered and fnmatch.fnmatch(n, options.only)]
    if options.device:
        failures = on_device(calls)
        for name, whys in sorted(failures.items()):
            print(f"FAIL {name} ({len(whys)} cases): {whys[0][:600]}")
        print(f"{len(calls)} calls on the device, {len(failures)} overloads fail")
        return 1 if failures else 0
    text = "\n".join(c.line() for c in calls) + "\n"
    answers = subprocess.run([binary()], input=text, capture_output=True, text=True)
    lines = answers.stdout.splitlines()
    assert len(lines) == len(calls), answers.stderr[-2000:]
    failures, declined, passed = collections.defaultdict(list), collections.defaultdict(list), set()
    for call, line in zip(calls, lines):
        why = call.check(json.loads(line))
        if why is None:
            passed.add(call.name)
        elif why.startswith("declined"):
            declined[call.name].append(why)
        else:
            failures[call.name].append(why)
    for name, whys in sorted(failures.items()):
        print(f"FAIL {name} ({len(whys)} cases)")
        for why in whys[: 5 if options.verbose else 1]:
            print("    " + why[:1500])
    for name, whys in sorted(declined.items()):
        print(f"declined {name} ({len(whys)} cases): {whys[0]}")
    if options.verbose:
        for name in uncovered:
            print(f"no case {name}: {stats['skipped'].get(name, '')}")
    ok = passed - set(failures)
    print(f"{len(calls)} calls, {len(ok)} overloads agree, {len(failures)} fail, {len(uncovered)} without a case")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
