//! The engine's options and their values.

use ns_llm::{Error, ErrorKind, LoadOptions, Moment, OptionSpec, OptionValues, Result};
use ns_llm_kernels::attention::KvPrecision;
use ns_sycl::DeviceClass;
use std::path::PathBuf;

/// Options of the engine.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        name: "kv",
        env: "NS_KV",
        value: "f16|f32|q8",
        allowed: &["f16", "f32", "q8"],
        help: "precision of the key-value cache (default f16 on a card, f32 on the CPU device)",
        moment: Moment::Load,
    },
    OptionSpec {
        name: "chunk",
        env: "NS_PREFILL_CHUNK",
        value: "TOKENS",
        allowed: &[],
        help: "prompt tokens read in one pass, 16 to 4096 (default 512; on a card up to 2048 where it fits)",
        moment: Moment::Load,
    },
    OptionSpec {
        name: "gemm",
        env: "NS_GEMM",
        value: "auto|own",
        allowed: &["auto", "own"],
        help: "prompt products: the fastest way of the device, or our own kernel (default auto)",
        moment: Moment::Load,
    },
    OptionSpec {
        name: "graph",
        env: "NS_GRAPH",
        value: "0|1",
        allowed: &["0", "1"],
        help: "replay decode passes as recorded graphs (default 1)",
        moment: Moment::Load,
    },
    OptionSpec {
        name: "drafts",
        env: "NS_Q35_DRAFTS",
        value: "N",
        allowed: &["0", "1", "2", "3", "4", "5", "6", "7"],
        help: "tokens the draft block proposes a step (default 3)",
        moment: Moment::Load,
    },
    OptionSpec {
        name: "draft-sampling",
        env: "NS_Q35_DRAFT_SAMPLING",
        value: "coupled|speculative",
        allowed: &["coupled", "speculative"],
        help: "how drafts meet a temperature: drawn with the verifying row's own random number, which leaves the text as without \
               drafts, or speculative sampling, whose text also depends on others decoding beside it (default coupled)",
        moment: Moment::Load,
    },
    OptionSpec {
        name: "mtp",
        env: "NS_Q35_MTP",
        value: "FILE",
        allowed: &[],
        help: "file of the draft block where the model's own has none (default: the one beside it with mtp in its name)",
        moment: Moment::Load,
    },
    OptionSpec {
        name: "split",
        env: "NS_SPLIT",
        value: "LAYER",
        allowed: &[],
        help: "first layer of the last device, where a model runs on several (default: as many as fit there)",
        moment: Moment::Load,
    },
];

/// How drafted tokens meet a temperature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftSampling {
    /// A draft is drawn with the random number of the row that verifies it, and kept while the row draws the same.
    Coupled,
    /// A draft is kept with the ratio of the probabilities; else the rest of the distribution is drawn from.
    Speculative,
}

/// The values of a load.
#[derive(Debug, Clone)]
pub struct Options {
    kv: Option<KvPrecision>,
    /// Prompt tokens of a pass, where given.
    pub chunk: Option<usize>,
    /// Prompt products by our own kernel.
    pub own_gemm: bool,
    /// Decode passes are recorded and replayed.
    pub graphs: bool,
    /// Drafts of a step; 0 uses no draft block.
    pub drafts: usize,
    /// How they meet a temperature.
    pub draft_sampling: DraftSampling,
    /// File of the draft block.
    pub mtp: Option<PathBuf>,
    /// First layer of the last device.
    pub split: Option<usize>,
}

fn option_error(message: String) -> Error {
    Error::new(ErrorKind::Option, message)
}

impl Options {
    /// Reads and checks the options of a load.
    pub fn read(load: &LoadOptions) -> Result<Self> {
        let values = load.options.clone().with_environment(OPTIONS, Moment::Load, &|n| std::env::var(n).ok())?;
        Self::from_values(&values, load.draft)
    }

    fn from_values(values: &OptionValues, draft: bool) -> Result<Self> {
        let number = |name: &str, wanted: &str, range: std::ops::RangeInclusive<usize>| match values.get(name) {
            None => Ok(None),
            Some(text) => match text.parse() {
                Ok(n) if range.contains(&n) => Ok(Some(n)),
                _ => Err(option_error(format!("option `{name}` is `{text}`; it takes {wanted}"))),
            },
        };
        Ok(Self {
            kv: values.get("kv").map(|kv| match kv {
                "f16" => KvPrecision::F16,
                "q8" => KvPrecision::Q8,
                _ => KvPrecision::F32,
            }),
            chunk: number("chunk", "16 to 4096", 16..=4096)?,
            own_gemm: values.get("gemm") == Some("own"),
            graphs: values.get("graph") != Some("0"),
            drafts: if draft { number("drafts", "0 to 7", 0..=7)?.unwrap_or(3) } else { 0 },
            draft_sampling: match values.get("draft-sampling") {
                Some("speculative") => DraftSampling::Speculative,
                _ => DraftSampling::Coupled,
            },
            mtp: values.get("mtp").map(PathBuf::from),
            split: number("split", "a layer", 0..=usize::MAX)?,
        })
    }

    /// Precision of the cache on a device of a class.
    pub fn precision(&self, class: DeviceClass) -> KvPrecision {
        self.kv.unwrap_or(match class {
            DeviceClass::Gpu => KvPrecision::F16,
            DeviceClass::Cpu => KvPrecision::F32,
        })
    }
}

/// The name of a precision, for messages and fingerprints.
pub fn precision_name(precision: KvPrecision) -> &'static str {
    match precision {
        KvPrecision::F16 => "f16",
        KvPrecision::F32 => "f32",
        KvPrecision::Q8 => "q8",
    }
}
