//! The part of pickle that dictionaries of tensors need. Nothing is executed: names of functions are compared with a
//! short list, and any other name or opcode is refused. Values are kept in one arena and shared by number, so memory
//! is bounded by the pickle's length however often it refers to a value.

use super::DType;
use crate::error::Fault;
use std::collections::HashMap;

/// Number of a value in the arena.
pub(super) type Id = usize;

/// A value.
#[derive(Debug)]
pub(super) enum Node {
    /// None, a truth value, a real number, bytes: nothing a tensor is made of.
    Other,
    Int(i64),
    Str(String),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Function(Function),
    StorageType(DType),
    Storage(Storage),
    Tensor(Tensor),
}

/// A function that may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
}

/// Values in an entry of the archive.
#[derive(Debug, Clone)]
pub(super) struct Storage {
    pub dtype: DType,
    pub key: String,
    pub len: u64,
}

/// A view of a storage.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    pub storage: Id,
    pub offset: u64,
    pub shape: Vec<u64>,
    pub strides: Vec<u64>,
}

/// Most dimensions of a tensor.
const MOST_DIMENSIONS: usize = 16;

fn global(module: &str, name: &str) -> Result<Node, Fault> {
    let storage = |dtype| Ok(Node::StorageType(dtype));
    match (module, name) {
        ("collections", "OrderedDict") => Ok(Node::Function(Function::OrderedDict)),
        ("torch._utils", "_rebuild_tensor_v2") => Ok(Node::Function(Function::RebuildTensor)),
        ("torch._utils", "_rebuild_parameter") => Ok(Node::Function(Function::RebuildParameter)),
        ("torch", "FloatStorage") => storage(DType::F32),
        ("torch", "HalfStorage") => storage(DType::F16),
        ("torch", "BFloat16Storage") => storage(DType::BF16),
        ("torch", "DoubleStorage") => storage(DType::F64),
        ("torch", "LongStorage") => storage(DType::I64),
        ("torch", "IntStorage") => storage(DType::I32),
        ("torch", "ShortStorage") => storage(DType::I16),
        ("torch", "CharStorage") => storage(DType::I8),
        ("torch", "ByteStorage") => storage(DType::U8),
        ("torch", "BoolStorage") => storage(DType::Bool),
        _ => Err(Fault::unsupported(format!(
            "the pickle names `{}.{}`, which is not among the few names that tensors need",
            super::shown(module),
            super::shown(name)
        ))),
    }
}

