//! Files whose form is right and whose content is drawn: HDF5, pickles of PyTorch, tensor bundles, footers of Parquet, messages of
//! modules and of graphs. A fuzzer's bytes are read as draws, so that a change of one changes one thing of the file.
//! `tests/attacks` makes files of random draws by the same functions.

use std::io::{Cursor, Write as _};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

#[path = "structured_graph.rs"]
mod graphs;

pub use graphs::graph;

/// Bytes as draws; zeros where they end.
pub struct Draw<'b>(pub &'b [u8]);

impl Draw<'_> {
    /// A byte.
    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, self.0), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    /// One of some.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A number that may be small, at an edge, or anything.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            0..=159 => self.byte().into(),
            160..=199 => u16::from_le_bytes([self.byte(), self.byte()]).into(),
            200..=219 => self.of(&[u64::MAX, 1 << 63, i64::MAX as u64, 1 << 32, u32::MAX.into(), 1 << 40, 0]),
            220..=239 => 1 << (self.byte() % 64),
            _ => u64::from_le_bytes([(); 8].map(|()| self.byte())),
        }
    }

    /// Some bytes.
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.byte()).collect()
    }
}

/// Bytes of a block of an HDF5 file made here.
const BLOCK: usize = 512;

/// An HDF5 file: a superblock, and blocks of each kind that lead to each other, and to themselves.
pub fn hdf5(draw: &mut Draw<'_>) -> Vec<u8> {
    let n_blocks = 2 + draw.below(14);
    let mut out = b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0\x04\0\x10\0\0\0\0\0".to_vec();
    let end = ((n_blocks + 1) * BLOCK) as u64;
    for number in [0, u64::MAX, end, u64::MAX, 0, BLOCK as u64] {
        out.extend(number.to_le_bytes());
    }
    // The root's symbol table.
    out.extend(1u64.to_le_bytes());
    out.extend(address(draw, n_blocks).to_le_bytes());
    out.extend(address(draw, n_blocks).to_le_bytes());
    out.resize(BLOCK, 0);
    for block in 0..n_blocks {
        let mut bytes = match if block == 0 { 0 } else { draw.below(6) } {
            0 | 1 => object(draw, n_blocks),
            2 => tree(draw, n_blocks),
            3 => heap(draw, n_blocks),
            4 => symbols(draw, n_blocks),
            _ => draw.bytes(BLOCK),
        };
        bytes.resize(BLOCK, 0);
        out.extend(&bytes[..BLOCK]);
    }
    out
}

fn address(draw: &mut Draw<'_>, n_blocks: usize) -> u64 {
    match draw.byte() {
        0..=239 => ((1 + draw.below(n_blocks)) * BLOCK) as u64,
        _ => draw.number(),
    }
}

