//! Llama's shape, scaled: which tensors a model of so many parameters has.
//!
//! The proportions are those of published Llama models: about 96 hidden units a layer, a feed-forward layer of 11/4 the hidden size,
//! a quarter as many key/value as query units, 32,000 words. Hidden size and layers come in steps, so the vocabulary takes up the
//! rest: the total lands within half a row of it, far inside two percent.

/// The smallest checkpoint that still has every kind of tensor, in bytes of any dtype.
pub(crate) const SMALLEST_BYTES: u64 = 64 << 10;
/// The largest checkpoint: a hundred times today's models, and still a list of tensors that fits in memory.
pub(crate) const LARGEST_BYTES: u64 = 100_000_000_000_000;

/// The three numbers from which every shape follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Architecture {
    pub(crate) hidden: u64,
    pub(crate) layers: u64,
    pub(crate) vocabulary: u64,
}

/// Llama's smallest published ratio of hidden size to layers is 86, its largest 128.
const HIDDEN_PER_LAYER: f64 = 96.0;
const USUAL_VOCABULARY: u64 = 32_000;
/// Beyond this a model grows by layers only.
const WIDEST: u64 = 32_768;

impl Architecture {
    /// The model whose proportions come closest to Llama's among those of about `parameters` elements.
    pub(crate) fn near(parameters: u64) -> Self {
        let narrow = [8, 16, 32];
        let wide = (64..=WIDEST).step_by(64);
        narrow
            .into_iter()
            .chain(wide)
            .map(|hidden| Self::of_width(hidden, parameters))
            .filter(|candidate| candidate.parameters() <= parameters + parameters / 50)
            .min_by(|a, b| a.distance_from_llama().total_cmp(&b.distance_from_llama()))
            .unwrap_or(Self { hidden: 8, layers: 1, vocabulary: 1 })
    }

    /// Layers to fill `parameters` at this width beside a usual vocabulary, then the vocabulary that fills the rest.
    fn of_width(hidden: u64, parameters: u64) -> Self {
        let usual = USUAL_VOCABULARY.min(16 * hidden).max(4 * hidden);
        let one_layer = Self { hidden, layers: 1, vocabulary: 0 }.layer_parameters();
        let for_layers = parameters.saturating_sub(2 * usual * hidden + hidden);
        let layers = ((for_layers + one_layer / 2) / one_layer).max(1);
        let rest = parameters.saturating_sub(layers * one_layer + hidden);
        Self { hidden, layers, vocabulary: ((rest + hidden) / (2 * hidden)).max(1) }
    }

    fn distance_from_llama(&self) -> f64 {
        (self.hidden as f64 / self.layers as f64 / HIDDEN_PER_LAYER).ln().abs()
    }

    fn layer_parameters(&self) -> u64 {
        self.layer_tensors().iter().map(|(_, shape)| shape.iter().product::<u64>()).sum()
    }

    /// Elements in all tensors.
    pub(crate) fn parameters(&self) -> u64 {
        self.layers * self.layer_parameters() + 2 * self.vocabulary * self.hidden + self.hidden
    }

    fn layer_tensors(&self) -> [(&'static str, Vec<u64>); 9] {
        let hidden = self.hidden;
        let key_value = hidden / 4;
        let feed_forward = hidden / 4 * 11;
        [
            ("input_layernorm.weight", vec![hidden]),
            ("mlp.down_proj.weight", vec![hidden, feed_forward]),
            ("mlp.gate_proj.weight", vec![feed_forward, hidden]),
            ("mlp.up_proj.weight", vec![feed_forward, hidden]),
            ("post_attention_layernorm.weight", vec![hidden]),
            ("self_attn.k_proj.weight", vec![key_value, hidden]),
            ("self_attn.o_proj.weight", vec![hidden, hidden]),
            ("self_attn.q_proj.weight", vec![hidden, hidden]),
            ("self_attn.v_proj.weight", vec![key_value, hidden]),
        ]
    }

    /// Every tensor's name and shape, in the order in which they stand in the files: the embedding first, the head last. Each has a
    /// multiple of eight elements, so whole bytes in every dtype.
    pub(crate) fn tensors(&self) -> Vec<(String, Vec<u64>)> {
        let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocabulary, self.hidden])];
        for layer in 0..self.layers {
            let named = |(part, shape)| (format!("model.layers.{layer}.{part}"), shape);
            tensors.extend(self.layer_tensors().into_iter().map(named));
        }
        tensors.push(("model.norm.weight".to_owned(), vec![self.hidden]));
        tensors.push(("lm_head.weight".to_owned(), vec![self.vocabulary, self.hidden]));
        tensors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_met_within_two_percent() {
        // From the smallest size in the widest dtype to far beyond any model.
        let mut parameters = SMALLEST_BYTES / 8;
        while parameters < 4_000_000_000_000 {
            let model = Architecture::near(parameters);
            let off = model.parameters().abs_diff(parameters) as f64 / parameters as f64;
            assert!(off < 0.02, "{parameters}: {model:?} has {}", model.parameters());
            let elements: u64 = model.tensors().iter().map(|(_, shape)| shape.iter().product::<u64>()).sum();
            assert_eq!(elements, model.parameters());
            assert!(model.tensors().iter().all(|(_, shape)| shape.iter().product::<u64>().is_multiple_of(8)));
            parameters = parameters * 13 / 10 + 1;
        }
    }

    #[test]
    fn a_billion_parameters_look_like_a_llama_of_a_billion() {
        let model = Architecture::near(1_100_000_000);
        assert!((1536..=2560).contains(&model.hidden), "{model:?}");
        assert!((16..=28).contains(&model.layers), "{model:?}");
        assert!((16_000..=64_000).contains(&model.vocabulary), "{model:?}");
        assert_eq!(model.tensors().len() as u64, 9 * model.layers + 3);
    }
}