/// All values and the last one.
pub(super) fn load(bytes: &[u8]) -> Result<(Vec<Node>, Id), Fault> {
    let mut machine =
        Machine { bytes, at: 0, nodes: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() };
    loop {
        let [opcode] = machine.take()?;
        if opcode == b'.' {
            let root = machine.pop()?;
            return Ok((machine.nodes, root));
        }
        machine.step(opcode)?;
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

fn damaged(what: &str) -> Fault {
    Fault::invalid(format!("the pickle is damaged: {what}"))
}

impl<'a> Machine<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let bytes = self.bytes.get(self.at..).and_then(|b| b.first_chunk()).ok_or_else(|| damaged("it ends early"))?;
        self.at += N;
        Ok(*bytes)
    }

    fn slice(&mut self, len: u64) -> Result<&'a [u8], Fault> {
        let end = usize::try_from(len).ok().and_then(|n| self.at.checked_add(n));
        let bytes = end.and_then(|end| self.bytes.get(self.at..end)).ok_or_else(|| damaged("it ends early"))?;
        self.at += bytes.len();
        Ok(bytes)
    }

    fn line(&mut self) -> Result<&'a str, Fault> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let len = rest.iter().position(|&b| b == b'\n').ok_or_else(|| damaged("it ends early"))?;
        let line = self.slice(len as u64)?;
        self.at += 1;
        std::str::from_utf8(line).map_err(|_| damaged("a name is not UTF-8"))
    }

    fn text(&mut self, len: u64) -> Result<(), Fault> {
        let text = std::str::from_utf8(self.slice(len)?).map_err(|_| damaged("a string is not UTF-8"))?;
        self.push(Node::Str(text.to_owned()));
        Ok(())
    }

    fn push(&mut self, node: Node) {
        self.stack.push(self.nodes.len());
        self.nodes.push(node);
    }

    fn pop(&mut self) -> Result<Id, Fault> {
        // Values below an open mark are out of reach.
        if self.marks.last().is_some_and(|&mark| self.stack.len() <= mark) {
            return Err(damaged("a value is missing"));
        }
        self.stack.pop().ok_or_else(|| damaged("a value is missing"))
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>, Fault> {
        let mark = self.marks.pop().filter(|&m| m <= self.stack.len()).ok_or_else(|| damaged("a mark is missing"))?;
        Ok(self.stack.split_off(mark))
    }

    fn top(&mut self) -> Result<&mut Node, Fault> {
        let id = *self.stack.last().ok_or_else(|| damaged("a value is missing"))?;
        self.nodes.get_mut(id).ok_or_else(|| damaged("a value is missing"))
    }

    fn node(&self, id: Id) -> &Node {
        self.nodes.get(id).unwrap_or(&Node::Other)
    }

    fn recall(&mut self, index: u64) -> Result<(), Fault> {
        let id = *self.memo.get(&index).ok_or_else(|| damaged("it refers to a value it does not have"))?;
        self.stack.push(id);
        Ok(())
    }

    fn remember(&mut self, index: u64) -> Result<(), Fault> {
        let id = *self.stack.last().ok_or_else(|| damaged("a value is missing"))?;
        self.memo.insert(index, id);
        Ok(())
    }

    fn tuple(&mut self, len: usize) -> Result<(), Fault> {
        let mut items = (0..len).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        items.reverse();
        self.push(Node::Tuple(items));
        Ok(())
    }

    fn extend_dict(&mut self, items: &[Id]) -> Result<(), Fault> {
        let (pairs, []) = items.as_chunks::<2>() else { return Err(damaged("a key has no value")) };
        match self.top()? {
            Node::Dict(dict) => dict.extend(pairs.iter().map(|&[key, value]| (key, value))),
            _ => return Err(damaged("items are put into what is no dictionary")),
        }
        Ok(())
    }

    fn extend_list(&mut self, items: &[Id]) -> Result<(), Fault> {
        match self.top()? {
            Node::List(list) => list.extend(items),
            _ => return Err(damaged("items are put into what is no list")),
        }
        Ok(())
    }

    fn step(&mut self, opcode: u8) -> Result<(), Fault> {
        match opcode {
            0x80 => match self.take()? {
                [2..=5] => {}
                [version] => return Err(Fault::unsupported(format!("pickle protocol {version} is not supported"))),
            },
            0x95 => drop(self.take::<8>()?),
            b'N' | 0x88 | 0x89 => self.push(Node::Other),
            b'G' => {
                self.take::<8>()?;
                self.push(Node::Other);
            }
            b'J' => {
                let n = i32::from_le_bytes(self.take()?);
                self.push(Node::Int(n.into()));
            }
            b'K' => {
                let [n] = self.take()?;
                self.push(Node::Int(n.into()));
            }
            b'M' => {
                let n = u16::from_le_bytes(self.take()?);
                self.push(Node::Int(n.into()));
            }
            0x8A => self.long()?,
            b'X' => {
                let len = u32::from_le_bytes(self.take()?);
                self.text(len.into())?;
            }
            0x8C | b'U' => {
                let [len] = self.take()?;
                self.text(len.into())?;
            }
            0x8D => {
                let len = u64::from_le_bytes(self.take()?);
                self.text(len)?;
            }
            b'}' => self.push(Node::Dict(Vec::new())),
            b']' => self.push(Node::List(Vec::new())),
            b'(' => self.marks.push(self.stack.len()),
            b')' => self.tuple(0)?,
            0x85..=0x87 => self.tuple(usize::from(opcode - 0x84))?,
            b't' => {
                let items = self.pop_to_mark()?;
                self.push(Node::Tuple(items));
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.extend_dict(&[key, value])?;
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                self.extend_dict(&items)?;
            }
            b'a' => {
                let item = self.pop()?;
                self.extend_list(&[item])?;
            }
            b'e' => {
                let items = self.pop_to_mark()?;
                self.extend_list(&items)?;
            }
            _ => return self.step_object(opcode),
        }
        Ok(())
    }

    /// Opcodes of the memo, of names, calls and storages.
    fn step_object(&mut self, opcode: u8) -> Result<(), Fault> {
        match opcode {
            b'q' => {
                let [index] = self.take()?;
                self.remember(index.into())?;
            }
            b'r' => {
                let index = u32::from_le_bytes(self.take()?);
                self.remember(index.into())?;
            }
            0x94 => self.remember(self.memo.len() as u64)?,
            b'h' => {
                let [index] = self.take()?;
                self.recall(index.into())?;
            }
            b'j' => {
                let index = u32::from_le_bytes(self.take()?);
                self.recall(index.into())?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(global(module, name)?);
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let node = match (self.node(module), self.node(name)) {
                    (Node::Str(module), Node::Str(name)) => global(module, name)?,
                    _ => return Err(damaged("a name is no string")),
                };
                self.push(node);
            }
            b'R' => self.call()?,
            b'Q' => self.storage()?,
            b'b' => {
                // An ordered dictionary's attributes, which hold no tensor.
                self.pop()?;
                if !matches!(self.top()?, Node::Dict(_)) {
                    return Err(Fault::unsupported("the pickle sets up an object that is no dictionary"));
                }
            }
            _ => {
                let at = self.at - 1;
                return Err(Fault::unsupported(format!(
                    "the pickle has opcode 0x{opcode:02x} at byte {at}, which tensors do not need"
                )));
            }
        }
        Ok(())
    }

    fn long(&mut self) -> Result<(), Fault> {
        let [len] = self.take()?;
        if len > 8 {
            return Err(Fault::unsupported("the pickle has an integer of more than 64 bits"));
        }
        let bytes = self.slice(len.into())?;
        let filler = if bytes.last().is_some_and(|b| b & 0x80 != 0) { 0xFF } else { 0 };
        let mut value = [filler; 8];
        value.iter_mut().zip(bytes).for_each(|(v, b)| *v = *b);
        self.push(Node::Int(i64::from_le_bytes(value)));
        Ok(())
    }

    /// A storage, by a tuple: "storage", type, key, place, length.
    fn storage(&mut self) -> Result<(), Fault> {
        let id = self.pop()?;
        let wrong = || damaged("a storage is not described as PyTorch does");
        let Node::Tuple(items) = self.node(id) else { return Err(wrong()) };
        let &[kind, dtype, key, _, len] = items.as_slice() else { return Err(wrong()) };
        let storage = match (self.node(kind), self.node(dtype), self.node(key), self.node(len)) {
            (Node::Str(kind), Node::StorageType(dtype), Node::Str(key), Node::Int(len)) if kind == "storage" => {
                let len = u64::try_from(*len).map_err(|_| wrong())?;
                Storage { dtype: *dtype, key: key.clone(), len }
            }
            _ => return Err(wrong()),
        };
        self.push(Node::Storage(storage));
        Ok(())
    }

    fn sizes(&self, id: Id) -> Option<Vec<u64>> {
        match self.node(id) {
            Node::Tuple(items) if items.len() <= MOST_DIMENSIONS => items.iter().map(|&i| self.size(i)).collect(),
            _ => None,
        }
    }

    fn size(&self, id: Id) -> Option<u64> {
        match self.node(id) {
            Node::Int(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    fn call(&mut self) -> Result<(), Fault> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let Node::Tuple(arguments) = self.node(arguments) else { return Err(damaged("a call has no arguments")) };
        let wrong = || damaged("a tensor is not described as PyTorch does");
        match (self.node(function), arguments.as_slice()) {
            (Node::Function(Function::OrderedDict), []) => self.push(Node::Dict(Vec::new())),
            (Node::Function(Function::RebuildParameter), &[tensor, ..]) => self.stack.push(tensor),
            (Node::Function(Function::RebuildTensor), &[storage, offset, shape, strides, ..]) => {
                let offset = self.size(offset).ok_or_else(wrong)?;
                let (shape, strides) = self.sizes(shape).zip(self.sizes(strides)).ok_or_else(wrong)?;
                if !matches!(self.node(storage), Node::Storage(_)) || shape.len() != strides.len() {
                    return Err(wrong());
                }
                self.push(Node::Tensor(Tensor { storage, offset, shape, strides }));
            }
            _ => return Err(Fault::unsupported("the pickle makes a call that tensors do not need")),
        }
        Ok(())
    }
}