/// An object header of version 1 and its messages.
fn object(draw: &mut Draw<'_>, n_blocks: usize) -> Vec<u8> {
    let mut messages = Vec::new();
    let n = 1 + draw.below(6);
    for _ in 0..n {
        let kind = draw.of(&[0x01u16, 0x03, 0x08, 0x0c, 0x10, 0x11, 0x05, 0x0b, 0x00, 0x06]);
        let mut data = match kind {
            0x01 => {
                let rank = draw.below(5) as u8;
                let mut data = vec![1, rank, draw.of(&[0, 1]), 0, 0, 0, 0, 0];
                (0..2 * rank).for_each(|_| data.extend(draw.number().to_le_bytes()));
                data
            }
            0x03 => datatype(draw, 0),
            0x08 => {
                let class = draw.below(4) as u8;
                let mut data = vec![3, class];
                match class {
                    0 => {
                        let inside = draw.bytes(40);
                        data.extend((inside.len() as u16).to_le_bytes());
                        data.extend(inside);
                    }
                    1 => [address(draw, n_blocks), draw.number()].iter().for_each(|it| data.extend(it.to_le_bytes())),
                    _ => {
                        let rank = 1 + draw.below(4) as u8;
                        data.push(rank);
                        data.extend(address(draw, n_blocks).to_le_bytes());
                        (0..rank).for_each(|_| data.extend((draw.number() as u32).to_le_bytes()));
                    }
                }
                data
            }
            0x0c => {
                let name = draw.of(&[&b"weight_names\0"[..], b"layer_names\0", b"shape\0", b"x\0"]);
                let (ty, space) = (datatype(draw, 0), vec![1, 1, 0, 0, 0, 0, 0, 0, draw.byte(), 0, 0, 0, 0, 0, 0, 0]);
                let mut data = vec![1, 0];
                [name.len(), ty.len(), space.len()].iter().for_each(|n| data.extend((*n as u16).to_le_bytes()));
                for part in [name, &ty, &space] {
                    data.extend(part);
                    data.resize(data.len().next_multiple_of(8), 0);
                }
                data.extend(draw.bytes(64));
                data
            }
            0x10 | 0x11 => {
                [address(draw, n_blocks), address(draw, n_blocks)].iter().flat_map(|it| it.to_le_bytes()).collect()
            }
            _ => draw.bytes(32),
        };
        data.resize(data.len().next_multiple_of(8), 0);
        messages.extend(kind.to_le_bytes());
        messages.extend((data.len() as u16).to_le_bytes());
        messages.extend([draw.of(&[0, 1]), 0, 0, 0]);
        messages.extend(data);
    }
    let mut out = vec![1, 0];
    out.extend((n as u16).to_le_bytes());
    out.extend(1u32.to_le_bytes());
    out.extend((messages.len() as u32).to_le_bytes());
    out.extend([0; 4]);
    out.extend(messages);
    out
}

/// A datatype: whole numbers, floats, texts, enums, compounds of such.
fn datatype(draw: &mut Draw<'_>, depth: usize) -> Vec<u8> {
    let class = draw.of(&[0u8, 1, 1, 1, 3, 6, 8, 9, 2, 10]);
    let size = draw.of(&[1u32, 2, 4, 8, 16, 0, 3, u32::MAX]);
    let mut out = vec![0x10 | class, draw.of(&[0, 0x20, 0x20, 1, 0x10]), draw.of(&[0, 15, 31, 63, 7]), 0];
    out.extend(size.to_le_bytes());
    match class {
        0 => out.extend([draw.byte(), 0, draw.of(&[8, 16, 32, 64]), 0]),
        1 => {
            let [mantissa, exponent, bias] =
                draw.of(&[[23u8, 8, 127], [52, 11, 255], [10, 5, 15], [7, 8, 127], [2, 5, 15]]);
            out.extend([
                0,
                0,
                8 * size.min(16) as u8,
                0,
                mantissa,
                exponent,
                0,
                mantissa,
                bias,
                draw.of(&[0, 3]),
                0,
                0,
            ]);
        }
        6 | 8 | 9 | 10 if depth < 3 => out.extend(datatype(draw, depth + 1)),
        _ => out.extend(draw.bytes(12)),
    }
    out
}

fn tree(draw: &mut Draw<'_>, n_blocks: usize) -> Vec<u8> {
    let n = draw.below(16) as u16;
    let mut out = [&b"TREE"[..], &[draw.of(&[0, 1]), draw.of(&[0, 0, 1, 200])], &n.to_le_bytes()].concat();
    (0..2).for_each(|_| out.extend(draw.of(&[u64::MAX, BLOCK as u64]).to_le_bytes()));
    for _ in 0..n {
        out.extend(u64::from(draw.byte()).to_le_bytes());
        out.extend(address(draw, n_blocks).to_le_bytes());
    }
    out
}

fn heap(draw: &mut Draw<'_>, n_blocks: usize) -> Vec<u8> {
    let mut out = b"HEAP\0\0\0\0".to_vec();
    for number in [draw.of(&[88, 480, u64::MAX]), draw.number(), address(draw, n_blocks)] {
        out.extend(number.to_le_bytes());
    }
    out.extend(b"\0\0\0\0\0\0\0\0model_weights\0\0\0kernel\0\0bias\0\0\0\0");
    out
}

fn symbols(draw: &mut Draw<'_>, n_blocks: usize) -> Vec<u8> {
    let n = draw.below(10) as u16;
    let mut out = [&b"SNOD\x01\0"[..], &n.to_le_bytes()].concat();
    for _ in 0..n {
        out.extend(draw.of(&[8u64, 24, 32, 200]).to_le_bytes());
        out.extend(address(draw, n_blocks).to_le_bytes());
        out.extend(draw.of(&[0u64, 1]).to_le_bytes());
        out.extend(address(draw, n_blocks).to_le_bytes());
        out.extend(address(draw, n_blocks).to_le_bytes());
    }
    out
}

/// An archive of PyTorch: a pickle of opcodes in any order, and two storages.
pub fn torch(draw: &mut Draw<'_>) -> Vec<u8> {
    const GLOBALS: [&str; 9] = [
        "torch._utils\n_rebuild_tensor_v2\n",
        "torch._utils\n_rebuild_parameter\n",
        "collections\nOrderedDict\n",
        "torch\nFloatStorage\n",
        "torch\nBFloat16Storage\n",
        "torch\nLongStorage\n",
        "torch\nSize\n",
        "torch._tensor\n_rebuild_from_type_v2\n",
        "os\nsystem\n",
    ];
    let mut pickle = vec![0x80, draw.of(&[2, 4, 5])];
    // A dict of tensors as torch writes it, whose numbers are drawn; or opcodes in any order.
    let n = if draw.byte() < 128 {
        pickle.push(b'}');
        for at in 0..1 + draw.below(5) {
            let name = format!("w{}", if draw.byte() < 240 { at } else { 0 });
            pickle.extend([&[b'X'][..], &(name.len() as u32).to_le_bytes(), name.as_bytes()].concat());
            tensor(draw, &mut pickle);
            pickle.push(b's');
        }
        0
    } else {
        4 + draw.below(120)
    };
    for _ in 0..n {
        match draw.below(24) {
            0 => pickle.extend([b"c", draw.of(&GLOBALS).as_bytes()].concat()),
            1 => pickle.push(b'('),
            2 => pickle.push(b't'),
            3 => pickle.push(b'R'),
            4 => pickle.push(b'Q'),
            5 => pickle.extend([b'K', draw.byte()]),
            6 => pickle.extend([&b"J"[..], &(draw.number() as i32).to_le_bytes()].concat()),
            7 => {
                let bytes = draw.number().to_le_bytes();
                pickle.extend([&[0x8a, 8][..], &bytes].concat());
            }
            8 => pickle.push(draw.of(&[0x88, 0x89, b'N'])),
            9 => pickle.push(b'}'),
            10 => pickle.push(b']'),
            11 => pickle.push(b')'),
            12 => pickle.push(draw.of(b"su")),
            13 => pickle.push(draw.of(b"ae")),
            14 => pickle.extend([b'q', draw.byte()]),
            15 => pickle.extend([b'h', draw.byte()]),
            16 => pickle.push(draw.of(&[0x85, 0x86, 0x87])),
            17 | 18 => {
                let text = draw.of(&["storage", "0", "1", "cpu", "weight", "bias", "2"]);
                pickle.extend([&[b'X'][..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat());
            }
            // A whole tensor, as torch writes one.
            19..=21 => tensor(draw, &mut pickle),
            22 => pickle.push(draw.of(b"021")),
            _ => pickle.push(draw.byte()),
        }
    }
    pickle.push(b'.');
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    let mut storage = draw.bytes(200);
    storage.resize(192, 0);
    for (name, bytes) in [("a/data.pkl", &pickle), ("a/data/0", &storage), ("a/data/1", &storage)] {
        zip.start_file(name, stored).expect("memory takes it");
        zip.write_all(bytes).expect("memory takes it");
    }
    zip.finish().expect("memory takes it").into_inner()
}

/// A tensor of a storage, by the call that rebuilds it.
fn tensor(draw: &mut Draw<'_>, pickle: &mut Vec<u8>) {
    pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n");
    // The elements of a storage's 192 bytes, or another number of them.
    let (class, n) =
        draw.of(&[("FloatStorage", 48), ("BFloat16Storage", 96), ("LongStorage", 24), ("BoolStorage", 192)]);
    pickle.extend(class.as_bytes());
    pickle.extend(b"\nX\x01\0\0\0");
    let n = if draw.byte() < 220 { n } else { draw.byte() };
    pickle.extend([draw.of(b"000112"), b'X', 3, 0, 0, 0, b'c', b'p', b'u', b'K', n, b't', b'Q']);
    pickle.extend([b'K', draw.of(&[0, 0, 1, 200]), b'K', draw.of(&[1, 2, 2, 200]), b'K', draw.of(&[1, 3, 0, 2]), 0x86]);
    pickle.extend([b'K', draw.of(&[1, 3, 2, 0, 255]), b'K', draw.of(&[1, 1, 2]), 0x86, draw.of(&[0x88, 0x89])]);
    pickle.extend(b"ccollections\nOrderedDict\n)RtR");
}

/// The trailer of a table's block: the type 0 (no compression), and the checksum of block and type.
fn trailer(block: &[u8]) -> [u8; 5] {
    let sum = bf16scope::files::framing::masked_crc(&[block, &[0]].concat()).to_le_bytes();
    [0, sum[0], sum[1], sum[2], sum[3]]
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field of a protocol buffer with a length.
fn field(tag: u64, bytes: &[u8], out: &mut Vec<u8>) {
    varint(tag << 3 | 2, out);
    varint(bytes.len() as u64, out);
    out.extend(bytes);
}

/// A field of a protocol buffer that is a number.
fn number(tag: u64, value: u64, out: &mut Vec<u8>) {
    varint(tag << 3, out);
    varint(value, out);
}

/// The index of a tensor bundle: a table of keys in order, and entries that share, overlap or leave their data.
pub fn bundle_index(draw: &mut Draw<'_>) -> Vec<u8> {
    // A bundle that holds together but for what is drawn of places; or one of any numbers.
    let is_whole = draw.byte() < 160;
    let mut header = Vec::new();
    number(1, if is_whole { 1 } else { draw.of(&[1, 2, 0]) }, &mut header);
    number(2, if is_whole { 0 } else { draw.of(&[0, 1]) }, &mut header);
    let mut entries = vec![(String::new(), header)];
    for at in 0..1 + draw.below(12) {
        let mut value = Vec::new();
        let (dtype, width) = draw.of(&[(1u64, 4u64), (2, 8), (3, 4), (9, 8), (14, 2), (19, 2), (10, 1)]);
        number(1, if is_whole { dtype } else { draw.of(&[dtype, 7, 99]) }, &mut value);
        let (mut shape, mut n_bytes) = (Vec::new(), width);
        for _ in 0..draw.below(4) {
            let size = if is_whole { draw.below(5) as u64 } else { draw.number() };
            n_bytes = n_bytes.saturating_mul(size);
            let mut dim = Vec::new();
            number(1, size, &mut dim);
            field(2, &dim, &mut shape);
        }
        field(2, &shape, &mut value);
        number(3, if is_whole { 0 } else { draw.of(&[0, 1]) }, &mut value);
        number(4, if is_whole { at as u64 * 256 } else { draw.number() }, &mut value);
        number(5, if is_whole { n_bytes } else { draw.number() }, &mut value);
        for _ in 0..if is_whole { 0 } else { draw.below(3) } {
            let mut slice = Vec::new();
            for _ in 0..draw.below(3) {
                let mut extent = Vec::new();
                number(1, draw.number(), &mut extent);
                number(2, draw.number(), &mut extent);
                field(1, &extent, &mut slice);
            }
            field(7, &slice, &mut value);
        }
        let key = match draw.below(5) {
            0 if !is_whole => "_CHECKPOINTABLE_OBJECT_GRAPH".to_string(),
            1 => format!("v{at}/.ATTRIBUTES/VARIABLE_VALUE"),
            _ => format!("w{at:02}"),
        };
        entries.push((key, value));
    }
    if is_whole || draw.byte() < 230 {
        entries.sort();
    }
    let mut block = Vec::new();
    for (key, value) in entries {
        [0, key.len() as u64, value.len() as u64].into_iter().for_each(|n| varint(n, &mut block));
        block.extend(key.as_bytes());
        block.extend(value);
    }
    block.extend([0, 0, 0, 0, 1, 0, 0, 0]);
    let n_block = block.len() as u64;
    block.extend(trailer(&block));
    let mut handle = Vec::new();
    [0, n_block].into_iter().for_each(|n| varint(n, &mut handle));
    // A block of nothing says that there are no filters.
    let (meta, n_meta) = (block.len() as u64, 8);
    let none = [0, 0, 0, 0, 1, 0, 0, 0];
    block.extend(none);
    block.extend(trailer(&none));
    let (start, mut index) = (block.len() as u64, Vec::new());
    [0, 1, handle.len() as u64].into_iter().for_each(|n| varint(n, &mut index));
    index.push(b'z');
    index.extend(&handle);
    index.extend([0, 0, 0, 0, 1, 0, 0, 0]);
    let n_index = index.len() as u64;
    let behind = trailer(&index);
    block.extend(index);
    block.extend(behind);
    let mut footer = Vec::new();
    [meta, n_meta, start, n_index].into_iter().for_each(|n| varint(n, &mut footer));
    footer.resize(40, 0);
    block.extend(footer);
    block.extend(0xdb47_7524_8b80_fb57u64.to_le_bytes());
    block
}

/// A footer of Parquet in Thrift's compact form: a schema of groups and leaves, row groups and their columns.
pub fn parquet(draw: &mut Draw<'_>) -> Vec<u8> {
    let zigzag = |value: i64| (value << 1 ^ value >> 63) as u64;
    let (mut meta, n) = (Vec::new(), 1 + draw.below(12));
    meta.push(0x15);
    varint(zigzag(1), &mut meta);
    meta.extend([0x19, 0xf0 & ((n.min(14) as u8) << 4) | 0x0c]);
    for at in 0..n.min(14) {
        let mut last = 0;
        let put = |id: u8, kind: u8, last: &mut u8, out: &mut Vec<u8>| {
            out.push((id - *last) << 4 | kind);
            *last = id;
        };
        if at > 0 && draw.byte() < 160 {
            put(1, 5, &mut last, &mut meta);
            varint(zigzag(draw.below(9) as i64), &mut meta);
        }
        put(3, 5, &mut last, &mut meta);
        varint(zigzag(draw.below(4) as i64), &mut meta);
        put(4, 8, &mut last, &mut meta);
        let name = draw.of(&["a", "b", "list", "element", "key_value", "x"]);
        varint(name.len() as u64, &mut meta);
        meta.extend(name.as_bytes());
        if at == 0 || draw.byte() < 80 {
            put(5, 5, &mut last, &mut meta);
            varint(zigzag(if draw.byte() < 220 { draw.below(5) as i64 } else { draw.number() as i64 }), &mut meta);
        }
        if draw.byte() < 60 {
            put(6, 5, &mut last, &mut meta);
            varint(zigzag(draw.below(22) as i64), &mut meta);
        }
        meta.push(0);
    }
    meta.push(0x16);
    varint(zigzag(draw.number() as i64), &mut meta);
    let n_groups = draw.below(3) as u8;
    meta.extend([0x19, n_groups << 4 | 0x0c]);
    for _ in 0..n_groups {
        let n_columns = draw.below(4) as u8;
        meta.extend([0x19, n_columns << 4 | 0x0c]);
        for _ in 0..n_columns {
            meta.push(0x26);
            varint(zigzag(draw.number() as i64), &mut meta);
            meta.extend([0x1c, 0x15]);
            varint(zigzag(draw.below(8) as i64), &mut meta);
            meta.extend([0x19, 0x15]);
            varint(zigzag(draw.below(9) as i64), &mut meta);
            meta.extend([0x19, 0x18, 1, draw.of(b"abx"), 0x15]);
            varint(zigzag(draw.below(8) as i64), &mut meta);
            for _ in 0..4 {
                meta.push(0x16);
                varint(zigzag(draw.number() as i64), &mut meta);
            }
            meta.extend([0, 0]);
        }
        for _ in 0..2 {
            meta.push(0x16);
            varint(zigzag(draw.number() as i64), &mut meta);
        }
        meta.push(0);
    }
    meta.push(0);
    let mut out = [b"PAR1", &draw.bytes(120)[..]].concat();
    out.extend(&meta);
    out.extend((meta.len() as u32).to_le_bytes());
    out.extend(b"PAR1");
    out
}

/// An `HloModuleProto`: instructions of any opcode, whose operands, shapes and computations are drawn.
pub fn module(draw: &mut Draw<'_>) -> Vec<u8> {
    const OPCODES: [&str; 22] = [
        "parameter",
        "add",
        "constant",
        "tuple",
        "get-tuple-element",
        "dot",
        "convert",
        "broadcast",
        "reduce",
        "while",
        "conditional",
        "call",
        "custom-call",
        "fusion",
        "slice",
        "all-reduce",
        "async-start",
        "iota",
        "gather",
        "sort",
        "pad",
        "reshape",
    ];
    let mut out = Vec::new();
    field(1, b"m", &mut out);
    field(2, b"c0", &mut out);
    number(6, 0, &mut out);
    let n_comps = 1 + draw.below(3) as u64;
    for comp in 0..n_comps {
        let mut computation = Vec::new();
        field(1, format!("c{comp}").as_bytes(), &mut computation);
        let n_instructions = 1 + draw.below(8) as u64;
        for at in 0..n_instructions {
            let id = comp * 100 + at;
            let mut instruction = Vec::new();
            field(1, format!("i{id}").as_bytes(), &mut instruction);
            let opcode = draw.of(&OPCODES);
            field(2, opcode.as_bytes(), &mut instruction);
            field(3, &shape(draw, 0), &mut instruction);
            number(35, id, &mut instruction);
            for _ in 0..draw.below(4) {
                number(36, comp * 100 + draw.below(n_instructions as usize) as u64, &mut instruction);
            }
            match opcode {
                "parameter" => number(9, draw.below(4) as u64, &mut instruction),
                "get-tuple-element" => number(13, draw.number(), &mut instruction),
                "constant" => {
                    let mut literal = Vec::new();
                    field(1, &shape(draw, 0), &mut literal);
                    field(draw.of(&[3, 4, 6, 8, 9, 11, 13, 14]), &draw.bytes(24), &mut literal);
                    field(8, &literal, &mut instruction);
                }
                _ => {}
            }
            for _ in 0..draw.below(3) {
                number(14, draw.number(), &mut instruction);
            }
            if draw.byte() < 90 {
                number(38, draw.below(n_comps as usize) as u64, &mut instruction);
            }
            if draw.byte() < 30 {
                // A message that may be this field's, or not.
                field(draw.of(&[15, 16, 17, 30, 40, 48, 49, 52, 87, 93]), &draw.bytes(24), &mut instruction);
            }
            field(2, &instruction, &mut computation);
        }
        number(5, comp, &mut computation);
        number(6, comp * 100 + draw.below(n_instructions as usize) as u64, &mut computation);
        field(3, &computation, &mut out);
    }
    if draw.byte() < 60 {
        field(draw.of(&[7, 8, 12, 14, 15, 17, 18, 19]), &draw.bytes(30), &mut out);
    }
    out
}

fn shape(draw: &mut Draw<'_>, depth: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let ty = draw.of(&[11u64, 11, 16, 4, 1, 13, 15, 17, 14, 99]);
    number(2, ty, &mut out);
    if ty == 13 && depth < 4 {
        for _ in 0..draw.below(4) {
            field(4, &shape(draw, depth + 1), &mut out);
        }
        return out;
    }
    let rank = draw.below(4);
    for _ in 0..rank {
        number(3, if draw.byte() < 240 { draw.below(5) as u64 } else { draw.number() }, &mut out);
    }
    if draw.byte() < 128 {
        let mut layout = Vec::new();
        for _ in 0..rank {
            number(1, draw.below(4) as u64, &mut layout);
        }
        field(5, &layout, &mut out);
    }
    out
}
